"""SGLang: re-routes between scoring and `_post_process_topk_ids` of select_experts.

That function (SGLang from 2026-02-23, commit 6448de7e, on) is the first that a layer's choice passes: before the capture
of routed experts, the logical-to-physical map of EPLB and the -1 of padded rows. The forward batch comes from
the model's own forward call, which every path has (eager, graph capture, warm-up), and before a graph's replay from
`replay_prepare`; no context that may be absent is asked. Draft models are left alone.

`install_from_environment` is the entry point "sglang.srt.plugins". Read next: host.py.
"""
from __future__ import annotations

import functools
import importlib
import inspect
import logging
import multiprocessing
from typing import Any, Optional

import torch

from ..model import Model
from ..router import DECODE, PAD
from .host import Host, find_module, state_directory
from .settings import Settings, from_environment

log = logging.getLogger("carpool_routing")

TOPK = "sglang.srt.layers.moe.topk"
RUNNER = "sglang.srt.model_executor.model_runner"
SERVER = "sglang.srt.entrypoints.http_server"
_NEEDED = ("topk_ids", "topk_weights", "topk_config", "router_logits")
# MoE back ends whose kernels choose the experts themselves: nothing that could be re-routed exists outside of them.
FUSED_BACKENDS = ("triton_kernels", "flashinfer_trtllm", "flashinfer_mxfp4")

_host: Optional[Host] = None


def host() -> Optional[Host]:
    """The state of this process's target model, once it is loaded."""
    return _host


def install_from_environment() -> None:
    """Installs the plug-in when CARPOOL_POLICY or CARPOOL_OEA_K0 says so. Raises ValueError on a wrong setting."""
    settings = from_environment()
    if settings is not None:
        install(settings)


def install(settings: Settings) -> None:
    topk, runner = find_module(TOPK), find_module(RUNNER)
    why = _unfit(topk, runner)
    if why:
        log.error("carpool: NOT RE-ROUTING (sglang, %s): %s", settings.policy, why)
        return
    if getattr(topk._post_process_topk_ids, "carpool", False):
        return
    topk._post_process_topk_ids = _hook(topk._post_process_topk_ids)
    _wrap_method(runner.ModelRunner, "load_model", after=lambda self: _attach(self, settings))
    _wrap_method(runner.ModelRunner, "initialize", after=_serve)
    if multiprocessing.parent_process() is None:
        _add_endpoints()
    state_directory()  # made here, so that processes started later share it
    log.warning("carpool: installed in SGLang, policy %s", settings.policy)


def _unfit(topk: Any, runner: Any) -> Optional[str]:
    """What this SGLang lacks, or None."""
    for name, module in ((TOPK, topk), (RUNNER, runner)):
        if isinstance(module, ImportError):
            return f"{name} cannot be imported ({module}): SGLang has changed"
    post = getattr(topk, "_post_process_topk_ids", None)
    if post is None:
        return f"{TOPK} has no _post_process_topk_ids: SGLang is older than 2026-02-23, or has changed"
    missing = set(_NEEDED) - set(inspect.signature(post).parameters)
    if missing:
        return f"_post_process_topk_ids has no parameter {', '.join(sorted(missing))}: SGLang has changed"
    for name in ("load_model", "initialize"):
        if not hasattr(runner.ModelRunner, name):
            return f"ModelRunner has no {name}: SGLang has changed"
    return None


def _wrap_method(owner: Any, name: str, after: Any) -> None:
    inner = getattr(owner, name)

    @functools.wraps(inner)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = inner(self, *args, **kwargs)
        after(self)
        return result

    setattr(owner, name, method)


def _add_endpoints() -> None:
    """The server's process: counters and policy over its port."""
    try:
        from .http import Endpoints

        importlib.import_module(SERVER).app.add_middleware(Endpoints)
    except (ImportError, AttributeError, RuntimeError) as error:
        log.error("carpool: the counters are not in /metrics: %s", error)


# ---- The model runner

