"""What both plug-ins are made of: the rows of the step, the tensor program of each layer, the counters.

A Host lives in each worker process. Before every forward pass the plug-in says which rows decode, by filling a buffer of
row flags on the device; each MoE layer then runs the tensor program on that buffer. A CUDA graph therefore holds the
program and reads new flags at every replay. Outside of a forward pass all flags say padding, so a path that nobody
announced stays plain instead of being re-routed by chance. Nothing here waits for the device.
"""
from __future__ import annotations

import importlib
import json
import logging
import os
import pathlib
import tempfile
import threading
from typing import Any, Optional

import torch

from ..model import Model
from ..router import DECODE, ISOLATED, PAD, PREFILL
from ..tensor import COUNTERS, TensorRouted, TensorRouter
from .settings import Settings

log = logging.getLogger("carpool_routing")

STATE = "CARPOOL_STATE_DIR"  # where the processes of one server meet: counters by worker, the policy of the moment
_MOST_ROWS = 1 << 16
_FIRST_ROW = COUNTERS.index("plain_rows.applied")


def state_directory() -> pathlib.Path:
    """The server's folder; the first process that asks makes it, its children inherit the name."""
    if STATE not in os.environ:
        os.environ[STATE] = tempfile.mkdtemp(prefix="carpool-")
    return pathlib.Path(os.environ[STATE])


