"""The plug-in in a server with SGLang's interfaces (stub_sglang.py): it runs in decode, not in prefill, and says so."""
import asyncio
import json
import logging
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import stub_sglang as stub  # noqa: E402  (needs torch)
from carpool_routing import Model, Router  # noqa: E402
from carpool_routing.plugins import sglang as plugin  # noqa: E402
from carpool_routing.plugins.settings import Settings  # noqa: E402
from stub_sglang import Dispatch, ForwardBatch, ForwardMode, PaddingMode, TopKConfig  # noqa: E402

E, K = 64, 8
POLICY = "oea:k0=3"


def table(rows=40, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((rows, E)).astype(np.float32))


def bias():
    return torch.from_numpy((7 + np.random.default_rng(1).random(E) / 4).astype(np.float32))


def glm5(**changes):
    """A GLM-5-like layer: biased sigmoid, scaled weights, a fused shared expert in the last column."""
    config = dict(top_k=K + 1, use_grouped_topk=True, topk_group=1, num_expert_group=1, num_fused_shared_experts=1,
                  correction_bias=bias(), routed_scaling_factor=2.5, apply_routed_scaling_factor_on_output=True)
    return TopKConfig(**{**config, **changes})


@pytest.fixture
def server(monkeypatch, tmp_path):
    """start(config, ...) -> (runner, seen, app), with the plug-in installed."""
    monkeypatch.setenv("CARPOOL_STATE_DIR", str(tmp_path))
    monkeypatch.setattr(plugin, "_host", None)

    def start(config=None, settings=Settings(POLICY), **options):
        topk, runner, app, seen = stub.install_stub(monkeypatch)
        seen.backend = options.pop("backend", "triton")
        plugin.install(settings)
        made = runner.ModelRunner((config or glm5(), table()), **options)
        seen.captured.clear()
        return made, seen, app

    return start


def decode(tokens, **more):
    return ForwardBatch(ForwardMode.DECODE, torch.as_tensor(tokens), **more)


def counted():
    return plugin.host().counters()["counters"]


def want(config, tokens, layer=0, policy=POLICY, flags=None):
    """What the core makes of a layer: (ids, weights) of the routed columns."""
    model, why = plugin.model_of(config, E, config.top_k)
    assert why is None
    logits = table()[torch.as_tensor(tokens)] + layer
    routed = Router(policy, model).route(logits, bias=config.correction_bias, row_flags=flags)
    return routed.ids, routed.weights


def test_the_counter_moves_in_decode_and_stays_still_in_prefill(server):
    runner, _, _ = server()
    prompt = ForwardBatch(ForwardMode.EXTEND, torch.arange(20), extend_seq_lens_cpu=[12, 8])
    runner.forward(prompt)
    assert counted()["plain_rows.applied"] == 0 and counted()["rerouted_rows"] == 0
    for step in range(1, 4):
        runner.forward(decode([1, 2, 3, 4, 5]))
        assert counted()["calls"] == 2 * step and counted()["plain_rows.applied"] == 10 * step
    before = counted()
    assert before["rerouted_rows"] > 0 and before["distinct_experts"] < before["distinct_plain"]
    runner.forward(prompt)
    assert counted() == before and plugin.host().counters()["left_plain"] == {"phase": 2}


@pytest.mark.parametrize("use_graphs", [False, True])
def test_decode_gets_the_experts_and_weights_of_the_core(server, use_graphs):
    config = glm5()
    runner, _, _ = server(config, use_graphs=use_graphs)
    tokens = [3, 9, 12, 20, 31, 7, 8]  # seven rows in a graph for eight
    out = runner.forward(decode(tokens))
    for layer in range(2):
        ids, weights = want(config, tokens, layer)
        assert torch.equal(out[2 * layer], ids)
        np.testing.assert_array_max_ulp(out[2 * layer + 1][:, :K].numpy(), weights[:, :K].numpy(), 1)
        assert (out[2 * layer][:, K] == E).all() and (out[2 * layer + 1][:, K] == 1).all()  # the shared expert
    assert counted()["plain_rows.applied"] == 14


