"""The C library, the numpy reference and the torch program give the same ids, weights to 1 ulp, and the model's sums.

CARPOOL_ROUTING_CASES sets the number of random batches; what must hold was shown on 100,000. That the C library gives
the engine's bits is shown by src/capi/capi_test.cc.
"""
import os

import numpy as np
import pytest
from batches import lay_out, random_case, reference_rows, ulps
from carpool_routing import PAD, REASONS, Router

CASES = int(os.environ.get("CARPOOL_ROUTING_CASES", "400"))


def given(case):
    return {"bias": case.bias, "row_flags": case.flags, "row_groups": case.groups}


def as_tensors(torch, arguments):
    return {name: None if a is None else torch.from_numpy(a) for name, a in arguments.items()}


def test_c_numpy_and_torch_agree_on_random_batches(torch):
    from carpool_routing.tensor import TensorRouter

    applied = worst = 0
    for seed in range(CASES):
        case = random_case(seed)
        router, tensors = Router(case.policy, case.model), TensorRouter(case.policy, case.model)
        want_ids, want_weights, want_reasons = lay_out(case, reference_rows(case), router.columns)
        c = router.route(case.logits, **given(case))
        t = tensors.route(torch.from_numpy(case.logits), **as_tensors(torch, given(case)))
        where = f"case {seed}, {case.policy}, {case.model}"
        assert np.array_equal(c.ids, want_ids), where
        assert np.array_equal(t.ids.numpy(), want_ids), where
        assert [REASONS[r] for r in c.reasons] == want_reasons, where
        assert np.array_equal(t.reasons.numpy(), c.reasons), where
        worst = max(worst, ulps(c.weights, want_weights), ulps(t.weights.numpy(), c.weights))
        assert worst <= 1, where
        check_counters(router, t, where)
        check_sums(case, c, where)
        applied += int((c.reasons == 0).sum())
    print(f"{CASES} batches, {applied} rows re-routed, weights apart by at most {worst} ulp")
    assert applied > CASES


def check_counters(router, tensor_routed, where):
    from carpool_routing.tensor import COUNTERS

    counted = router.counters()
    for name, value in zip(COUNTERS, tensor_routed.counters.tolist()):
        group, _, reason = name.partition(".")
        assert value == (counted[group][reason] if reason else counted[group]), (where, name)


def check_sums(case, routed, where):
    """A renormalising model's rows sum to its scale, whatever the policy left of them."""
    m = case.model
    if not (m.renormalize or m.scoring == "softmax_topk"):
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
