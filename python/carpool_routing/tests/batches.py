"""Random batches of every awkward kind, and what the numpy reference makes of them."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import numpy as np
import routing as reference
from carpool_routing import ISOLATED, PAD, PREFILL, Model

F32 = np.float32


@dataclass
class Case:
    model: Model
    policy: str
    logits: np.ndarray  # float32 [T, E]
    bias: Optional[np.ndarray]
    flags: np.ndarray  # uint8 [T]
    groups: np.ndarray  # int32 [T]


def random_spec(rng, E: int, K: int) -> str:
    """Any spec that fits the layer, of every policy that the tensor path has."""
    kind = rng.random()
    if kind < 0.1:
        return "topk"
    k0 = int(rng.integers(0, K + 1))
    norm = f",norm={rng.choice(['none', 'final', 'topk', '3'])}" if rng.random() < 0.3 else ""
    if kind < 0.2:
        return f"prune:k0={k0}" + (",p=0.6" if rng.random() < 0.5 else "")
    if kind < 0.25:
        return f"top_p:p={rng.choice(['0.3', '0.6', '1'])}{norm}"
    if kind < 0.3:
        return f"ser:k_min={rng.integers(1, K + 1)},t={rng.choice(['0', '0.25', '0.5', '1'])}{norm}"
    parts = [f"k0={k0}"]
    if rng.random() < 0.2:
        k0, parts = 1, ["k0=auto", f"t={rng.choice(['1', '3', '6', '50%', '75%', '100%'])}"]

    def maybe(share, text):
        if rng.random() < share:
            parts.append(text)

    least = max(1, k0)
    maybe(0.3, f"p={rng.choice(['0.2', '0.35', '0.5', '0.75', '0.9', '1', '2'])}")
    maybe(0.3, f"k_max={rng.integers(least, (K if rng.random() < 0.5 else E) + 1)}")
    maybe(0.3, f"max_p={rng.integers(least, E + 1)}")
    maybe(0.2, f"floor={rng.choice(['0.25', '0.5', '1'])}")  # exact in float32
    maybe(1.0 if norm else 0.0, norm.lstrip(","))
    maybe(0.6, f"min_batch={rng.integers(1, 5)}")
    maybe(0.15, f"max_rows={rng.integers(1, 9)}")
    maybe(0.25, "underfill=keep")
    maybe(0.25, "lend=prefill")
    maybe(0.5, "guard=off")
    return "oea:" + ",".join(parts)


def random_model(rng) -> Model:
    E = int(rng.choice([4, 6, 8, 16, 32, 64, 256], p=[.2, .15, .2, .2, .15, .07, .03]))
    n_group = 2 if rng.random() < 0.4 else 1
    topk_group = int(rng.integers(1, n_group + 1))
    K = int(rng.integers(1, min(8, topk_group * E // n_group) + 1))
    return Model(E, K, str(rng.choice(["softmax", "softmax_topk", "sigmoid"], p=[.3, .2, .5])),
                 renormalize=bool(rng.random() < 0.6), n_group=n_group, topk_group=topk_group,
                 group_score=str(rng.choice(["top2", "max"])),
                 routed_scaling_factor=2.5 if rng.random() < 0.5 else 1.0, n_shared=int(rng.integers(0, 3)),
                 shared_weight=float(rng.choice([1.0, 0.4])), filler=str(rng.choice(["none", "repeat"], p=[.75, .25])))


def random_case(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    model = random_model(rng)
    return random_rows(rng, model, random_spec(rng, model.n_experts, model.top_k), bias_of(rng, model))


def random_series(seed: int, n: int) -> list[Case]:
    """n batches of one layer and policy."""
    rng = np.random.default_rng(seed)
    model = random_model(rng)
    spec, bias = random_spec(rng, model.n_experts, model.top_k), bias_of(rng, model)
    return [random_rows(rng, model, spec, bias) for _ in range(n)]


def bias_of(rng, model: Model) -> Optional[np.ndarray]:
    """Of the magnitudes of GLM-5.2 and 5.1, beside which a score has few digits, or small, or none."""
    if rng.random() < 0.4:
        return None
    return (rng.choice([0.0, 7.0, 34.5]) + rng.random(model.n_experts) * 0.25 - 0.125).astype(F32)


def random_rows(rng, model: Model, spec: str, bias: Optional[np.ndarray]) -> Case:
    T, E = int(rng.integers(0, 9)), model.n_experts
    kind = rng.random()
    if kind < 0.4:
        logits = rng.integers(-2, 3, (T, E)).astype(F32)  # ties everywhere
    elif kind < 0.6:
        logits = (rng.integers(-256, 257, (T, E)) / 64).astype(F32)  # bf16 router outputs: some ties
    else:
        logits = rng.standard_normal((T, E)).astype(F32)
    if rng.random() < 0.2:
        special = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, -100], F32)
        logits = np.where(rng.random((T, E)) < 0.1, special[rng.integers(0, 6, (T, E))], logits)
    if T > 1 and rng.random() < 0.3:
        logits[1:] = np.where(rng.random((T - 1, 1)) < 0.6, logits[:1], logits[1:])  # rows alike: small unions
    flags, groups = np.zeros(T, np.uint8), np.zeros(T, np.int32)
    if rng.random() < 0.5:
        flags = np.where(rng.random(T) < 0.4, rng.integers(0, 8, T), 0).astype(np.uint8)
        groups = rng.integers(0, 2, T).astype(np.int32) * 5
    return Case(model, spec, logits, bias, flags, groups)


class Batch(reference.Batch):
    """The reference's batch, which sorts a row once instead of at every question."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._orders: dict[int, list[int]] = {}

    def order(self, t):
        if t not in self._orders:
            self._orders[t] = super().order(t)
        return list(self._orders[t])


