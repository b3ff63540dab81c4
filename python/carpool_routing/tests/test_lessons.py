"""The twelve lessons of an earlier OEA patch to SGLang, each with the specimen that goes wrong and what happens here."""
import logging

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import specimens  # noqa: E402
import stub_sglang as stub  # noqa: E402
from carpool_routing import Model, Router, RoutingError  # noqa: E402
from carpool_routing.plugins import sglang as plugin  # noqa: E402
from carpool_routing.plugins.settings import from_environment  # noqa: E402
from carpool_routing.tensor import TensorRouter  # noqa: E402
from test_sglang import counted, decode, glm5, server, table, want  # noqa: E402, F401  (server is a fixture)

GLM5 = Model(256, 8, "sigmoid", routed_scaling_factor=2.5)
GPT = dict(n_experts=256, top_k=8)


def draw(rows, experts=256, seed=0, skew=0.0):
    """Logits and a bias; skew: the spread of the experts' own popularity beside the rows' spread of 1."""
    rng = np.random.default_rng(seed)
    popularity = rng.standard_normal(experts) * skew
    logits = rng.standard_normal((rows, experts)) + popularity
    return (torch.from_numpy(logits.astype(np.float32)),
            torch.from_numpy((7 + rng.random(experts) * 0.25).astype(np.float32)))


def sets(ids):
    return [set(row) - {-1} for row in np.asarray(ids).tolist()]


def test_lesson_0_1_the_hook_runs_in_decode(server):
    """The guard asked a context that no decode step has: a silent no-op."""
    contexts = {"current": None}
    hook = specimens.guarded_hook(lambda: contexts["current"], lambda ids: ids.flip(-1))
    runner, _, _ = server()
    ids = torch.arange(8).repeat(3, 1)
    assert torch.equal(hook(ids), ids), "the specimen runs after all"
    runner.forward(decode([1, 2, 3, 4]))
    assert counted()["plain_rows.applied"] == 8 and counted()["rerouted_rows"] > 0


def test_lesson_0_2_equal_code_is_not_called_a_gain():
    """Runs of one process - steps of some 0.11 s that give 1024 tokens each - have fullest seconds that differ by many
    percent; the counters do not."""
    rng = np.random.default_rng(0)
    runs = [np.repeat(np.cumsum(rng.normal(0.11, 0.03, 300).clip(0.02)), 1024) for _ in range(10)]
    peaks = [specimens.peak_output(times) for times in runs]
    assert max(peaks) / min(peaks) > 1.05, "the specimen is steady after all"
    router = Router("oea:k0=5", Model(**GPT))
    logits, _ = draw(1024)
    router.route(logits)
    c = router.counters()
    assert c["distinct_experts"] == c["distinct_plain"] == 256  # nothing to gain at 1024 rows, and it shows


def test_lesson_0_3_distinct_experts_are_counted_not_guessed():
    """"At 10 tokens only 8 experts are used": 69.6 are, and 45.8 with k0 = 5."""
    router = Router("oea:k0=5", Model(**GPT))
    for seed in range(200):
        router.route(draw(10, seed=seed)[0])
    c = router.counters()
    assert abs(c["distinct_plain"] / 200 - 69.6) < 1.5 and abs(c["distinct_experts"] / 200 - 45.8) < 1.5
    guess = GPT["top_k"]
    assert abs(guess - c["distinct_plain"] / 200) > 60, "the specimen is right after all"


def test_lesson_0_4_the_bias_ranks():
    logits, bias = draw(16)
    ours = sets(Router("topk", GLM5).route(logits, bias=bias).ids)
    exact = (torch.sigmoid(logits.double()).float() + bias).sort(dim=-1, descending=True, stable=True).indices[:, :8]
    assert ours == sets(exact)
    assert sum(a != b for a, b in zip(sets(specimens.rank_by_logits(logits, 8)), ours)) > 8, "the bias changes nothing"


def test_lesson_0_5_the_routed_scale_stays():
    logits, bias = draw(16)
    logits -= 3
    routed = Router("oea:k0=5", GLM5).route(logits, bias=bias)
    ids = routed.ids.long()
    assert torch.allclose(routed.weights.sum(-1), torch.tensor(2.5), rtol=1e-6)
    assert torch.allclose(specimens.renormalise_to_one(torch.sigmoid(logits), ids).sum(-1), torch.tensor(1.0))
    assert (logits.gather(-1, ids) < 0).any()  # its first version weighed by these
    assert (routed.weights > 0).all()


def test_lesson_0_6_the_first_columns_are_not_the_best():
    logits, bias = draw(16)
    config = glm5(top_k=8, num_fused_shared_experts=0, correction_bias=bias)
    weights, ids = stub.plain_choice(logits, config)  # by id, as a radix select leaves them
    order = (torch.sigmoid(logits) + bias).sort(dim=-1, descending=True, stable=True).indices
    first = specimens.union_fill(ids, order, 5, 8)
    ours = TensorRouter("oea:k0=5", GLM5).rewrite(logits, ids, weights, bias=bias)
    best = [set(row[:5]) for row in order.tolist()]
    assert all(b <= s for b, s in zip(best, sets(ours.ids)))
    assert not all(b <= set(row) for b, row in zip(best, first)), "the first columns are the best after all"


