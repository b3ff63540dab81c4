"""Router: batches of router logits to expert ids and weights, through the C library."""
from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np

from . import _arrays, _library
from ._library import lib
from .model import FILLERS, GROUP_SCORES, SCORINGS, Model

DECODE, PREFILL, PAD, ISOLATED = 0, 1, 2, 4
"""Flags of a row. DECODE rows take part; PREFILL and ISOLATED rows stay plain; PAD rows have no experts and no
influence."""

REASONS: tuple[str, ...] = tuple(name.decode() for name in map(lib.carpool_routing_reason_name,
                                                               range(_library.MOST_REASONS)) if name)
"""Names of the numbers in `Routed.reasons`: why a row stayed plain; "applied" means that the policy decided it."""

_LOGITS = ("float32", "bfloat16", "float16")  # by the numbers of carpool_routing_type


class RoutingError(ValueError):
    """What the library refuses: one sentence."""


class Routed(NamedTuple):
    """One routed batch; torch tensors when the logits were, else numpy arrays."""

    ids: Any
    """int32 [T, columns], best first."""
    weights: Any
    """float32 [T, columns]."""
    reasons: Any
    """uint8 [T], see REASONS."""


def library_version() -> str:
    return lib.carpool_routing_version().decode()


def policies() -> dict[str, str]:
    """Name and summary of every policy that specs may name."""
    found: dict[str, str] = {}
    while (name := lib.carpool_routing_policy_name(len(found))) is not None:
        found[name.decode()] = lib.carpool_routing_policy_summary(len(found)).decode()
    return found


class Router:
    """One policy ("oea:k0=5") and one model's rule. May be used by many threads at once.

    Raises RoutingError when the policy is unknown or does not fit the model.
    """

    def __init__(self, policy: str, model: Model):
        self._handle: int | None = None
        self.model = model
        struct = _library.ModelStruct()
        lib.carpool_routing_model_init(ctypes.byref(struct), ctypes.sizeof(struct))
        for field in ("n_experts", "top_k", "renormalize", "n_group", "topk_group", "routed_scaling_factor", "n_shared",
                      "shared_weight"):
            setattr(struct, field, getattr(model, field))
        struct.scoring = SCORINGS.index(model.scoring)
        struct.group_score = GROUP_SCORES.index(model.group_score)
        struct.filler = FILLERS.index(model.filler)
        handle, error = ctypes.c_void_p(), _library.Error()
        if lib.carpool_routing_create(policy.encode(), ctypes.byref(struct), ctypes.byref(handle), ctypes.byref(error)):
            raise RoutingError(error.text.decode())
        self._handle = handle.value
        self.spec: str = lib.carpool_routing_spec(self._handle).decode()
        """The canonical spec: the policy's name and every argument that differs from its default."""
        self.columns: int = lib.carpool_routing_columns(self._handle)
        """Columns of the output: max(K, k_max) + n_shared."""

    def __del__(self) -> None:
        if self._handle is not None:
            lib.carpool_routing_destroy(self._handle)

    def route(self, logits: Any, *, bias: Any = None, row_flags: Any = None, row_groups: Any = None,
              out: tuple[Any, Any] | None = None, in_place: bool = False, layer: int = 0) -> Routed:
        """Routes one batch: the rows of one step in one MoE layer.

        logits: [T, E], float32, bfloat16 or float16. bias: float32 [E], added for ranking only. row_flags: uint8 [T].
        row_groups: int32 [T]; rows borrow only from rows of their group. out: (ids, weights) to write into, int32 and
        float32 [T, columns or more]. in_place: `out` holds the model's own choice, in any order, and rows that the
        policy does not decide and columns of shared experts stay as they are. layer: for policies whose arguments name
        layers. Nothing is copied.
        """
        rows = _arrays.view(logits, "logits", _LOGITS, (None, self.model.n_experts))
        T = rows.shape[0]
        if out is None:
            if in_place:
                raise ValueError("in_place needs out, the model's own choice")
            out = self._make_output(logits, T)
        ids = _arrays.view(out[0], "ids", ("int32",), (T, None))
        weights = _arrays.view(out[1], "weights", ("float32",), (T, ids.shape[1]))
        if not (ids.writable and weights.writable):
            raise ValueError("out is read-only")
        reasons: np.ndarray = np.empty(T, np.uint8)
        # Views stay in variables until the call is over: they keep what they show alive.
        b = _arrays.NOTHING if bias is None else _arrays.view(bias, "bias", ("float32",), (self.model.n_experts,))
        flags = _arrays.NOTHING if row_flags is None else _arrays.view(row_flags, "row_flags", ("uint8",), (T,))
        groups = _arrays.NOTHING if row_groups is None else _arrays.view(row_groups, "row_groups", ("int32",), (T,))
        batch = _library.BATCH.pack(
            _library.BATCH.size, T, _LOGITS.index(rows.dtype), rows.address, rows.stride, b.address, flags.address,
            groups.address, ids.address, weights.address, ids.stride, weights.stride, ids.shape[1], in_place, layer,
            _arrays.view(reasons, "reasons", ("uint8",), (T,)).address)
        if lib.carpool_routing_route(self._handle, batch, None):
            error = _library.Error()  # a refused call wrote nothing, so it can be made again for its sentence
            lib.carpool_routing_route(self._handle, batch, ctypes.byref(error))
            raise RoutingError(error.text.decode())
        return Routed(out[0], out[1], _like(logits, reasons))

    def counters(self) -> dict[str, Any]:
        """Sums over all calls: numbers of batches, distinct experts, slots and rows; rows and calls by reason."""
        c = _library.Counters(ctypes.sizeof(_library.Counters))
        if lib.carpool_routing_get_counters(self._handle, ctypes.byref(c), None):
            raise RoutingError("the counters cannot be read")
        names = [field[0] for field in _library.Counters._fields_ if field[1] is ctypes.c_int64]
        found: dict[str, Any] = {name: getattr(c, name) for name in names}
        found["plain_rows"] = dict(zip(REASONS, c.plain_rows))
        found["plain_calls"] = dict(zip(REASONS, c.plain_calls))
        return found

    def reset_counters(self) -> None:
        lib.carpool_routing_reset_counters(self._handle)

    def _make_output(self, logits: Any, rows: int) -> tuple[Any, Any]:
        if not _arrays.is_torch(logits):
            return np.empty((rows, self.columns), np.int32), np.empty((rows, self.columns), np.float32)
        import torch

        return (torch.empty((rows, self.columns), dtype=torch.int32),
                torch.empty((rows, self.columns), dtype=torch.float32))


def _like(array: Any, values: np.ndarray) -> Any:
    if not _arrays.is_torch(array):
        return values
    import torch

    return torch.from_numpy(values)