def reference_rows(case: Case):
    """Per row (experts best first, weights, reason or None), from python/reference/routing.py."""
    m = case.model
    request = {"scoring": m.scoring, "renormalize": m.renormalize, "bias": case.bias, "n_group": m.n_group,
               "topk_group": m.topk_group, "group_score": m.group_score,
               "routed_scaling_factor": m.routed_scaling_factor}
    rows = [{"phase": "pad" if f & PAD else "prefill" if f & PREFILL else "decode", "isolated": bool(f & ISOLATED),
             "group": int(g)} for f, g in zip(case.flags, case.groups)]
    if not rows:
        return []
    with np.errstate(all="ignore"):
        scored = [reference.score_row(row, request) for row in case.logits]
        batch = Batch([r for r, _ in scored], [mix for _, mix in scored], rows, m.top_k)
        name, arguments = reference.parse_spec(case.policy)
        chosen = reference.POLICIES[name](batch, arguments)
        norm = arguments.get("norm", "model")
        divisors = [F32(0) if why else reference.divisor(batch, t, ids, norm) for t, (ids, why) in enumerate(chosen)]
        return [(ids, reference.finish_weights(mix, ids, request, divisor), why)
                for (_, mix), (ids, why), divisor in zip(scored, chosen, divisors)]


def lay_out(case: Case, rows, columns: int):
    """The rows of the reference in the form of Router's output: ids, weights, reasons as names."""
    m, T = case.model, len(rows)
    ids, weights = np.full((T, columns), -1, np.int32), np.zeros((T, columns), F32)
    of_batch = next((r[0][0] for r in rows if r[0]), 0)
    for t, (experts, own, _) in enumerate(rows):
        n, pad = len(experts), bool(case.flags[t] & PAD)
        if m.filler == "repeat":
            ids[t] = experts[0] if n else of_batch
        ids[t, :n], weights[t, :n] = experts, own
        for s in range(m.n_shared):
            at = columns - m.n_shared + s
            ids[t, at] = -1 if pad and m.filler == "none" else m.n_experts + s
            weights[t, at] = 0 if pad else m.shared_weight
    return ids, weights, [why or "applied" for _, _, why in rows]


def ulps(a: np.ndarray, b: np.ndarray) -> int:
    """The greatest distance between two float32 arrays without NaN, in units in the last place."""
    if not a.size:
        return 0
    return int(np.abs(a.view(np.int32).astype(np.int64) - b.view(np.int32).astype(np.int64)).max())
