"""The environment switches, and that an old one is not obeyed in silence."""
import logging

import pytest

pytest.importorskip("torch")
from carpool_routing.plugins.settings import Settings, from_environment  # noqa: E402


@pytest.mark.parametrize("environ, settings", [
    ({}, None),
    ({"CARPOOL_OEA_K0": "0"}, None),
    ({"CARPOOL_OEA_K0": ""}, None),
    ({"CARPOOL_OEA_K0": "5"}, Settings("oea:k0=5")),
    ({"CARPOOL_OEA_K0": "5", "CARPOOL_OEA_MIN_BATCH": "4"}, Settings("oea:k0=5,min_batch=4")),
    ({"CARPOOL_OEA_K0": "5", "CARPOOL_POLICY": "prune:k0=3"}, Settings("prune:k0=3")),
    ({"CARPOOL_POLICY": "oea:k0=3,guard=off", "CARPOOL_MAX_ROWS": "64"}, Settings("oea:k0=3,guard=off", 64)),
])
def test_what_the_environment_asks_for(environ, settings):
    assert from_environment(environ) == settings


@pytest.mark.parametrize("environ, text", [
    ({"CARPOOL_OEA_K0": "five"}, "CARPOOL_OEA_K0 must be a number, got 'five'"),
    ({"CARPOOL_OEA_K0": "-1"}, "CARPOOL_OEA_K0 must be a number"),
    ({"CARPOOL_OEA_MIN_BATCH": "2"}, "set without CARPOOL_OEA_K0"),
])
def test_what_cannot_be_meant_is_refused(environ, text):
    with pytest.raises(ValueError, match=text):
        from_environment(environ)


def test_the_old_patchs_switch_is_warned_about(caplog):
    with caplog.at_level(logging.WARNING):
        assert from_environment({"SGLANG_OEA_K0": "5"}) is None
    assert "SGLANG_OEA_K0 IS SET AND READ BY NOTHING" in caplog.text and "Set CARPOOL_OEA_K0 instead" in caplog.text


@pytest.mark.parametrize("name", ["sglang", "vllm"])
def test_without_a_switch_nothing_is_imported_or_installed(name, monkeypatch):
    import importlib
    import sys

    plugin = importlib.import_module("carpool_routing.plugins." + name)
    for variable in ("CARPOOL_POLICY", "CARPOOL_OEA_K0", "CARPOOL_OEA_MIN_BATCH"):
        monkeypatch.delenv(variable, raising=False)
    plugin.install_from_environment()
    assert name not in sys.modules
    monkeypatch.setenv("CARPOOL_OEA_K0", "5")
    with pytest.raises(ImportError):  # asked for in a process that has no such engine
        plugin.install_from_environment()