def test_prompts_get_the_engines_own_bits(server):
    config = glm5()
    runner, _, _ = server(config)
    tokens = torch.arange(20)
    out = runner.forward(ForwardBatch(ForwardMode.EXTEND, tokens, extend_seq_lens_cpu=[20]))
    weights, ids = stub.plain_choice(table()[tokens], config)
    assert torch.equal(out[0], ids) and torch.equal(out[1], weights)


def test_a_mixed_batch_re_routes_its_decode_rows_only(server):
    config = glm5()
    runner, _, _ = server(config)
    tokens = list(range(12))
    out = runner.forward(ForwardBatch(ForwardMode.MIXED, torch.as_tensor(tokens), extend_seq_lens_cpu=[9, 1, 1, 1]))
    flags = torch.tensor([1] * 9 + [0] * 3, dtype=torch.uint8)
    assert torch.equal(out[0][9:], want(config, tokens, flags=flags)[0][9:])
    assert torch.equal(out[0][:9], stub.plain_choice(table()[torch.as_tensor(tokens)], config)[1][:9])
    assert counted()["plain_rows.applied"] == 6 and counted()["plain_rows.phase"] == 18


def test_verified_rows_are_decode_rows(server):
    runner, _, _ = server()
    runner.forward(ForwardBatch(ForwardMode.TARGET_VERIFY, torch.arange(6)))
    assert counted()["plain_rows.applied"] == 12


@pytest.mark.parametrize("mode", ["IDLE", "DRAFT_EXTEND_V2", "PREBUILT", "SPLIT_PREFILL", "DLLM_EXTEND"])
def test_other_modes_stay_plain(server, mode):
    runner, _, _ = server()
    runner.forward(ForwardBatch(ForwardMode[mode], torch.arange(6)))
    assert counted()["plain_rows.applied"] == 0 and plugin.host().refusals == {}


def test_a_graphs_padding_influences_nobody(server):
    """The pad row's token is a real row of the table: had it a say, more experts would be in the union."""
    runner, _, _ = server(glm5(), use_graphs=True)
    tokens = [3, 9, 12, 20, 31]
    in_graph = runner.forward(decode(tokens))
    graphs, runner.graph_runner = runner.graph_runner, None
    eager = runner.forward(decode(tokens))
    assert all(torch.equal(a, b) for a, b in zip(in_graph, eager))
    with_pads = want(glm5(), tokens + [graphs.pad_token] * 3)[0][:5]
    assert not torch.equal(with_pads, eager[0]), "padding would not have been noticed"


def test_warm_up_and_capture_count_nowhere(server):
    server(use_graphs=True)
    assert plugin.host().layer_calls > 0 and set(plugin.host().counters()["counters"].values()) == {0}


def test_rows_that_the_engine_calls_padding_do_not_lend(server):
    runner, _, _ = server()
    runner.model.pass_real_rows = True
    batch = decode([3, 9, 12, 20, 31, 7], num_token_non_padded=torch.tensor(5))
    out = runner.forward(batch)
    assert torch.equal(out[0][:5], want(glm5(), [3, 9, 12, 20, 31])[0]) and (out[0][5:] == -1).all()


def test_ids_are_logical_where_they_are_re_routed_and_recorded(server):
    """EPLB's map and the capture of routed experts come after the plug-in: they see what really runs."""
    config = glm5(num_fused_shared_experts=0, top_k=K)
    runner, seen, _ = server(config)
    runner.model.dispatch = Dispatch(torch.arange(E).flip(0) + 100)
    tokens = [3, 9, 12, 20]
    out = runner.forward(decode(tokens))
    ids, _ = want(config, tokens)
    assert torch.equal(seen.captured[0], ids) and torch.equal(out[0], (E - 1 - ids) + 100)


def test_dp_attention_takes_the_union_of_all_ranks(server):
    runner, _, _ = server()
    rows = [3, 9, 12, 20, 31, 7]
    gathered = decode(rows, global_num_tokens_cpu=[2, 4], dp_padding_mode=PaddingMode.SUM_LEN)
    out = runner.forward(gathered)
    assert torch.equal(out[0], want(glm5(), rows)[0])
    padded = decode([3, 9, 0, 0, 12, 20, 31, 7], global_num_tokens_cpu=[2, 4], dp_padding_mode=PaddingMode.MAX_LEN)
    out = runner.forward(padded)
    assert torch.equal(out[0][[0, 1, 4, 5, 6, 7]], want(glm5(), rows)[0])
    before = counted()
    runner.forward(decode(rows, global_num_tokens_cpu=[2, 4], is_extend_in_batch=True))
    assert counted() == before