def find_module(name: str) -> Any:
    """The engine's module, or the ImportError: a server must start, and say why, also when it lacks what is needed.

    Raises ImportError in a process that has no such engine at all.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if error.name == name.partition(".")[0]:
            raise
        return error


def capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


class Host:
    """The state of one worker. `publish`: whether this worker's counters are the server's (one per replica)."""

    def __init__(self, engine: str, settings: Settings, device: Any = "cpu", publish: bool = True):
        self.engine, self.settings, self.device = engine, settings, torch.device(device)
        self.layer_calls = 0  # layers that reached the hook, in graphs at capture only
        self.serving = False  # real requests; before that, warm-up and capture
        self.rows: Optional[int] = None  # of the step under way; None: none is
        self.decodes = False
        self.refusals: dict[str, int] = {}
        self.left: dict[str, int] = {}  # steps left plain by the host, by reason
        self._routers: dict[Model, Optional[TensorRouter]] = {}
        self._flags = torch.full((_MOST_ROWS,), PAD, dtype=torch.uint8, device=self.device)
        self._sums = torch.zeros(len(COUNTERS), dtype=torch.int64, device=self.device)
        self._copy = self._sums.cpu()
        if self.device.type == "cuda":
            self._copy = self._copy.pin_memory()
        self._state = state_directory()
        self._file = self._state / f"worker-{os.getpid()}.json" if publish else None
        self._written = ""
        if publish:
            threading.Thread(target=self._publish_now_and_then, name="carpool-counters", daemon=True).start()

    # ---- Saying why not

    def refuse(self, why: str) -> None:
        """Counts why something stays plain and says it once, loudly."""
        if why not in self.refusals:
            log.error("carpool: NOT RE-ROUTING (%s, %s): %s", self.engine, self.settings.policy, why)
        self.refusals[why] = self.refusals.get(why, 0) + 1

    # ---- The step under way

    def begin(self, rows: int, kind: str = "decode", prefill: int = 0, real: Optional[int] = None) -> None:
        """Announces a forward pass of `rows` rows.

        kind: "decode", or the reason why the host leaves all rows plain. The first `prefill` rows are prompt, the rows
        from `real` on are padding.
        """
        if kind == "decode" and not self.switched_on():
            kind = "off"
        elif kind == "decode" and rows > self.settings.max_rows:
            kind = "max_rows"
        self.rows, self.decodes = rows, kind == "decode"
        if not self.decodes:
            self.left[kind] = self.left.get(kind, 0) + 1
            return
        real = rows if real is None else real
        self._flags[:prefill].fill_(PREFILL)
        self._flags[prefill:real].fill_(DECODE)
        self._flags[real:rows].fill_(PAD)

    def begin_with(self, flags: torch.Tensor) -> None:
        """As `begin`, for flags uint8 [T] that are on the device already."""
        self.begin(len(flags))
        if self.decodes:
            self._flags[: len(flags)].copy_(flags)

    def end(self) -> None:
        """The pass is over, or the graph's replay was started: whatever comes unannounced is plain."""
        if self.decodes and self.rows:
            self._flags[: self.rows].fill_(PAD)
        self.rows, self.decodes = None, False
        self._copy.copy_(self._sums, non_blocking=True)

    def switched_on(self) -> bool:
        """False while an operator asks for plain routing. Read at each step, so switch while nothing runs."""
        try:
            return (self._state / "policy").read_text().strip() != "topk"
        except FileNotFoundError:
            return True

    # ---- A layer

    def rewrite(self, model: Model, logits: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor,
                bias: Optional[torch.Tensor], real_rows: Optional[torch.Tensor] = None,
                sums: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
        """(ids, weights) [T, columns] of a layer as the policy wants them; those given where it decides nothing.

        real_rows: how many rows are no padding, on the device, where the engine knows. sums: rows whose routed weights
        do not add up to the model's scale are left alone, since then the engine does something that `model` does not
        say.
        """
        if torch.compiler.is_compiling():
            return ids, weights
        self.layer_calls += 1
        in_graph = capturing(self.device) or not self.serving
        if not in_graph and not self.decodes:
            return ids, weights
        T = ids.shape[0]
        if not in_graph and T != self.rows:
            self.refuse(f"the expert layer has {T} rows where the batch has {self.rows}: the rows are gathered or split "
                        "in a way that this plug-in does not know")
            return ids, weights
        router = self._router(model)
        if router is None or T == 0 or T > _MOST_ROWS:
            return ids, weights
        if ids.shape[1] < router.columns:
            self.refuse(f"{router.spec} needs {router.columns} columns where the engine's rows have {ids.shape[1]}: k_max "
                        "cannot be more than the model's experts per token here")
            return ids, weights
        flags = self._flags[:T]
        if real_rows is not None:
            flags = torch.where(torch.arange(T, device=flags.device) < real_rows, flags, PAD).to(torch.uint8)
        if sums and (model.renormalize or model.scoring == "softmax_topk"):
            own = weights[:, : ids.shape[1] - model.n_shared].float().sum(-1)
            scale = model.routed_scaling_factor
            flags = torch.where((own - scale).abs() <= 0.02 * scale, flags, flags | ISOLATED)
        routed = router.rewrite(logits, ids, weights, bias=bias, row_flags=flags)
        self._add(routed)
        return routed.ids, routed.weights

    def _router(self, model: Model) -> Optional[TensorRouter]:
        if model not in self._routers:
            try:
                self._routers[model] = TensorRouter(self.settings.policy, model)
            except ValueError as error:
                self._routers[model] = None
                self.refuse(str(error))
        return self._routers[model]

    def _add(self, routed: TensorRouted) -> None:
        real = routed.counters[_FIRST_ROW:].sum() > 0  # a step of padding only, as warm-up is, counts nowhere
        self._sums.add_(routed.counters * real)

    # ---- The counters

    def counters(self) -> dict[str, Any]:
        """What the server shows: the counters as the device last sent them, all of them once it is idle."""
        return {"engine": self.engine, "policy": self.settings.policy, "pid": os.getpid(),
                "counters": dict(zip(COUNTERS, self._copy.tolist())), "layer_calls": self.layer_calls,
                "left_plain": dict(self.left), "refusals": dict(self.refusals)}

    def _publish_now_and_then(self) -> None:
        pause = threading.Event()
        while not pause.wait(0.1):
            self.publish()

    def publish(self) -> None:
        """Writes the counters to this worker's file when they changed."""
        if self._file is None:
            return
        text = json.dumps(self.counters())
        if text == self._written:
            return
        scratch = self._file.with_suffix(f".{threading.get_ident()}.tmp")
        try:
            scratch.write_text(text)
            scratch.replace(self._file)
            self._written = text
        except OSError as error:
            log.warning("carpool: the counters cannot be written: %s", error)
            self._file = None
