"""The C library, the numpy reference and the torch program give the same ids, weights to 1 ulp, and the model's sums.

CARPOOL_ROUTING_CASES sets the number of random batches. That the C library gives the engine's bits is shown by
src/capi/capi_test.cc.
"""
import os

import numpy as np
import pytest
from batches import lay_out, random_case, random_series, reference_rows, ulps
from carpool_routing import PAD, REASONS, Router

CASES = int(os.environ.get("CARPOOL_ROUTING_CASES", "2000"))
SERIES = 50


def given(case):
    return {"bias": case.bias, "row_flags": case.flags, "row_groups": case.groups}


def as_tensors(torch, arguments):
    return {name: None if a is None else torch.from_numpy(a) for name, a in arguments.items()}


def test_c_numpy_and_torch_agree_on_random_batches(torch):
    """Series of batches of one layer. torch takes a series in one call where a batch can be a group of rows, which
    is where no argument and no filler looks at the whole step."""
    from carpool_routing.tensor import TensorRouter

    applied = worst = 0
    for seed in range(CASES // SERIES):
        series = random_series(seed, SERIES)
        first = series[0]
        router, tensors = Router(first.policy, first.model), TensorRouter(first.policy, first.model)
        where = f"series {seed}, {first.policy}, {first.model}"
        routed = [router.route(case.logits, **given(case)) for case in series]
        for case, c in zip(series, routed):
            want_ids, want_weights, want_reasons = lay_out(case, reference_rows(case), router.columns)
            assert np.array_equal(c.ids, want_ids), where
            assert [REASONS[r] for r in c.reasons] == want_reasons, where
            worst = max(worst, ulps(c.weights, want_weights))
            check_sums(case, c, where)
            applied += int((c.reasons == 0).sum())
        worst = max(worst, check_tensors(torch, tensors, series, routed, where))
        assert worst <= 1, where
    print(f"{CASES} batches, {applied} rows re-routed, weights apart by at most {worst} ulp")
    assert applied > CASES


def check_tensors(torch, tensors, series, routed, where):
    """The torch program on a series against what the C library made of each batch; the distance of the weights."""
    first = series[0]
    if "max_rows" in first.policy or first.model.filler == "repeat":
        calls = [(case.logits, case.flags, case.groups) for case in series]
        want = routed
    else:
        groups = [case.groups + 100 * i for i, case in enumerate(series)]
        calls = [tuple(np.concatenate(a) for a in ([c.logits for c in series], [c.flags for c in series], groups))]
        want = [type(routed[0])(*(np.concatenate(a) for a in zip(*routed)))]
    worst = 0
    for (logits, flags, group), c in zip(calls, want):
        t = tensors.route(torch.from_numpy(logits), row_flags=torch.from_numpy(flags),
                          row_groups=torch.from_numpy(group.astype(np.int32)),
                          bias=None if first.bias is None else torch.from_numpy(first.bias))
        assert np.array_equal(t.ids.numpy(), c.ids), where
        assert np.array_equal(t.reasons.numpy(), c.reasons), where
        worst = max(worst, ulps(t.weights.numpy(), c.weights))
    return worst


def test_the_counters_of_torch_are_those_of_c(torch):
    from carpool_routing.tensor import TensorRouter

    for seed in range(300):
        case = random_case(seed)
        router, tensors = Router(case.policy, case.model), TensorRouter(case.policy, case.model)
        c = router.route(case.logits, **given(case))
        t = tensors.route(torch.from_numpy(case.logits), **as_tensors(torch, given(case)))
        assert np.array_equal(t.ids.numpy(), c.ids) and ulps(t.weights.numpy(), c.weights) == 0, (seed, case.policy)
        check_counters(router, t, (seed, case.policy))


def check_counters(router, tensor_routed, where):
    from carpool_routing.tensor import COUNTERS

    counted = router.counters()
    for name, value in zip(COUNTERS, tensor_routed.counters.tolist()):
        group, _, reason = name.partition(".")
        assert value == (counted[group][reason] if reason else counted[group]), (where, name)


def check_sums(case, routed, where):
    """A renormalising model's rows sum to its scale, whatever the policy left of them."""
    m = case.model
    if not (m.renormalize or m.scoring == "softmax_topk") or "norm=" in case.policy:
        return
    own = routed.weights[:, : routed.weights.shape[1] - m.n_shared].sum(-1, dtype=np.float64)
    usable = ((case.flags & PAD) == 0) & (routed.weights[:, 0] > 0)
    eps = np.finfo(np.float32).eps
    np.testing.assert_allclose(own[usable], m.routed_scaling_factor, rtol=(m.n_experts + 1) * eps, err_msg=where)


@pytest.mark.parametrize("policy", ["topk", "oea:k0=0", "oea:k0=2", "prune:k0=2"])
def test_rewriting_in_place_leaves_rows_that_the_policy_does_not_decide(torch, policy):
    """The model's own choice comes unsorted, with a shared slot; C and torch write the same rows and no other."""
    from carpool_routing.tensor import TensorRouter

    rng = np.random.default_rng(7)
    for seed in range(60):
        case = random_case(seed)
        if case.model.top_k < 2:
            continue
        router, tensors = Router(policy, case.model), TensorRouter(policy, case.model)
        T, C = len(case.logits), router.columns + 1  # one column more than needed
        plain = Router("topk", case.model).route(case.logits, **given(case)).ids
        order = rng.permuted(np.tile(np.arange(case.model.top_k), (T, 1)), axis=1)
        ids = np.full((T, C), -9, np.int32)
        ids[:, : case.model.top_k] = np.take_along_axis(plain, order, 1)
        weights = rng.random((T, C)).astype(np.float32)
        before = ids.copy(), weights.copy()
        t = tensors.rewrite(torch.from_numpy(case.logits), torch.from_numpy(ids.copy()),
                            torch.from_numpy(weights.copy()), **as_tensors(torch, given(case)))
        c = router.route(case.logits, out=(ids, weights), in_place=True, **given(case))
        assert np.array_equal(t.ids.numpy(), ids) and ulps(t.weights.numpy(), weights) == 0, (seed, case)
        left = c.reasons != 0
        shared = C - case.model.n_shared
        assert np.array_equal(ids[left], before[0][left]) and np.array_equal(weights[left], before[1][left])
        assert np.array_equal(ids[:, shared:], before[0][:, shared:])


def test_every_type_of_logits_is_converted_exactly(torch):
    from carpool_routing import Model

    router = Router("oea:k0=2", Model(16, 4, "sigmoid"))
    exact = torch.from_numpy((np.random.default_rng(1).integers(-128, 129, (5, 16)) / 32).astype(np.float32))
    want = router.route(exact)
    for dtype in (torch.bfloat16, torch.float16):
        got = router.route(exact.to(dtype))
        assert torch.equal(got.ids, want.ids) and torch.equal(got.weights, want.weights), dtype
    half = router.route(exact.numpy().astype(np.float16))
    assert np.array_equal(half.ids, want.ids.numpy()) and np.array_equal(half.weights, want.weights.numpy())