def _attach(runner: Any, settings: Settings) -> None:
    """A model was loaded: from now on its forward calls say what they are."""
    global _host
    if getattr(runner, "is_draft_worker", False):
        return
    device = next((p.device for p in runner.model.parameters()), torch.device("cpu"))
    _host = own = Host("sglang", settings, device, publish=getattr(runner, "tp_rank", 0) == 0)
    for backend in FUSED_BACKENDS:
        if _moe_backend() == backend:
            own.refuse(f"the MoE back end {backend} routes inside its kernel; use --moe-runner-backend triton, cutlass, "
                       "deep_gemm or flashinfer_cutlass")
    if getattr(getattr(runner, "server_args", None), "enable_torch_compile", False):
        own.refuse("--enable-torch-compile compiles the model around the plug-in")
    forward = runner.model.forward

    @functools.wraps(forward)
    def announced(*args: Any, **kwargs: Any) -> Any:
        batch = _batch_of(args, kwargs)
        if batch is None or torch.compiler.is_compiling() or not own.serving:
            return forward(*args, **kwargs)
        before = own.layer_calls
        _announce(own, batch)
        try:
            return forward(*args, **kwargs)
        finally:
            if own.decodes and own.layer_calls == before:
                own.refuse(f"a decode step passed no layer through select_experts; the MoE back end is {_moe_backend()}")
            own.end()

    runner.model.forward = announced


def _serve(runner: Any) -> None:
    """Warm-up and capture are over."""
    own = _host
    if own is None or getattr(runner, "is_draft_worker", False):
        return
    for name, graph in list(vars(runner).items()):
        if "graph_runner" not in name or graph is None:
            continue
        if hasattr(graph, "replay_prepare") and hasattr(graph, "replay"):
            _announce_replays(own, graph)
        else:
            own.refuse(f"ModelRunner.{name} has no replay_prepare or no replay, so steps in its graphs stay plain: SGLang has "
                       "changed; use --disable-cuda-graph")
    own.serving = True


