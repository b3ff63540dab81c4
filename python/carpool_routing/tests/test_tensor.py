"""The torch program: fixed shapes, no host synchronisation, compiled whole, and honest about what it does not have."""
import numpy as np
import pytest
from carpool_routing import PAD, Model, RoutingError

torch = pytest.importorskip("torch")
from carpool_routing import tensor  # noqa: E402  (needs torch)
from carpool_routing.tensor import COUNTERS, TensorRouter  # noqa: E402

GLM5 = Model(64, 8, "sigmoid", n_group=4, topk_group=2, routed_scaling_factor=2.5, n_shared=1, filler="repeat")
SPECS = ["topk", "prune:k0=3,p=0.6", "ser:k_min=2,t=0.5,norm=topk", "oea:k0=3",
         "oea:k0=3,p=0.5,k_max=10,max_p=20,floor=0.1,norm=final,underfill=keep,lend=prefill", "oea:k0=auto,t=50%"]


def arguments(rows=8, device="cpu", groups=True):
    rng = np.random.default_rng(3)
    given = {"logits": rng.standard_normal((rows, 64)), "bias": 7 + rng.random(64) / 4}
    given = {name: torch.tensor(a, dtype=torch.float32, device=device) for name, a in given.items()}
    given["row_flags"] = torch.zeros(rows, dtype=torch.uint8, device=device)
    given["row_groups"] = torch.arange(rows, dtype=torch.int32, device=device) % 2 if groups else None
    return given


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("groups", [True, False])
def test_nothing_depends_on_data_so_a_graph_can_hold_it(spec, groups):
    """On the meta device there are shapes and no numbers: reading one, or a shape made of one, raises."""
    given = arguments(device="meta", groups=groups)
    router = TensorRouter(spec, GLM5)
    routed = router.route(given.pop("logits"), **given)
    assert routed.ids.shape == routed.weights.shape == (8, router.columns)
    assert routed.reasons.shape == (8,) and routed.counters.shape == (len(COUNTERS),)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("spec", SPECS)
def test_torch_compile_takes_the_whole_program(spec, backend):
    torch.compiler.reset()
    router = TensorRouter(spec, GLM5)

    def step(logits, bias, row_flags, row_groups):
        return tuple(router.route(logits, bias=bias, row_flags=row_flags, row_groups=row_groups))

    given = arguments()
    compiled = torch.compile(step, fullgraph=True, backend=backend)
    for got, want in zip(compiled(**given), step(**given)):
        assert torch.equal(got, want)


def test_rewriting_compiles_too():
    torch.compiler.reset()
    router, given = TensorRouter("oea:k0=3", GLM5), arguments(groups=False)
    own = TensorRouter("topk", GLM5).route(given["logits"], bias=given["bias"])

    def step(logits, bias, row_flags, ids, weights):
        return tuple(router.rewrite(logits, ids, weights, bias=bias, row_flags=row_flags))

    del given["row_groups"]
    given.update(ids=own.ids, weights=own.weights)
    for got, want in zip(torch.compile(step, fullgraph=True, backend="aot_eager")(**given), step(**given)):
        assert torch.equal(got, want)


def test_one_program_serves_changing_flags():
    """What a CUDA graph does: the same program, other numbers in its buffers."""
    router, given = TensorRouter("oea:k0=3", GLM5), arguments()
    program = torch.compile(lambda x, flags: router.route(x, row_flags=flags).ids, fullgraph=True, backend="eager")
    flags = given["row_flags"]
    full = program(given["logits"], flags).clone()
    flags[5:] = PAD
    padded = program(given["logits"], flags)
    assert torch.equal(padded, router.route(given["logits"], row_flags=flags).ids) and not torch.equal(full, padded)
    assert torch.equal(padded[:5], router.route(given["logits"][:5]).ids)


def test_what_only_the_c_library_has_is_refused(monkeypatch):
    monkeypatch.setitem(tensor._KNOWN, "oea", ("k0",))
    with pytest.raises(RoutingError, match="no tensor program for the arguments max_p"):
        TensorRouter("oea:k0=2,max_p=9", GLM5)
    monkeypatch.delitem(tensor._KNOWN, "oea")
    with pytest.raises(RoutingError, match="policy oea:k0=2: there is no tensor program for this policy; there is one"):
        TensorRouter("oea:k0=2", GLM5)
    with pytest.raises(RoutingError, match="k0 9 is more than"):
        TensorRouter("prune:k0=9", GLM5)


def test_every_policy_of_the_core_is_there_or_refused():
    from carpool_routing import policies

    for name in policies():
        if name in tensor._KNOWN:
            continue
        with pytest.raises(RoutingError):
            TensorRouter(name, GLM5)


def test_too_few_columns_are_refused():
    router, given = TensorRouter("oea:k0=3,k_max=9", GLM5), arguments()
    with pytest.raises(ValueError, match="8 columns for routed experts are too few"):
        router.rewrite(given["logits"], torch.zeros(8, 9, dtype=torch.int32), torch.zeros(8, 9))
