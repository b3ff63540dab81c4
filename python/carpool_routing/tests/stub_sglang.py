"""A server with SGLang's interfaces, as far as the plug-in touches them.

Names, parameters and the order of things in select_experts are those of SGLang of mid-July 2026 (main, after PR 16945 of
2026-02-23): layers/moe/topk.py (TopKConfig, select_experts, _post_process_topk_ids), model_executor/model_runner.py
(ModelRunner.initialize, load_model, is_draft_worker, tp_rank), forward_batch_info.py (ForwardMode, ForwardBatch) and
the graph runners' replay_prepare and replay. What is computed is written for these tests. A graph is what make_fx records: as
with CUDA graphs, replaying it runs no Python and reads the same buffers.
"""
from __future__ import annotations

import sys
import types
from dataclasses import dataclass, field
from enum import IntEnum, auto
from typing import Any, Callable, NamedTuple, Optional

import torch


class ForwardMode(IntEnum):
    EXTEND = auto()
    DECODE = auto()
    MIXED = auto()
    IDLE = auto()
    TARGET_VERIFY = auto()
    DRAFT_EXTEND_V2 = auto()
    PREBUILT = auto()
    SPLIT_PREFILL = auto()
    DLLM_EXTEND = auto()


class PaddingMode(IntEnum):
    MAX_LEN = auto()
    SUM_LEN = auto()

    def is_max_len(self):
        return self == PaddingMode.MAX_LEN


@dataclass
class ForwardBatch:
    forward_mode: ForwardMode
    input_ids: torch.Tensor
    extend_seq_lens_cpu: Optional[list[int]] = None
    num_token_non_padded: Optional[torch.Tensor] = None
    num_token_non_padded_cpu: Optional[int] = None
    global_num_tokens_cpu: Optional[list[int]] = None
    is_extend_in_batch: bool = False
    dp_padding_mode: Optional[PaddingMode] = None


@dataclass
class TopKConfig:
    top_k: int
    use_grouped_topk: bool = False
    topk_group: Optional[int] = None
    num_expert_group: Optional[int] = None
    renormalize: bool = True
    num_fused_shared_experts: int = 0
    custom_routing_function: Optional[Callable] = None
    correction_bias: Optional[torch.Tensor] = None
    torch_native: bool = False
    routed_scaling_factor: Optional[float] = None
    apply_routed_scaling_factor_on_output: bool = False
    fused_shared_experts_scaling_factor: Optional[float] = None
    output_format: Optional[Any] = None
    scoring_func: str = "softmax"


class StandardTopKOutput(NamedTuple):
    topk_weights: torch.Tensor
    topk_ids: torch.Tensor
    router_logits: torch.Tensor


@dataclass
class Dispatch:
    """expert_location_dispatch_info: logical id -> physical id."""

    table: torch.Tensor
    ep_dispatch_algorithm: str = "static"


@dataclass
class Seen:
    """What the rest of the engine got to see."""

    captured: list[torch.Tensor] = field(default_factory=list)  # logical ids, for return_routed_experts
    backend: str = "triton"


def plain_choice(logits, config):
    """The engine's own routing: unsorted, shared slot last, scaled where it says so."""
    E, shared = logits.shape[-1], config.num_fused_shared_experts
    biased = config.correction_bias is not None
    sigmoid = biased if config.use_grouped_topk else config.scoring_func == "sigmoid"
    scores = torch.sigmoid(logits.double()).float() if sigmoid else torch.softmax(logits.double(), -1).float()
    ranked = scores + config.correction_bias if biased else scores
    best = ranked.sort(dim=-1, descending=True, stable=True).indices[:, : config.top_k - shared]
    ids = best.sort(-1).values  # by id, as a radix select without sorting leaves them
    weights = scores.gather(-1, ids)
    if config.renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    scale = config.routed_scaling_factor or 1.0
    if config.apply_routed_scaling_factor_on_output:
        weights = weights * scale
    if shared:
        own = 1.0 if config.apply_routed_scaling_factor_on_output else 1.0 / scale
        ids = torch.cat([ids, torch.full_like(ids[:, :1], E)], -1)
        weights = torch.cat([weights, torch.full_like(weights[:, :1], own)], -1)
    return weights, ids.to(torch.int32)


def make_topk(seen: Seen) -> types.ModuleType:
    module = types.ModuleType("sglang.srt.layers.moe.topk")
    module.TopKConfig, module.StandardTopKOutput = TopKConfig, StandardTopKOutput

    def _post_process_topk_ids(topk_ids, topk_weights, topk_config, router_logits, layer_id, num_token_non_padded=None,
                               expert_location_dispatch_info=None):
        seen.captured.append(topk_ids)
        if expert_location_dispatch_info is not None:
            topk_ids = expert_location_dispatch_info.table[topk_ids.long()].to(torch.int32)
        if num_token_non_padded is not None:
            pad = torch.arange(len(topk_ids)) >= num_token_non_padded
            topk_ids = topk_ids.masked_fill(pad.unsqueeze(-1), -1)
        return topk_ids, topk_weights

    def select_experts(hidden_states, router_logits, topk_config, *, layer_id=None, num_token_non_padded=None,
                       expert_location_dispatch_info=None):
        weights, ids = plain_choice(router_logits, topk_config)
        ids, weights = module._post_process_topk_ids(
            topk_ids=ids, topk_weights=weights, topk_config=topk_config, router_logits=router_logits,
            layer_id=layer_id, num_token_non_padded=num_token_non_padded,
            expert_location_dispatch_info=expert_location_dispatch_info)
        return StandardTopKOutput(weights, ids, router_logits)

    module._post_process_topk_ids, module.select_experts = _post_process_topk_ids, select_experts
    return module


