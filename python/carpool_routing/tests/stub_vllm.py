"""A worker with vLLM's interfaces, as far as the plug-in touches them.

Names, parameters and order are those of vLLM of mid-2026 (main): model_executor/layers/fused_moe/router (BaseRouter.select_experts:
_compute_routing, capture, EPLB map, dtype; the three routers and their attributes), forward_context.py
(set_forward_context, create_forward_context, override_forward_context, BatchDescriptor) and v1/worker/gpu_model_runner.py
(GPUModelRunner._dummy_run). What is computed is written for these tests.
"""
from __future__ import annotations

import contextlib
import sys
import types
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

import torch


@dataclass
class AttentionMetadata:
    num_actual_tokens: int
    max_query_len: int
    query_start_loc: torch.Tensor


class BatchDescriptor(NamedTuple):
    num_tokens: int
    uniform: bool = False


@dataclass
class ForwardContext:
    attn_metadata: Any
    dp_metadata: Any = None
    batch_descriptor: Optional[BatchDescriptor] = None
    ubatch_slices: Any = None


def make_context() -> types.ModuleType:
    module = types.ModuleType("vllm.forward_context")

    def create_forward_context(attn_metadata, vllm_config, dp_metadata=None, batch_descriptor=None, ubatch_slices=None):
        return ForwardContext(attn_metadata, dp_metadata, batch_descriptor, ubatch_slices)

    @contextlib.contextmanager
    def override_forward_context(forward_context):
        yield

    @contextlib.contextmanager
    def set_forward_context(attn_metadata, vllm_config, **more):
        with module.override_forward_context(module.create_forward_context(attn_metadata, vllm_config, **more)):
            yield

    module.create_forward_context, module.override_forward_context = create_forward_context, override_forward_context
    module.set_forward_context = set_forward_context
    return module


class BaseRouter:
    """select_experts in the order of the published one."""

    def __init__(self, top_k, **more):
        self.top_k, self.capture_fn, self.eplb = top_k, None, None
        self.scoring_func, self.renormalize, self.routed_scaling_factor = "softmax", True, 1.0
        self.e_score_correction_bias = None
        for name, value in more.items():
            setattr(self, name, value)

    def select_experts(self, hidden_states, router_logits):
        weights, ids = self._compute_routing(hidden_states, router_logits, None)
        if self.capture_fn is not None:
            self.capture_fn(ids)
        if self.eplb is not None:
            ids = self.eplb[ids.long()].to(torch.int32)
        return weights, ids

    def choose(self, logits):
        scores = torch.sigmoid(logits.double()) if self.scoring_func == "sigmoid" else torch.softmax(logits.double(), -1)
        scores = scores.float()
        ranked = scores if self.e_score_correction_bias is None else scores + self.e_score_correction_bias
        ids = ranked.sort(dim=-1, descending=True, stable=True).indices[:, : self.top_k].sort(-1).values
        weights = scores.gather(-1, ids)
        if self.renormalize:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights * self.routed_scaling_factor, ids.to(torch.int32)


def make_routers() -> list[types.ModuleType]:
    modules = []
    for name, class_name in (("grouped_topk_router", "GroupedTopKRouter"), ("fused_topk_bias_router", "FusedTopKBiasRouter"),
                             ("fused_topk_router", "FusedTopKRouter")):
        def _compute_routing(self, hidden_states, router_logits, indices_type, *, input_ids=None):
            return self.choose(router_logits)

        module = types.ModuleType("vllm.model_executor.layers.fused_moe.router." + name)
        setattr(module, class_name, type(class_name, (BaseRouter,), {"_compute_routing": _compute_routing}))
        modules.append(module)
    return modules


class Worker:
    """GPUModelRunner: one router layer whose logits are the rows of a table."""

    def __init__(self, context, router, table, config=None):
        self.context, self.router, self.table = context, router, table
        self.config = config or types.SimpleNamespace(speculative_config=None, parallel_config=types.SimpleNamespace(rank=0))
        self.vllm_config, self.device, self.fused = self.config, torch.device("cpu"), False

    def execute(self, tokens, lengths=None, padded=None, **more):
        """tokens: of all requests, one after the other; lengths: rows of each request, default one."""
        lengths = lengths or [1] * len(tokens)
        start = torch.tensor([0] + lengths).cumsum(0).to(torch.int32)
        rows = list(tokens) + [0] * ((padded or len(tokens)) - len(tokens))
        metadata = {"layer.0": AttentionMetadata(len(tokens), max(lengths), start)}
        if padded:
            more["batch_descriptor"] = BatchDescriptor(padded)
        with self.context.set_forward_context(metadata, self.config, **more):
            return self._forward(rows)

    def _forward(self, rows):
        logits = self.table[torch.tensor(rows)]
        return (None, None) if self.fused else self.router.select_experts(logits, logits)

    def _dummy_run(self, rows, with_metadata=True):
        metadata = None if not with_metadata else {"layer.0": AttentionMetadata(rows, 1, torch.arange(rows + 1, dtype=torch.int32))}
        with self.context.set_forward_context(metadata, self.config):
            return self._forward([0] * rows)


def install_stub(monkeypatch):
    """Puts the stub's modules in place of vllm's. Returns (context module, router classes by name, runner class)."""
    context, routers, runner = make_context(), make_routers(), types.ModuleType("vllm.v1.worker.gpu_model_runner")
    runner.GPUModelRunner = type("GPUModelRunner", (Worker,), {"_dummy_run": Worker._dummy_run})
    for module in (context, runner, *routers):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in ("vllm", "vllm.v1", "vllm.v1.worker", "vllm.model_executor", "vllm.model_executor.layers",
                 "vllm.model_executor.layers.fused_moe", "vllm.model_executor.layers.fused_moe.router"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    classes = {name: value for module in routers for name, value in vars(module).items() if name.endswith("Router")}
    return context, classes, runner.GPUModelRunner
