"""vLLM: re-routes what `_compute_routing` of the router layer returns.

BaseRouter.select_experts (vLLM of 2026: model_executor/layers/fused_moe/router) calls it before the capture of routed
experts and before EPLB's map to physical experts. Which rows decode is read from the attention metadata of
each forward context when it is made, and put into the host's buffer on the device, where CUDA graphs find it.

`install_from_environment` is the entry point "vllm.general_plugins", which vLLM loads in every process. Read next: host.py.
"""
from __future__ import annotations

import contextlib
import functools
import inspect
import logging
from typing import Any, Optional

import torch

from ..model import Model
from ..router import DECODE, PAD, PREFILL
from .host import Host, find_module, state_directory
from .settings import Settings, from_environment

log = logging.getLogger("carpool_routing")

ROUTER = "vllm.model_executor.layers.fused_moe.router."
ROUTERS = {"grouped_topk_router": "GroupedTopKRouter", "fused_topk_bias_router": "FusedTopKBiasRouter",
           "fused_topk_router": "FusedTopKRouter"}
CONTEXT = "vllm.forward_context"
RUNNER = "vllm.v1.worker.gpu_model_runner"

_host: Optional[Host] = None


def host() -> Optional[Host]:
    """The state of this worker, once it has run a pass."""
    return _host


def install_from_environment() -> None:
    """Installs the plug-in when CARPOOL_POLICY or CARPOOL_OEA_K0 says so. Raises ValueError on a wrong setting."""
    settings = from_environment()
    if settings is not None:
        install(settings)


def install(settings: Settings) -> None:
    context, runner = find_module(CONTEXT), find_module(RUNNER)
    routers: list[Any] = [getattr(find_module(ROUTER + module), name, None) for module, name in ROUTERS.items()]
    missing = next((m for m in (context, runner) if isinstance(m, ImportError)), None)
    why = None
    if missing:
        why = f"a module that the plug-in needs cannot be imported ({missing}): vLLM has changed"
    elif not all(hasattr(router, "_compute_routing") for router in routers):
        why = f"the routers of {ROUTER[:-1]} have no _compute_routing: vLLM is older than 2026, or has changed"
    elif not (hasattr(context, "create_forward_context") and hasattr(context, "override_forward_context")):
        why = f"{CONTEXT} has no create_forward_context or no override_forward_context: vLLM has changed"
    elif not hasattr(runner.GPUModelRunner, "_dummy_run"):
        why = "GPUModelRunner has no _dummy_run, so warm-up cannot be told from requests: vLLM has changed"
    if why:
        log.error("carpool: NOT RE-ROUTING (vllm, %s): %s", settings.policy, why)
        return
    if getattr(context.create_forward_context, "carpool", False):
        return
    for router in routers:
        router._compute_routing = _hook(router._compute_routing)
    context.create_forward_context = _announced(context.create_forward_context, settings)
    context.override_forward_context = _ended(context.override_forward_context)
    runner.GPUModelRunner._dummy_run = _silent(runner.GPUModelRunner._dummy_run, settings)
    state_directory()  # made here, so that processes started later share it
    log.warning("carpool: installed in vLLM, policy %s", settings.policy)


# ---- The forward context

def _silent(dummy_run: Any, settings: Settings) -> Any:
    """Profiling, warm-up and graph capture: made-up rows, which must count nowhere; graphs take the program in."""

    @functools.wraps(dummy_run)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        own = _host_of(settings, self.device, getattr(self, "vllm_config", None))
        own.serving = False
        try:
            return dummy_run(self, *args, **kwargs)
        finally:
            own.serving = True

    return method


def _host_of(settings: Settings, device: Any, config: Any) -> Host:
    """The worker's state, made at its first pass of any kind."""
    global _host
    if _host is None:
        rank = getattr(getattr(config, "parallel_config", None), "rank", 0)
        _host = Host("vllm", settings, device, publish=not rank)
        _host.serving = True
    return _host


def _announced(create: Any, settings: Settings) -> Any:
    signature = inspect.signature(create)

    @functools.wraps(create)
    def create_forward_context(*args: Any, **kwargs: Any) -> Any:
        context = create(*args, **kwargs)
        given = signature.bind(*args, **kwargs).arguments
        _announce(settings, context, given.get("vllm_config"))
        return context

    create_forward_context.carpool = True  # type: ignore[attr-defined]
    return create_forward_context


