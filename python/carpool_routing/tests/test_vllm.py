"""The plug-in in a worker with vLLM's interfaces (stub_vllm.py)."""
import logging
import sys
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import stub_vllm as stub  # noqa: E402  (needs torch)
from carpool_routing import Model, Router  # noqa: E402
from carpool_routing.plugins import vllm as plugin  # noqa: E402
from carpool_routing.plugins.settings import Settings  # noqa: E402

E, K, POLICY = 64, 8, "oea:k0=3"
TOKENS = [3, 9, 12, 20, 31, 7]
MODELS = {
    "FusedTopKRouter": (dict(), Model(E, K)),
    "FusedTopKBiasRouter": (dict(scoring_func="sigmoid", routed_scaling_factor=2.5, biased=True),
                            Model(E, K, "sigmoid", routed_scaling_factor=2.5)),
    "GroupedTopKRouter": (dict(scoring_func="sigmoid", num_expert_group=1, topk_group=1, biased=True),
                          Model(E, K, "sigmoid")),
}


def table():
    return torch.from_numpy(np.random.default_rng(0).standard_normal((40, E)).astype(np.float32))


def bias():
    return torch.from_numpy((7 + np.random.default_rng(1).random(E) / 4).astype(np.float32))


@pytest.fixture
def worker(monkeypatch, tmp_path):
    """start(router's name, ...) -> a worker with the plug-in installed."""
    monkeypatch.setenv("CARPOOL_STATE_DIR", str(tmp_path))
    monkeypatch.setattr(plugin, "_host", None)

    def start(name="FusedTopKBiasRouter", config=None, **changes):
        context, classes, runner = stub.install_stub(monkeypatch)
        plugin.install(Settings(POLICY))
        settings = {**MODELS[name][0], **changes}
        if settings.pop("biased", False):
            settings["e_score_correction_bias"] = bias()
        return runner(context, classes[name](K, **settings), table(), config)

    return start


def counted():
    return plugin.host().counters()["counters"]


def want(name, tokens, flags=None):
    given = MODELS[name][0]
    return Router(POLICY, MODELS[name][1]).route(table()[torch.tensor(tokens)], row_flags=flags,
                                                 bias=bias() if given.get("biased") else None)


@pytest.mark.parametrize("name", MODELS)
def test_decode_gets_the_experts_and_weights_of_the_core(worker, name):
    weights, ids = worker(name).execute(TOKENS)
    routed = want(name, TOKENS)
    assert torch.equal(ids, routed.ids) and counted()["plain_rows.applied"] == 6
    np.testing.assert_array_max_ulp(weights.numpy(), routed.weights.numpy(), 1)


def test_the_counter_moves_in_decode_and_stays_still_in_prefill(worker):
    w = worker()
    w.execute(TOKENS)
    before = counted()
    assert before["plain_rows.applied"] == 6 and before["rerouted_rows"] > 0
    weights, ids = w.execute(list(range(20)), lengths=[12, 8])
    own_weights, own_ids = w.router.choose(table()[:20])
    assert torch.equal(ids, own_ids) and torch.equal(weights, own_weights)
    assert counted()["plain_rows.applied"] == 6 and counted()["rerouted_rows"] == before["rerouted_rows"]


def test_a_mixed_batch_re_routes_its_single_rows_only(worker):
    tokens = [3, 9, 12, 20] + list(range(5))
    w = worker()
    weights, ids = w.execute(tokens, lengths=[1, 1, 1, 1, 5])
    flags = torch.tensor([0] * 4 + [1] * 5, dtype=torch.uint8)
    assert torch.equal(ids[:4], want("FusedTopKBiasRouter", tokens, flags).ids[:4])
    assert torch.equal(ids[4:], w.router.choose(table()[torch.tensor(tokens)])[1][4:])
    assert counted()["plain_rows.applied"] == 4 and counted()["plain_rows.phase"] == 5


def test_padding_influences_nobody(worker):
    weights, ids = worker().execute(TOKENS, padded=8)
    assert torch.equal(ids[:6], want("FusedTopKBiasRouter", TOKENS).ids)
    assert not torch.equal(ids[:6], want("FusedTopKBiasRouter", TOKENS + [0, 0]).ids[:6]), "it would not be noticed"


def test_warm_up_counts_nowhere(worker):
    w = worker()
    for with_metadata in (False, True):  # piecewise and full graphs: both must take the program in
        calls = plugin.host().layer_calls if plugin.host() else 0
        w._dummy_run(16, with_metadata)
        assert plugin.host().layer_calls == calls + 1
    w.execute(TOKENS)
    before = counted()
    assert before["plain_rows.applied"] == 6
    w._dummy_run(16)
    assert counted() == before


def test_what_is_recorded_and_mapped_is_what_runs(worker):
    w, captured = worker(), []
    w.router.capture_fn, w.router.eplb = captured.append, torch.arange(E).flip(0)
    weights, ids = w.execute(TOKENS)
    logical = want("FusedTopKBiasRouter", TOKENS).ids
    assert torch.equal(captured[0], logical) and torch.equal(ids, E - 1 - logical)


@pytest.mark.parametrize("changes, why", [
    (dict(scoring_func="sqrtsoftplus"), "the scoring function sqrtsoftplus"),
    (dict(_hash_indices_table=torch.zeros(1)), "takes its experts from a table of token ids"),
])
def test_what_cannot_be_re_routed_is_left_alone_and_said(worker, caplog, changes, why):
    w = worker(**changes)
    with caplog.at_level(logging.ERROR):
        weights, ids = w.execute(TOKENS)
    own = w.router.choose(table()[torch.tensor(TOKENS)])
    assert why in caplog.text and torch.equal(ids, own[1]) and counted()["calls"] == 0


@pytest.mark.parametrize("config, more, why", [
    (types.SimpleNamespace(speculative_config=object(), parallel_config=None), {}, "with speculative decoding"),
    (None, dict(dp_metadata=object()), "data-parallel ranks"),
    (None, dict(ubatch_slices=[1]), "split into micro-batches"),
])
def test_batches_that_it_does_not_understand_stay_plain(worker, caplog, config, more, why):
    w = worker(config=config)
    with caplog.at_level(logging.ERROR):
        w.execute(TOKENS, **more)
        w.execute(TOKENS, **more)
    assert caplog.text.count(why) == 1 and counted()["calls"] == 0


def test_a_kernel_that_routes_inside_itself_is_said_once(worker, caplog):
    w = worker()
    w.fused = True
    with caplog.at_level(logging.ERROR):
        w.execute(TOKENS)
        w.execute(TOKENS)
    assert caplog.text.count("passed no layer through the router's select_experts") == 1


@pytest.mark.parametrize("name", [plugin.CONTEXT, plugin.RUNNER, plugin.ROUTER + "grouped_topk_router"])
def test_a_vllm_that_moved_its_modules_is_refused(monkeypatch, caplog, name):
    stub.install_stub(monkeypatch)
    monkeypatch.setitem(sys.modules, name, None)  # importing it raises ModuleNotFoundError
    with caplog.at_level(logging.ERROR):
        plugin.install(Settings(POLICY))
    assert "NOT RE-ROUTING (vllm, oea:k0=3)" in caplog.text and name.removesuffix(".grouped_topk_router") in caplog.text


def test_another_vllm_is_refused(monkeypatch, caplog):
    context, _, _ = stub.install_stub(monkeypatch)
    del context.create_forward_context
    with caplog.at_level(logging.ERROR):
        plugin.install(Settings(POLICY))
    assert "NOT RE-ROUTING (vllm, oea:k0=3): vllm.forward_context has no create_forward_context" in caplog.text