def _announce_replays(own: Host, graph: Any) -> None:
    """Wraps a graph runner: flags are set when its buffers are, and taken back when the replay was started."""
    prepare, replay = graph.replay_prepare, graph.replay

    @functools.wraps(prepare)
    def prepared(forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        result = prepare(forward_batch, *args, **kwargs)
        if getattr(forward_batch, "global_num_tokens_cpu", None) is not None:
            own.refuse("CUDA graphs under DP attention gather rows in an order that the plug-in does not know; "
                       "use --disable-cuda-graph")
            own.begin(len(forward_batch.input_ids), "gathered")
        else:
            _announce(own, forward_batch)
        return result

    @functools.wraps(replay)
    def replayed(*args: Any, **kwargs: Any) -> Any:
        try:
            return replay(*args, **kwargs)
        finally:
            own.end()

    graph.replay_prepare, graph.replay = prepared, replayed


def _moe_backend() -> str:
    try:
        backend = importlib.import_module("sglang.srt.layers.moe").get_moe_runner_backend()
    except (ImportError, AttributeError):
        return "unknown"
    return str(getattr(backend, "value", backend))


# ---- The forward batch

def _batch_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return next((a for a in (*args, *kwargs.values()) if hasattr(a, "forward_mode")), None)


def _announce(own: Host, batch: Any) -> None:
    """Says to the host which rows of the batch decode."""
    mode = batch.forward_mode.name
    if getattr(batch, "global_num_tokens_cpu", None) is not None:
        return _announce_gathered(own, batch)
    rows = len(batch.input_ids)
    real = getattr(batch, "num_token_non_padded_cpu", None)  # None: rows are not padded
    if mode == "DECODE" or mode == "TARGET_VERIFY":  # verified rows are decode rows: one for each draft token
        own.begin(rows, real=real)
    elif mode == "MIXED":
        own.begin(rows, prefill=rows - _decode_rows_of_mixed(batch), real=real)
    else:
        own.begin(rows, "phase")


def _decode_rows_of_mixed(batch: Any) -> int:
    """Running requests come last in a mixed batch, one row each. A prompt's last single token right before them cannot
    be told from them."""
    n = 0
    for length in reversed([int(x) for x in batch.extend_seq_lens_cpu]):
        if length != 1:
            break
        n += 1
    return n


def _announce_gathered(own: Host, batch: Any) -> None:
    """DP attention: the expert layers see the rows of all ranks, so the union is over all of them."""
    counts = [int(n) for n in batch.global_num_tokens_cpu]
    if getattr(batch, "is_extend_in_batch", True) or batch.forward_mode.name not in ("DECODE", "IDLE"):
        return own.begin(sum(counts), "phase")
    padding = getattr(batch, "dp_padding_mode", None)
    if padding is None or not padding.is_max_len():
        return own.begin(sum(counts))
    width = max(counts)
    own.begin_with(_padded(counts, width, own.device))


def _padded(counts: list[int], width: int, device: torch.device) -> torch.Tensor:
    flags = torch.full((len(counts) * width,), PAD, dtype=torch.uint8, device=device)
    for rank, n in enumerate(counts):
        flags[rank * width : rank * width + n].fill_(DECODE)
    return flags


# ---- The hook

def _hook(inner: Any) -> Any:
    signature = inspect.signature(inner)

    @functools.wraps(inner)
    def post_process(*args: Any, **kwargs: Any) -> Any:
        if _host is not None and not torch.compiler.is_compiling():
            given = signature.bind(*args, **kwargs).arguments
            given["topk_ids"], given["topk_weights"] = _rewrite(_host, given)
            kwargs, args = given, ()
        return inner(*args, **kwargs)

    post_process.carpool = True  # type: ignore[attr-defined]
    return post_process


def _rewrite(own: Host, given: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    config, ids, weights = given["topk_config"], given["topk_ids"], given["topk_weights"]
    model, why = model_of(config, given["router_logits"].shape[-1], ids.shape[-1])
    info = given.get("expert_location_dispatch_info")
    if getattr(info, "ep_dispatch_algorithm", None) == "fake":
        why = "--ep-dispatch-algorithm fake replaces the logits by noise"
    if why or model is None:
        own.layer_calls += 1
        if own.decodes or not own.serving:
            own.refuse(why or "unknown")
        return ids, weights
    return own.rewrite(model, given["router_logits"], ids, weights, config.correction_bias,
                       given.get("num_token_non_padded"))


def model_of(config: Any, n_experts: int, columns: int) -> tuple[Optional[Model], Optional[str]]:
    """TopKConfig to Model, or why there is none. `columns` are those of the layer's choice: where shared experts are
    fused they stand last, unless the back end appends them later."""
    top_k = config.top_k - config.num_fused_shared_experts
    n_shared = columns - top_k
    if n_shared not in (0, config.num_fused_shared_experts):
        return None, f"a row has {columns} columns, for {top_k} routed and {config.num_fused_shared_experts} shared experts"
    if n_shared and not config.renormalize:
        return None, "the weight of a fused shared expert depends on the others where weights are not renormalised"
    scaled = config.renormalize and config.apply_routed_scaling_factor_on_output
    scale = float(config.routed_scaling_factor) if scaled and config.routed_scaling_factor else 1.0
    common = dict(n_experts=n_experts, top_k=top_k, renormalize=config.renormalize, routed_scaling_factor=scale,
                  n_shared=n_shared, filler="repeat")
    biased = config.correction_bias is not None
    if config.use_grouped_topk:
        return Model(scoring="sigmoid" if biased else "softmax", n_group=config.num_expert_group or 1,
                     topk_group=config.topk_group or 1, group_score="top2" if biased else "max", **common), None
    if config.custom_routing_function is not None:
        name = getattr(config.custom_routing_function, "__name__", "custom_routing_function")
        return None, f"the model routes with a function of its own, {name}"
    if config.scoring_func not in ("softmax", "sigmoid"):
        return None, f"the scoring function {config.scoring_func} is not one of softmax and sigmoid"
    if config.scoring_func == "softmax" and biased:
        return None, "a selection bias on softmax scores is applied by some back ends and not by others"
    if _moe_backend() == "flashinfer_trtllm_routed" and config.scoring_func == "softmax":
        if not config.renormalize:
            return None, "flashinfer_trtllm_routed returns raw logits as weights"
        return Model(scoring="softmax_topk", **common), None
    return Model(scoring=config.scoring_func, **common), None