@pytest.mark.parametrize("backend", plugin.FUSED_BACKENDS)
def test_fused_back_ends_are_refused_by_name(server, caplog, backend):
    with caplog.at_level(logging.ERROR):
        runner, _, _ = server(backend=backend)
    assert f"NOT RE-ROUTING (sglang, {POLICY}): the MoE back end {backend} routes inside its kernel" in caplog.text


def test_a_decode_step_that_no_layer_passed_is_said_once(server, caplog):
    runner, _, _ = server(backend="some_new_kernel")
    runner.model.fused = True
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            runner.forward(decode([1, 2, 3]))
    assert caplog.text.count("passed no layer through select_experts; the MoE back end is some_new_kernel") == 1
    assert sum(plugin.host().refusals.values()) == 3


@pytest.mark.parametrize("changes, why", [
    (dict(use_grouped_topk=False, scoring_func="sqrtsoftplus"), "the scoring function sqrtsoftplus"),
    (dict(use_grouped_topk=False, custom_routing_function=lambda **_: None), "routes with a function of its own"),
    (dict(use_grouped_topk=False), "a selection bias on softmax scores"),
    (dict(renormalize=False), "the weight of a fused shared expert depends on the others"),
])
def test_what_cannot_be_re_routed_is_left_alone_and_said(server, caplog, changes, why):
    runner, _, _ = server()
    runner.model.config = glm5(**changes)
    with caplog.at_level(logging.ERROR):
        out = runner.forward(decode([1, 2, 3]))
    weights, ids = stub.plain_choice(table()[torch.tensor([1, 2, 3])], runner.model.config)
    assert why in caplog.text and torch.equal(out[0], ids) and torch.equal(out[1], weights)
    assert counted()["calls"] == 0


def test_rows_that_do_not_sum_as_configured_are_left_alone(server):
    """A back end that scales although the configuration does not say so must not be halved or doubled."""
    runner, _, _ = server()
    runner.model.config = glm5()
    plain = stub.plain_choice
    try:
        stub.plain_choice = lambda logits, config: (lambda w, i: (w * 2, i))(*plain(logits, config))
        out = runner.forward(decode([1, 2, 3]))
    finally:
        stub.plain_choice = plain
    assert torch.equal(out[0], plain(table()[torch.tensor([1, 2, 3])], glm5())[1])
    assert counted()["plain_rows.isolated"] == 6 and counted()["plain_rows.applied"] == 0


def test_draft_models_and_large_steps_stay_plain(server):
    runner, _, _ = server(settings=Settings(POLICY, max_rows=8))
    runner.forward(decode(list(range(9))))
    assert counted()["calls"] == 0 and plugin.host().counters()["left_plain"] == {"max_rows": 1}
    target = plugin.host()
    draft = type(runner)((glm5(), table()), is_draft_worker=True)
    draft.forward(decode([1, 2, 3]))
    assert plugin.host() is target and counted()["calls"] == 0


def test_a_graph_runner_without_the_hooks_is_said(server, caplog, monkeypatch):
    monkeypatch.delattr(stub.GraphRunner, "replay_prepare")
    with caplog.at_level(logging.ERROR):
        server(use_graphs=True)
    assert "ModelRunner.graph_runner has no replay_prepare or no replay" in caplog.text


def test_an_older_sglang_is_refused(monkeypatch, caplog, tmp_path):
    monkeypatch.setenv("CARPOOL_STATE_DIR", str(tmp_path))
    stub.install_stub(monkeypatch, without_hook=True)
    with caplog.at_level(logging.ERROR):
        plugin.install(Settings(POLICY))
    assert "SGLang is older than 2026-02-23" in caplog.text


@pytest.mark.parametrize("name", [plugin.TOPK, plugin.RUNNER])
def test_an_sglang_that_moved_its_modules_is_refused(monkeypatch, caplog, tmp_path, name):
    monkeypatch.setenv("CARPOOL_STATE_DIR", str(tmp_path))
    stub.install_stub(monkeypatch)
    monkeypatch.setitem(sys.modules, name, None)  # importing it raises ModuleNotFoundError
    with caplog.at_level(logging.ERROR):
        plugin.install(Settings(POLICY))
    assert f"NOT RE-ROUTING (sglang, {POLICY}): {name} cannot be imported" in caplog.text


