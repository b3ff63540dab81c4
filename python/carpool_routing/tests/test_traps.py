"""The traps of a post-processor on SGLang's top-k, each with the specimen that falls into it and what happens here."""
import numpy as np
import pytest

torch = pytest.importorskip("torch")
import specimens  # noqa: E402
import stub_sglang as stub  # noqa: E402
from carpool_routing import ISOLATED, PAD, PREFILL, Model, Router  # noqa: E402
from carpool_routing.plugins import sglang as plugin  # noqa: E402
from carpool_routing.tensor import TensorRouter  # noqa: E402
from stub_sglang import ForwardBatch, ForwardMode  # noqa: E402
from test_lessons import GLM5, draw, sets  # noqa: E402
from test_sglang import counted, decode, glm5, server, table, want  # noqa: E402, F401  (server is a fixture)

POLICY = "oea:k0=3"


def order_of(logits, bias):
    return (torch.sigmoid(logits.double()).float() + bias).sort(dim=-1, descending=True, stable=True).indices


def test_trap_01_rank_by_the_selection_score_after_the_groups():
    model = Model(64, 4, "sigmoid", n_group=8, topk_group=2)
    logits, bias = draw(16, 64)
    ours = Router("oea:k0=2", model).route(logits, bias=bias).ids
    groups_per_row = [{e // 8 for e in row} for row in sets(ours)]
    assert all(len(groups) <= 2 for groups in groups_per_row)
    unmasked = [{e // 8 for e in row} for row in sets(order_of(logits, bias)[:, :4])]
    assert any(len(groups) > 2 for groups in unmasked), "the groups never matter"


def test_trap_02_column_order_means_nothing():
    logits, bias = draw(16)
    order = order_of(logits, bias)
    ids, weights = order[:, :8].to(torch.int32), torch.full((16, 8), 2.5 / 8)
    shuffled = ids[:, torch.tensor([7, 6, 5, 4, 3, 2, 1, 0])]
    a, b = (TensorRouter(POLICY, GLM5).rewrite(logits, i, weights, bias=bias) for i in (ids, shuffled))
    assert torch.equal(a.ids, b.ids) and torch.equal(a.weights, b.weights)
    assert specimens.union_fill(ids, order, 3, 8) != specimens.union_fill(shuffled, order, 3, 8)


def test_trap_03_the_shared_expert_is_in_no_pool():
    logits, bias = draw(16, 64)
    config = glm5(correction_bias=bias)
    weights, ids = stub.plain_choice(logits, config)
    naive = specimens.union_by_mask(ids, 65)
    assert naive[64], "the specimen's pool lacks the shared expert"
    model, _ = plugin.model_of(config, 64, 9)
    ours = TensorRouter(POLICY, model).rewrite(logits, ids, weights, bias=bias)
    assert (ours.ids[:, :8] < 64).all() and (ours.ids[:, 8] == 64).all()


def test_trap_04_models_that_do_not_renormalise_keep_their_raw_scores():
    olmoe = Model(64, 8, renormalize=False)
    logits, _ = draw(8, 64)
    routed = Router(POLICY, olmoe).route(logits)
    ids, probabilities = routed.ids.long(), torch.softmax(logits.double(), -1).float()
    np.testing.assert_array_max_ulp(routed.weights.numpy(), probabilities.gather(-1, ids).numpy(), 1)
    assert (routed.weights.sum(-1) < 0.99).all()
    assert torch.allclose(specimens.renormalise_to_one(probabilities, ids).sum(-1), torch.tensor(1.0))


def test_trap_05_ids_are_logical(server):
    """After EPLB's map an id names a replica, not a column of the logits."""
    config = glm5(num_fused_shared_experts=0, top_k=8)
    runner, seen, _ = server(config)
    runner.model.dispatch = stub.Dispatch(torch.arange(64).flip(0))
    tokens = [3, 9, 12, 20]
    out = runner.forward(decode(tokens))
    assert torch.equal(seen.captured[0], want(config, tokens)[0]) and torch.equal(out[0], 63 - seen.captured[0])
    physical = 63 - stub.plain_choice(table()[torch.tensor(tokens)], config)[1]
    order = order_of(table()[torch.tensor(tokens)], config.correction_bias)
    naive = specimens.union_fill(physical, order, 3, 8)
    assert [set(r) for r in naive] != sets(out[0]), "the map changes nothing"


def test_trap_06_padding_is_masked_before_the_union():
    logits, bias = draw(6)
    flags = torch.tensor([0, 0, 0, 0, PAD, PAD], dtype=torch.uint8)
    router = Router(POLICY, GLM5)
    padded, alone = router.route(logits, bias=bias, row_flags=flags), router.route(logits[:4], bias=bias)
    assert torch.equal(padded.ids[:4], alone.ids) and (padded.ids[4:] == -1).all()
    assert not torch.equal(router.route(logits, bias=bias).ids[:4], alone.ids), "pads would not have been noticed"
    naive = specimens.union_by_mask(padded.ids, 256)
    assert naive[255] and 255 not in set(alone.ids.flatten().tolist()), "-1 marks no expert"


def test_trap_07_mixed_and_verify_are_found(server):
    runner, _, _ = server()
    runner.forward(ForwardBatch(ForwardMode.MIXED, torch.arange(8), extend_seq_lens_cpu=[4, 1, 1, 1, 1]))
    mixed = counted()["plain_rows.applied"]
    runner.forward(ForwardBatch(ForwardMode.TARGET_VERIFY, torch.arange(8)))
    assert mixed == 2 * 4 and counted()["plain_rows.applied"] == mixed + 2 * 8
    assert not specimens.is_decode(ForwardMode.MIXED) and not specimens.is_decode(ForwardMode.TARGET_VERIFY)


def test_trap_08_prompt_rows_neither_change_nor_lend():
    logits, bias = draw(20)
    flags = torch.tensor([PREFILL] * 14 + [0] * 6, dtype=torch.uint8)
    router = Router(POLICY, GLM5)
    mixed, alone = router.route(logits, bias=bias, row_flags=flags), router.route(logits[14:], bias=bias)
    plain = Router("topk", GLM5).route(logits, bias=bias)
    assert torch.equal(mixed.ids[14:], alone.ids) and torch.equal(mixed.ids[:14], plain.ids[:14])
    naive = specimens.union_fill(plain.ids, order_of(logits, bias), 3, 8)  # all rows, as the patch did
    assert [set(r) for r in naive[14:]] != sets(alone.ids) and [set(r) for r in naive[:14]] != sets(plain.ids[:14])


def test_trap_09_the_union_is_over_all_data_parallel_ranks(server):
    runner, _, _ = server()
    rows = [3, 9, 12, 20, 31, 7]
    out = runner.forward(decode(rows, global_num_tokens_cpu=[3, 3], dp_padding_mode=stub.PaddingMode.SUM_LEN))
    assert torch.equal(out[0], want(glm5(), rows)[0])
    by_rank = torch.cat([want(glm5(), rows[:3])[0], want(glm5(), rows[3:])[0]])
    assert sets(by_rank) != sets(out[0]), "one rank's union is that of all"


def test_trap_10_a_row_alone_keeps_all_its_experts():
    logits, bias = draw(1)
    plain = Router("topk", GLM5).route(logits, bias=bias)
    ours = Router(POLICY, GLM5).route(logits, bias=bias)
    assert torch.equal(ours.ids, plain.ids) and torch.equal(ours.weights, plain.weights)
    naive = specimens.union_fill(plain.ids, order_of(logits, bias), 3, 8)
    assert [len(row) for row in naive] == [3], "the specimen does not prune"


def test_trap_11_under_filled_rows_have_a_neutral_filler():
    """-1 is an index to kernels that take none; and keeping all of a row's own experts saves nothing at small batches."""
    logits, bias = draw(2)
    plain = Router("topk", GLM5).route(logits, bias=bias).ids
    spec = "oea:k0=3,guard=off"
    none = Router(spec, GLM5).route(logits, bias=bias)
    repeat = Router(spec, Model(256, 8, "sigmoid", routed_scaling_factor=2.5, filler="repeat")).route(logits, bias=bias)
    experts = torch.from_numpy(np.random.default_rng(2).standard_normal(256).astype(np.float32))  # each gives a number
    real = none.ids >= 0
    assert not real.all()
    output = (torch.where(real, experts[none.ids.long()], 0.0) * none.weights).sum(-1)
    assert torch.allclose((experts[repeat.ids.long()] * repeat.weights).sum(-1), output)
    assert (repeat.ids >= 0).all() and sets(repeat.ids) == sets(none.ids)
    filled = specimens.union_fill(plain, order_of(logits, bias), 3, 8)
    kept = specimens.plain_if_underfilled(filled, plain, 8)
    assert sets(kept) == sets(plain), "the specimen saves something"
    assert len(set().union(*sets(none.ids))) < len(set().union(*sets(plain)))


def test_trap_12_no_expert_is_twice_in_a_row():
    logits, bias = draw(16)
    ours = Router(POLICY, GLM5).route(logits, bias=bias).ids
    assert all(len(row) == 8 for row in sets(ours))
    union = sorted(set(order_of(logits, bias)[:, :3].flatten().tolist()))
    naive = [row[:3] + union[:5] for row in order_of(logits, bias).tolist()]  # appends without looking at the base
    assert any(len(set(row)) < 8 for row in naive), "nothing repeats"


def test_trap_13_a_request_can_be_left_out_and_off_is_off():
    logits, bias = draw(8)
    router, plain = Router(POLICY, GLM5), Router("topk", GLM5)
    flags = torch.tensor([ISOLATED] + [0] * 7, dtype=torch.uint8)
    among, alone = router.route(logits, bias=bias, row_flags=flags), plain.route(logits[:1], bias=bias)
    assert torch.equal(among.ids[:1], alone.ids) and torch.equal(among.weights[:1], alone.weights)
    assert torch.equal(among.ids[1:], router.route(logits[1:], bias=bias).ids)  # nor does it lend
    naive = specimens.union_fill(plain.route(logits, bias=bias).ids, order_of(logits, bias), 3, 8)
    assert set(naive[0]) != sets(alone.ids)[0], "the neighbours change nothing"
    for off in ("topk", "oea:k0=0", "oea:k0=8"):
        a, b = Router(off, GLM5).route(logits, bias=bias), plain.route(logits, bias=bias)
        assert torch.equal(a.ids, b.ids) and torch.equal(a.weights, b.weights), off


def test_trap_14_nothing_waits_for_the_device_and_no_shape_depends_on_data():
    logits = torch.empty((8, 256), device="meta")
    routed = TensorRouter(POLICY, GLM5).route(logits, bias=torch.empty(256, device="meta"))
    assert routed.ids.shape == (8, 8)
    with pytest.raises((RuntimeError, NotImplementedError)):
        specimens.union_by_unique(routed.ids)


@pytest.mark.parametrize("center", [7.0, 34.5])
def test_trap_15_a_large_bias_costs_no_digits(center):
    rng = np.random.default_rng(4)
    logits = torch.from_numpy((rng.standard_normal((64, 256)) / 2 - 4).astype(np.float32))
    bias = torch.from_numpy((center + rng.random(256) * 0.25).astype(np.float32))
    routed = Router("topk", GLM5).route(logits, bias=bias)
    exact = torch.sigmoid(logits.double()).gather(-1, routed.ids.long())
    exact = exact / exact.sum(-1, keepdim=True) * 2.5
    assert ((routed.weights - exact).abs() / exact).max() < 1e-6
    scores = torch.sigmoid(logits)
    recovered = specimens.recover_scores(scores, bias).gather(-1, routed.ids.long())
    wrong = (recovered / recovered.sum(-1, keepdim=True) * 2.5 - exact).abs() / exact
    assert wrong.max() > 1e-6, "the cancellation loses nothing"
    rounded = Router("topk", GLM5).route(logits, bias=bias.bfloat16().float()).ids
    changed = sum(a != b for a, b in zip(sets(rounded), sets(routed.ids)))
    assert changed > 48, "a bias in bf16 chooses the same"
    tiny = torch.full((2, 256), -60.0)  # sigmoids that vanish beside the bias: 0/0 by the specimen
    lost = specimens.recover_scores(torch.sigmoid(tiny), bias)
    assert torch.isnan(lost / lost.sum(-1, keepdim=True)).any()
    assert torch.isfinite(Router("topk", GLM5).route(tiny, bias=bias).weights).all()