class MoeModel(torch.nn.Module):
    """`layers` MoE layers whose router logits are the rows of a table, chosen by the token."""

    def __init__(self, topk: types.ModuleType, config: TopKConfig, table: torch.Tensor, layers: int = 2):
        super().__init__()
        self.topk, self.config, self.layers = topk, config, layers
        self.table = torch.nn.Parameter(table, requires_grad=False)
        self.fused = False  # a back end that routes inside its kernel
        self.dispatch: Optional[Dispatch] = None
        self.pass_real_rows = False

    def logits(self, input_ids):
        return self.table[input_ids]

    def forward(self, input_ids, positions, forward_batch):
        out = []
        for layer in range(self.layers):
            logits = self.logits(input_ids) + layer
            if self.fused:
                out.append(logits)
                continue
            real = forward_batch.num_token_non_padded if self.pass_real_rows else None
            chosen = self.topk.select_experts(logits, logits, self.config, layer_id=layer, num_token_non_padded=real,
                                              expert_location_dispatch_info=self.dispatch)
            out += [chosen.topk_ids, chosen.topk_weights]
        return tuple(out)


class GraphRunner:
    """Graphs for a few sizes; batches are padded up to the next one with a token that is not theirs."""

    def __init__(self, runner, sizes=(8,), pad_token=0):
        from torch.fx.experimental.proxy_tensor import make_fx

        self.runner, self.sizes = runner, sizes
        self.input_ids = torch.full((max(sizes),), pad_token)
        self.pad_token, self.graphs = pad_token, {}
        for size in sizes:
            batch = ForwardBatch(ForwardMode.DECODE, self.input_ids[:size])
            self.runner.model.forward(batch.input_ids, None, batch)  # warm-up, as before a capture
            self.graphs[size] = make_fx(self._program(batch))(self.input_ids[:size])

    def _program(self, batch):
        return lambda input_ids: self.runner.model.forward(input_ids, None, batch)

    def can_run(self, forward_batch):
        decode = forward_batch.forward_mode in (ForwardMode.DECODE, ForwardMode.TARGET_VERIFY)
        return decode and len(forward_batch.input_ids) <= max(self.sizes)

    def replay_prepare(self, forward_batch, **kwargs):
        self.raw = len(forward_batch.input_ids)
        self.input_ids.fill_(self.pad_token)
        self.input_ids[: self.raw].copy_(forward_batch.input_ids)

    def replay(self, forward_batch, skip_attn_backend_init=False):
        self.replay_prepare(forward_batch)
        size = next(s for s in self.sizes if s >= self.raw)
        return tuple(x[: self.raw] for x in self.graphs[size](self.input_ids[:size]))


def make_runner(topk: types.ModuleType) -> types.ModuleType:
    module = types.ModuleType("sglang.srt.model_executor.model_runner")

    class ModelRunner:
        def __init__(self, model_args, *, use_graphs=False, is_draft_worker=False, tp_rank=0):
            self.model_args, self.use_graphs, self.graph_runner = model_args, use_graphs, None
            self.is_draft_worker, self.tp_rank = is_draft_worker, tp_rank
            self.initialize(0)

        def initialize(self, pre_model_load_memory):
            self.load_model()
            if self.use_graphs:
                self.graph_runner = GraphRunner(self)

        def load_model(self):
            self.model = MoeModel(topk, *self.model_args)

        def forward(self, forward_batch):
            if self.graph_runner is not None and self.graph_runner.can_run(forward_batch):
                return self.graph_runner.replay(forward_batch)
            return self.model.forward(forward_batch.input_ids, None, forward_batch)

    module.ModelRunner = ModelRunner
    return module


class App:
    """The server's ASGI application: a page of metrics and nothing else."""

    def __init__(self):
        self.outer = self._inner

    def add_middleware(self, middleware):
        self.outer = middleware(self.outer)

    async def _inner(self, scope, receive, send):
        found = scope["path"] == "/metrics"
        body = b"sglang:num_running_reqs 0.0\n" if found else b"not found"
        await send({"type": "http.response.start", "status": 200 if found else 404,
                    "headers": [(b"content-length", str(len(body)).encode())]})
        await send({"type": "http.response.body", "body": body})


def install_stub(monkeypatch, *, without_hook: bool = False):
    """Puts the stub's modules in place of sglang's. Returns (topk module, model runner module, app, Seen)."""
    seen = Seen()
    topk = make_topk(seen)
    if without_hook:
        del topk._post_process_topk_ids
    runner, server, app = make_runner(topk), types.ModuleType("sglang.srt.entrypoints.http_server"), App()
    server.app = app
    moe = types.ModuleType("sglang.srt.layers.moe")
    moe.get_moe_runner_backend = lambda: types.SimpleNamespace(value=seen.backend)
    for module in (topk, runner, server, moe):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in ("sglang", "sglang.srt", "sglang.srt.layers", "sglang.srt.model_executor", "sglang.srt.entrypoints"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    return topk, runner, app, seen