def test_lesson_0_7_the_shared_slot_is_not_a_routed_column():
    logits, bias = draw(16, 64)
    config = glm5(correction_bias=bias)
    weights, ids = stub.plain_choice(logits, config)  # nine columns, the last one id 64
    order = (torch.sigmoid(logits) + bias).sort(dim=-1, descending=True, stable=True).indices
    overwritten = specimens.union_fill(ids, order, 5, config.top_k)
    assert any(row[-1] != 64 for row in overwritten), "the shared expert survives the specimen"
    model, _ = plugin.model_of(config, 64, 9)
    assert model.top_k == 8 and model.n_shared == 1
    ours = TensorRouter("oea:k0=5", model).rewrite(logits, ids, weights, bias=bias)
    assert (ours.ids[:, 8] == 64).all() and torch.equal(ours.weights[:, 8], weights[:, 8])
    assert (ours.ids[:, :8] < 64).all()


ARGUMENTS = {"k0": "oea:k0=5", "p": "oea:k0=3,p=0.01", "k_max": "oea:k0=3,k_max=5", "max_p": "oea:k0=3,max_p=6",
             "min_batch": "oea:k0=3,min_batch=20", "max_rows": "oea:k0=3,max_rows=8",
             "underfill": "oea:k0=3,max_p=6,underfill=keep", "lend": "oea:k0=3,lend=prefill",
             "guard": "oea:k0=3,guard=off"}


def test_lesson_0_8_no_argument_is_dead():
    """A flag that nothing reads was tuned for days. Here unknown ones are errors, and each known one does something."""
    dead = "oea:k0=5,continuous_decode_steps=16"
    assert specimens.lenient_arguments(dead) == {"k0": "5"}, "the specimen minds"
    with pytest.raises(RoutingError, match="unknown argument"):
        Router(dead, GLM5)
    logits, bias = draw(16)
    flags = torch.zeros(16, dtype=torch.uint8)
    flags[12:] = 1
    few = torch.full((16,), 2, dtype=torch.uint8)
    few[:2] = 0  # two rows alike: their union has three experts
    logits[1] = logits[0]

    def outcome(spec):
        return [Router(spec, GLM5).route(logits, bias=bias, row_flags=f).ids.tolist() for f in (flags, few)]

    for name, spec in ARGUMENTS.items():
        base = "oea:k0=3,max_p=6" if name == "underfill" else "oea:k0=3"
        assert outcome(spec) != outcome(base), f"{name} changes nothing"


def test_lesson_0_9_the_setting_that_counts_is_the_one_that_is_shown(server, caplog):
    """Options that another option makes inert were listed as active."""
    environ = {"SGLANG_OEA_K0": "5", "CARPOOL_OEA_K0": "4", "CARPOOL_POLICY": "oea:k0=3"}
    assert specimens.banner(environ) == "OEA enabled: k0=5", "the specimen says something else"
    with caplog.at_level(logging.WARNING):
        settings = from_environment(environ)
        runner, _, _ = server(settings=settings)
    assert "SGLANG_OEA_K0 IS SET AND READ BY NOTHING" in caplog.text and "policy oea:k0=3" in caplog.text
    out = runner.forward(decode([1, 2, 3, 4]))
    assert plugin.host().counters()["policy"] == "oea:k0=3"
    assert torch.equal(out[0], want(glm5(), [1, 2, 3, 4], policy="oea:k0=3")[0])


def test_lesson_0_10_routing_is_not_taken_for_uniform():
    router, by_hand = Router("oea:k0=5", Model(**GPT)), 0
    for seed in range(50):
        logits, _ = draw(16, seed=seed, skew=0.7)
        router.route(logits)
        by_hand += len(set(logits.topk(8).indices.flatten().tolist()))
    measured = router.counters()["distinct_plain"]
    assert measured == by_hand
    assert specimens.expected_unique(256, 8, 16) > 1.2 * measured / 50, "the skew makes no difference"


def test_lesson_0_11_no_version_s_kernels_are_presumed(server):
    """"The fused kernel is not used, its limit is 32 experts per group" held for one month's SGLang."""
    runner, _, _ = server(use_graphs=False)
    assert specimens.fused_kernel_is_used(64, 1) != specimens.fused_kernel_is_used(64, 2), "a rule of sizes alone"
    runner.forward(decode([1, 2, 3, 4]))
    assert counted()["plain_rows.applied"] == 8  # what passes select_experts is re-routed, whatever its sizes
    runner.model.fused = True
    runner.forward(decode([1, 2, 3, 4]))
    assert counted()["plain_rows.applied"] == 8 and any("passed no layer" in why for why in plugin.host().refusals)


def test_lesson_0_12_a_back_end_that_routes_inside_its_kernel_is_refused(server, caplog):
    with caplog.at_level(logging.ERROR):
        runner, seen, _ = server(backend="flashinfer_trtllm")
    runner.model.fused = True
    assert "OEA enabled" in specimens.banner({"SGLANG_OEA_K0": "5"})  # says so whatever the back end
    runner.forward(decode([1, 2, 3, 4]))
    assert seen.captured == [], "a hook on select_experts would have seen something"
    assert "the MoE back end flashinfer_trtllm routes inside its kernel" in caplog.text