def test_a_policy_that_does_not_fit_is_said(server, caplog):
    runner, _, _ = server(settings=Settings("oea:k0=9"))
    with caplog.at_level(logging.ERROR):
        runner.forward(decode([1, 2, 3]))
    assert "k0 9 is more than the model's 8 experts per token" in caplog.text


def test_a_policy_with_more_columns_than_the_engine_has_is_said(server, caplog):
    """Nor does it end the server in its first step."""
    with caplog.at_level(logging.ERROR):
        runner, _, _ = server(settings=Settings("oea:k0=3,k_max=12"))
        out = runner.forward(decode([1, 2, 3]))
    assert torch.equal(out[0], stub.plain_choice(table()[torch.tensor([1, 2, 3])], glm5())[1])
    assert caplog.text.count("oea:k0=3,k_max=12 needs 13 columns where the engine's rows have 9") == 1
    assert counted()["calls"] == 0


# ---- Over the server's port

def ask(app, method, path, body=b"", headers=()):
    """One request to the application: (status, text)."""
    got = []

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        got.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": list(headers)}
    asyncio.run(app.outer(scope, receive, send))
    body = b"".join(m.get("body", b"") for m in got[1:])
    assert dict(got[0]["headers"])[b"content-length"] == str(len(body)).encode()
    return got[0]["status"], body.decode()


def test_the_server_shows_the_counters(server, monkeypatch):
    monkeypatch.setenv("CARPOOL_POLICY", POLICY)
    runner, _, app = server()
    runner.forward(decode([1, 2, 3, 4]))
    plugin.host().publish()
    status, page = ask(app, "GET", "/metrics")
    assert status == 200 and page.startswith("sglang:num_running_reqs 0.0\n")
    assert 'carpool:moe_rows_total{reason="applied"} 8\n' in page
    assert 'carpool:moe_layer_steps_total{steps="decode"} 2\n' in page
    assert f'carpool:moe_distinct_experts_total{{steps="decode"}} {counted()["distinct_experts"]}\n' in page
    status, page = ask(app, "GET", "/carpool")
    shown = json.loads(page)
    assert shown["policy"] == POLICY and shown["workers"][0]["counters"] == counted()
    assert ask(app, "GET", "/health") == (404, "not found")


@pytest.mark.parametrize("use_graphs", [False, True])
def test_an_operator_switches_between_plain_and_the_policy(server, monkeypatch, use_graphs):
    monkeypatch.setenv("CARPOOL_POLICY", POLICY)
    runner, _, app = server(use_graphs=use_graphs)
    key = [(b"authorization", b"Bearer secret")]
    assert ask(app, "GET", "/admin/policy", headers=key)[0] == 403  # no key is set
    monkeypatch.setenv("CARPOOL_ADMIN_KEY", "secret")
    assert ask(app, "GET", "/admin/policy")[0] == 401
    assert json.loads(ask(app, "GET", "/admin/policy", headers=key)[1]) == {"policy": POLICY}
    status, text = ask(app, "POST", "/admin/policy", b'{"policy": "oea:k0=1"}', key)
    assert status == 400 and f"topk or {POLICY}" in text
    assert ask(app, "POST", "/admin/policy", b"nonsense", key)[0] == 400
    tokens = [3, 9, 12, 20, 31]
    assert ask(app, "POST", "/admin/policy", b'{"policy": "topk"}', key) == (200, '{"policy": "topk"}')
    plain = runner.forward(decode(tokens))
    weights, ids = stub.plain_choice(table()[torch.tensor(tokens)], glm5())
    assert torch.equal(plain[0], ids) and torch.equal(plain[1], weights) and counted()["calls"] == 0
    assert plugin.host().counters()["left_plain"] == {"off": 1}
    ask(app, "POST", "/admin/policy", f'{{"policy": "{POLICY}"}}'.encode(), key)
    assert torch.equal(runner.forward(decode(tokens))[0], want(glm5(), tokens)[0]) and counted()["calls"] == 2