def _ended(override: Any) -> Any:
    """set_forward_context leaves this one when the forward pass was started."""

    @contextlib.contextmanager
    def override_forward_context(context: Any) -> Any:
        own, before = _host, _host.layer_calls if _host else 0
        with override(context):
            yield
        if own is None or own.rows is None:
            return
        graph = getattr(getattr(context, "cudagraph_runtime_mode", None), "name", "NONE")
        if own.decodes and (own.layer_calls == 0 or (own.layer_calls == before and graph == "NONE")):
            own.refuse("a decode step passed no layer through the router's select_experts: the MoE kernel routes inside "
                       "itself; choose a back end that takes expert ids")
        own.end()

    return override_forward_context


def _announce(settings: Settings, context: Any, config: Any) -> None:
    """Says to the host which rows decode. A pass without metadata is one of warm-up or profiling."""
    metadata = _metadata_of(context)
    if metadata is None:
        return
    start = metadata.query_start_loc
    own = _host_of(settings, start.device, config)
    if not own.serving:
        return
    rows = int(metadata.num_actual_tokens)
    descriptor = getattr(context, "batch_descriptor", None)
    padded = max(rows, int(getattr(descriptor, "num_tokens", 0) or 0))
    why = _unfit(context, config)
    if why:
        own.refuse(why)
        return own.begin(padded, "unsupported")
    if int(metadata.max_query_len) == 1:
        return own.begin(padded, real=rows)
    own.begin_with(_flags(start, rows, padded))


def _metadata_of(context: Any) -> Any:
    """The attention metadata of some layer: all of a batch have the same rows. None in warm-up."""
    metadata = context.attn_metadata
    if isinstance(metadata, list):  # one dictionary per micro-batch
        return None
    if isinstance(metadata, dict):
        metadata = next((m for m in metadata.values() if hasattr(m, "query_start_loc")), None)
    return metadata if hasattr(metadata, "query_start_loc") else None


def _unfit(context: Any, config: Any) -> Optional[str]:
    if getattr(context, "dp_metadata", None) is not None:
        return "data-parallel ranks exchange rows inside the expert layer"
    if getattr(context, "ubatch_slices", None):
        return "the batch is split into micro-batches"
    if getattr(config, "speculative_config", None) is not None:
        return "with speculative decoding the draft model's rows cannot be told from the target's"
    return None


def _flags(start: torch.Tensor, rows: int, padded: int) -> torch.Tensor:
    """Row flags from where each request's rows start: requests with one row decode. A prompt's last single token cannot be
    told from them."""
    index = torch.arange(padded, device=start.device)
    request = torch.searchsorted(start[1:].contiguous(), index, right=True).clamp(max=max(0, len(start) - 2))
    single = (start[1:] - start[:-1])[request] == 1
    flags = torch.where(single, DECODE, PREFILL)
    return torch.where(index < rows, flags, PAD).to(torch.uint8)


# ---- The hook

def _hook(inner: Any) -> Any:
    @functools.wraps(inner)
    def compute_routing(self: Any, hidden_states: Any, router_logits: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        weights, ids = inner(self, hidden_states, router_logits, *args, **kwargs)
        if _host is None or torch.compiler.is_compiling():
            return weights, ids
        model, why = model_of(self, router_logits.shape[-1], ids.shape[-1])
        if why or model is None:
            _host.layer_calls += 1
            if _host.decodes:
                _host.refuse(why or "unknown")
            return weights, ids
        bias = getattr(self, "e_score_correction_bias", None)
        ids, weights = _host.rewrite(model, router_logits, ids, weights, bias)
        return weights, ids

    return compute_routing


def model_of(router: Any, n_experts: int, columns: int) -> tuple[Optional[Model], Optional[str]]:
    """A router layer to Model, or why there is none."""
    if getattr(router, "_hash_indices_table", None) is not None:
        return None, "the layer takes its experts from a table of token ids"
    if router.scoring_func not in ("softmax", "sigmoid"):
        return None, f"the scoring function {router.scoring_func} is not one of softmax and sigmoid"
    scale = float(getattr(router, "routed_scaling_factor", 1.0) or 1.0)
    common = dict(n_experts=n_experts, top_k=router.top_k, scoring=router.scoring_func, renormalize=router.renormalize,
                  routed_scaling_factor=scale, n_shared=columns - router.top_k, filler="repeat")
    groups = getattr(router, "num_expert_group", None) or 1
    if groups == 1:
        return Model(**common), None
    if n_experts <= groups or n_experts % groups:
        return None, f"{groups} groups do not divide {n_experts} experts"
    biased = router.e_score_correction_bias is not None
    return Model(n_group=groups, topk_group=router.topk_group or 1, group_score="top2" if biased else "max", **common), None
