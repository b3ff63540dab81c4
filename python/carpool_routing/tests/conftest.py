"""Lets the tests run against an installed wheel, or against the sources with CARPOOL_ROUTING_LIBRARY set."""
import importlib.util
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
REFERENCE = HERE.parents[1] / "reference"

sys.path.insert(0, str(HERE))  # batches, specimens, stubs
sys.path.insert(0, str(REFERENCE))  # routing.py, the definition of routing in numpy
if importlib.util.find_spec("carpool_routing") is None:
    sys.path.insert(0, str(HERE.parent / "src"))


def pytest_configure(config):
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def torch():
    return pytest.importorskip("torch")
