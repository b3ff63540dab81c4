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
    if kind < 0.2:
        return f"prune:k0={k0}" + (",p=0.6" if rng.random() < 0.5 else "")
    parts = [f"k0={k0}"]

    def maybe(share, text):
        if rng.random() < share:
            parts.append(text)

    least = max(1, k0)
    maybe(0.3, f"p={rng.choice(['0.2', '0.35', '0.5', '0.75', '0.9', '1', '2'])}")
    maybe(0.3, f"k_max={rng.integers(least, (K if rng.random() < 0.5 else E) + 1)}")
    maybe(0.3, f"max_p={rng.integers(least, E + 1)}")
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
                 shared_weight=float(rng.choice([1.0, 0.4])), filler=str(rng.choice(["none", "repeat"])))


def random_case(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    model = random_model(rng)
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
    bias = None
    if rng.random() < 0.6:
        bias = (rng.choice([0.0, 7.0, 34.5]) + rng.random(E) * 0.25 - 0.125).astype(F32)  # GLM-5.1 and 5.2
    flags, groups = np.zeros(T, np.uint8), np.zeros(T, np.int32)
    if rng.random() < 0.5:
        flags = np.where(rng.random(T) < 0.4, rng.integers(0, 8, T), 0).astype(np.uint8)
        groups = rng.integers(0, 2, T).astype(np.int32) * 5
    return Case(model, random_spec(rng, E, model.top_k), logits, bias, flags, groups)


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
        batch = reference.Batch([r for r, _ in scored], [mix for _, mix in scored], rows, m.top_k)
        name, arguments = reference.parse_spec(case.policy)
        chosen = reference.POLICIES[name](batch, arguments)
        return [(ids, reference.finish_weights(mix, ids, request), why)
                for (_, mix), (ids, why) in zip(scored, chosen)]


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
