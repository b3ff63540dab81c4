"""TensorRouter: the routing core as a torch program, for GPUs.

The same policies as Router, written so that a CUDA graph or torch.compile can hold them: every shape follows from the
shapes of the inputs, nothing is read back to the host, no branch depends on data. Ids are the bits of the C library,
because exponentials and divisions are taken in float64 and rounded once; weights are, too, where float32 additions and
multiplications are IEEE's.

Ranks come from a stable sort of all E scores per row, so equal scores stay in ascending id; everything else is masks.
Symbols: T rows, E experts, K experts per row, C columns of the output.
"""
from __future__ import annotations

from typing import Any, NamedTuple, Optional

import torch

from .model import Model
from .router import ISOLATED, PAD, PREFILL, REASONS, Router, RoutingError

_INF = float("inf")
_MOST = 1 << 20  # "unlimited" as the C++ core has it
APPLIED, POLICY, ISOLATED_REASON, PHASE, MIN_BATCH, MAX_ROWS, UNION, BUDGET = range(8)

_KNOWN = {"topk": (), "prune": ("k0", "p"), "top_p": ("p", "norm"), "ser": ("k_min", "t", "norm"),
          "oea": ("k0", "t", "p", "k_max", "max_p", "floor", "norm", "min_batch", "max_rows", "underfill", "lend", "guard")}


class TensorRouted(NamedTuple):
    ids: torch.Tensor
    """int32 [T, C], best first."""
    weights: torch.Tensor
    """float32 [T, C]."""
    reasons: torch.Tensor
    """uint8 [T], see REASONS."""
    counters: torch.Tensor
    """int64 [len(COUNTERS)], this batch's share of the numbers that Router.counters() has."""


COUNTERS: tuple[str, ...] = ("calls", "distinct_experts", "distinct_plain", "slots", "rerouted_rows",
                             "underfilled_rows") + tuple("plain_rows." + reason for reason in REASONS)
"""Names of TensorRouted.counters."""


def parse_spec(spec: str) -> tuple[str, dict[str, str]]:
    """"oea:k0=5,p=0.5" -> ("oea", {"k0": "5", "p": "0.5"})."""
    name, _, text = spec.partition(":")
    return name, dict(item.split("=", 1) for item in text.split(",") if item)


class _Ranked(NamedTuple):
    """The rows of a batch in rank order."""

    order: torch.Tensor  # int64 [T, E] experts, best first; those that cannot be chosen last
    usable: torch.Tensor  # bool [T, E] in rank order: can be chosen
    place: torch.Tensor  # int64 [T, E] by expert: its rank, from 0


class _Rows(NamedTuple):
    """Who takes part."""

    pad: torch.Tensor  # bool [T]
    own_reason: torch.Tensor  # int64 [T]; APPLIED: may be re-routed
    groups: Optional[torch.Tensor]  # int32 [T]


def score(model: Model, logits: torch.Tensor, bias: Optional[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [T, E] -> (rank scores, weight scores), both float32 [T, E], as src/routing/scoring.cc has them."""
    x = logits.float()
    usable = x > -_INF  # false for NaN
    zero = torch.zeros_like(x)
    if model.scoring == "sigmoid":
        mix = torch.where(usable, (1 / (1 + torch.exp(-x.double()))).float(), zero)
    else:
        top = torch.where(usable, x, torch.full_like(x, -_INF)).amax(-1, keepdim=True)
        shifted = torch.where(usable, x - top, torch.full_like(x, -_INF)).double()
        powers = torch.where(top == _INF, (x == _INF).float(), torch.exp(shifted).float())
        powers = torch.where(usable, powers, zero)
        total = powers.double().sum(-1, keepdim=True).float()
        mix = torch.where(total > 0, divide(powers, total), powers)
    selection = x if model.scoring == "softmax_topk" else mix
    if bias is not None:
        selection = selection + bias.float()
    low = torch.full_like(x, -_INF)
    rank = torch.where(usable & (selection > -_INF), selection, low)
    if model.topk_group < model.n_group:
        rank = torch.where(_allowed_groups(model, rank), rank, low)
    if model.scoring == "softmax" and bias is None:
        rank = torch.where(rank > -_INF, x, low)
    return torch.where(rank == 0, zero, rank), mix  # -0 and +0 are one score, also to a radix sort


def divide(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a / b as IEEE float32: the float64 quotient, rounded, is the same, and compilers have no faster inexact one."""
    return (a.double() / b.double()).float()


def _allowed_groups(model: Model, rank: torch.Tensor) -> torch.Tensor:
    """bool [T, E]: the experts of the row's topk_group best groups."""
    T, E = rank.shape
    grouped = rank.view(T, model.n_group, E // model.n_group)
    if model.group_score == "top2":
        best = grouped.topk(2, dim=-1).values
        first, second = best[..., 0], best[..., 1]
        value = torch.where(second > -_INF, first + second, first)
    else:
        value = grouped.amax(-1)
    order = torch.sort(value, dim=-1, descending=True, stable=True).indices
    place = _inverse(order)
    return (place < model.topk_group).unsqueeze(-1).expand_as(grouped).reshape(T, E)


def _sum_in_order(weights: torch.Tensor, used: torch.Tensor) -> torch.Tensor:
    """float32 [T, 1]: the sum of the used columns, first to last: the order is part of the definition."""
    weights = torch.where(used, weights, 0.0)
    total = weights[:, 0]
    for column in range(1, weights.shape[-1]):
        total = total + weights[:, column]
    return total.unsqueeze(-1)


def _inverse(order: torch.Tensor) -> torch.Tensor:
    """Of permutations along the last dimension."""
    along = torch.arange(order.shape[-1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, along)


class TensorRouter:
    """One policy and one model's rule on tensors of any device.

    Raises RoutingError when the policy does not fit the model, as Router does, and when it is one that only the C
    library has.
    """

    def __init__(self, policy: str, model: Model):
        core = Router(policy, model)  # the checks and sentences of the C library
        self.model, self.spec, self.columns = model, core.spec, core.columns
        self.policy, arguments = parse_spec(core.spec)
        unknown = sorted(set(arguments) - set(_KNOWN.get(self.policy, ())))
        if self.policy not in _KNOWN or unknown:
            what = f"the arguments {', '.join(unknown)}" if self.policy in _KNOWN else "this policy"
            raise RoutingError(f"policy {core.spec}: there is no tensor program for {what}; "
                               f"there is one for {', '.join(_KNOWN)}")
        if "/" in arguments.get("k0", ""):
            raise RoutingError(f"policy {core.spec}: there is no tensor program for a k0 of each layer; give one k0")
        E, K = model.n_experts, model.top_k
        self._target = arguments.get("t") if arguments.get("k0") == "auto" else None  # "32" or "50%"
        self._k0 = K if self._target else int(arguments.get("k0", K))
        self._p, self._floor = float(arguments.get("p", 1)), float(arguments.get("floor", 0))
        self._k_min, self._share = int(arguments.get("k_min", 1)), 0.0
        if self.policy == "ser":
            self._share = float(arguments["t"])
        self._norm = arguments.get("norm", "model")
        self._k_max, self._max_p = int(arguments.get("k_max", K)), int(arguments.get("max_p", E))
        self._min_batch = int(arguments.get("min_batch", 2))
        self._max_rows = int(arguments.get("max_rows", _MOST))
        self._keep = arguments.get("underfill") == "keep"
        self._prefill_lends = arguments.get("lend") == "prefill"
        self._guard = arguments.get("guard", "on") == "on"
        self._routed_columns = self.columns - model.n_shared

    def route(self, logits: torch.Tensor, *, bias: Optional[torch.Tensor] = None,
              row_flags: Optional[torch.Tensor] = None, row_groups: Optional[torch.Tensor] = None) -> TensorRouted:
        """Routes one batch; arguments as Router.route has them, all on one device. Returns new tensors."""
        rank, mix = score(self.model, logits, bias)
        ranked = self._rank(rank)
        rows = self._rows(logits, row_flags, row_groups)
        take, reason = self._select(ranked, mix, rows)
        plain = self._plain(ranked, rows)
        ids, count = self._compact(ranked, take)
        weights = self._weigh(mix, ids, count, self._divisor(ranked, mix, ids, count, reason))
        counters = self._count(ranked, plain, take, reason, rows)
        ids, weights = self._lay_out(ids, weights, count, rows)
        return TensorRouted(ids, weights, reason.to(torch.uint8), counters)

    def rewrite(self, logits: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, *,
                bias: Optional[torch.Tensor] = None, row_flags: Optional[torch.Tensor] = None,
                row_groups: Optional[torch.Tensor] = None) -> TensorRouted:
        """As `route`, but rows that the policy does not decide and columns of shared experts are those given.

        ids, weights: [T, at least `columns`], the model's own choice, in any order. New tensors of the same types.
        """
        routed = self.route(logits, bias=bias, row_flags=row_flags, row_groups=row_groups)
        n_shared = self.model.n_shared
        own = ids.shape[-1] - n_shared
        if own < self._routed_columns:
            raise ValueError(f"{own} columns for routed experts are too few: {self.spec} needs {self._routed_columns}")
        mine = slice(0, self._routed_columns)
        fill = own - self._routed_columns
        dead = torch.full_like(routed.ids[:, :1], -1) if self.model.filler == "none" else routed.ids[:, :1]
        new_ids = torch.cat([routed.ids[:, mine], dead.expand(-1, fill)], -1).to(ids.dtype)
        new_weights = torch.cat([routed.weights[:, mine], torch.zeros_like(routed.weights[:, :1]).expand(-1, fill)], -1)
        applied = (routed.reasons == APPLIED).unsqueeze(-1)
        out_ids = torch.where(applied, new_ids, ids[:, :own])
        out_weights = torch.where(applied, new_weights.to(weights.dtype), weights[:, :own])
        if n_shared:
            out_ids = torch.cat([out_ids, ids[:, own:]], -1)
            out_weights = torch.cat([out_weights, weights[:, own:]], -1)
        return TensorRouted(out_ids, out_weights, routed.reasons, routed.counters)

    # ---- Ranks and rows

    def _rank(self, rank: torch.Tensor) -> _Ranked:
        values, order = torch.sort(rank, dim=-1, descending=True, stable=True)
        return _Ranked(order, values > -_INF, _inverse(order))

    def _rows(self, logits: torch.Tensor, flags: Optional[torch.Tensor], groups: Optional[torch.Tensor]) -> _Rows:
        T = logits.shape[0]
        f = torch.zeros(T, dtype=torch.int64, device=logits.device) if flags is None else flags.to(torch.int64)
        pad, prefill, isolated = (f & PAD) != 0, (f & PREFILL) != 0, (f & ISOLATED) != 0
        own = torch.where(prefill, PHASE, APPLIED)
        own = torch.where(isolated, ISOLATED_REASON, own)
        return _Rows(pad, torch.where(pad, PHASE, own), groups)

    def _same_group(self, rows: _Rows) -> torch.Tensor:
        """bool [T, T], or [1, T] when all rows are of one group."""
        if rows.groups is None:
            return torch.ones_like(rows.pad).unsqueeze(0)
        return rows.groups.unsqueeze(0) == rows.groups.unsqueeze(1)

    # ---- Policies

    def _select(self, ranked: _Ranked, mix: torch.Tensor, rows: _Rows) -> tuple[torch.Tensor, torch.Tensor]:
        """What each row takes, bool [T, E] in rank order, and its reason, int64 [T]."""
        plain = self._plain(ranked, rows)
        if self.policy == "topk" or self._k0 == 0:
            return plain, torch.where(rows.pad, PHASE, POLICY)
        if self.policy == "oea":
            take, reason = self._oea(ranked, mix, rows)
        elif self.policy == "ser":
            take, reason = self._ser(ranked, mix), rows.own_reason
        else:  # prune, and top_p with k0 = K
            take, reason = self._base(ranked, mix, self._k0), rows.own_reason
        return torch.where((reason == APPLIED).unsqueeze(-1), take, plain), reason

    def _positions(self, ranked: _Ranked) -> torch.Tensor:
        return torch.arange(ranked.order.shape[-1], device=ranked.order.device).expand_as(ranked.order)

    def _plain(self, ranked: _Ranked, rows: _Rows) -> torch.Tensor:
        return ranked.usable & (self._positions(ranked) < self.model.top_k) & ~rows.pad.unsqueeze(-1)

    def _base(self, ranked: _Ranked, mix: torch.Tensor, k0: Any) -> torch.Tensor:
        """The min(k0, t_i) best of each row, in rank order: t_i ranks reach the share p of all its weight. k0: a number
        up to K, or int64 [T, 1]."""
        positions = self._positions(ranked)
        base = ranked.usable & (positions < k0)
        if self._p >= 1:
            return base
        total = mix.double().cumsum(-1)[:, -1:]  # a running sum, as the C++ core takes it
        mass = mix.gather(-1, ranked.order[:, : self.model.top_k]).double().cumsum(-1)
        return base & (positions <= (mass < self._p * total).sum(-1, keepdim=True))

    def _ser(self, ranked: _Ranked, mix: torch.Tensor) -> torch.Tensor:
        """Ranks before the first one past k_min whose weight is below the share of the best one's."""
        best = mix.gather(-1, ranked.order).double()
        low = (best < self._share * best[:, :1]) & (self._positions(ranked) >= self._k_min)
        return ranked.usable & (low.cumsum(-1) == 0) & (self._positions(ranked) < self.model.top_k)

    def _by_expert(self, ranked: _Ranked, in_order: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """float32 [T, E] by expert: 1 where `in_order` holds in one of `rows`."""
        ones = torch.zeros_like(ranked.order, dtype=torch.float32)
        return ones.scatter_(-1, ranked.order, (in_order & rows.unsqueeze(-1)).float())

    def _largest_k0(self, ranked: _Ranked, same: torch.Tensor, eligible: torch.Tensor) -> torch.Tensor:
        """int64 [T, 1]: the largest k0 of 1 to K whose base sets, over the row's group, the target holds."""
        K, positions = self.model.top_k, self._positions(ranked)
        sizes = [((same.float() @ self._by_expert(ranked, ranked.usable & (positions < k0), eligible)) > 0).sum(-1)
                 for k0 in range(1, K + 1)]
        target = self._target or ""
        if target.endswith("%"):
            share = sizes[-1].double() * (float(target[:-1]) / 100) - 1e-9
            most = share.ceil().clamp(min=1).long()
        else:
            most = torch.full_like(sizes[-1], int(target))
        within = torch.stack([size <= most for size in sizes])  # sizes rise with k0, so the true ones come first
        return within.sum(0).clamp(min=1).expand(len(ranked.order)).unsqueeze(-1)

    def _oea(self, ranked: _Ranked, mix: torch.Tensor, rows: _Rows) -> tuple[torch.Tensor, torch.Tensor]:
        eligible, same = rows.own_reason == APPLIED, self._same_group(rows)
        k0 = self._largest_k0(ranked, same, eligible) if self._target else self._k0
        base = self._base(ranked, mix, k0)
        lends = eligible
        if self._prefill_lends:
            lends = eligible | ((rows.own_reason == PHASE) & ~rows.pad)
        lent = self._by_expert(ranked, base, lends)
        # [T, E] by expert: the union of the row's group. Sums of zeros and ones, so above 0 in any precision.
        union = ((same.float() @ lent) > 0).expand_as(lent)
        reason = self._guarded(rows, eligible, (same & eligible.unsqueeze(0)).sum(-1), union.sum(-1), k0)

        may = union.gather(-1, ranked.order) & ranked.usable & (self._positions(ranked) < self._max_p)
        if self._floor > 0:
            weight = mix.gather(-1, ranked.order)
            lightest = torch.where(base, weight, _INF).amin(-1, keepdim=True)
            bar = torch.minimum((self._floor * weight[:, :1].double()).float(), lightest)
            may = may & ~(weight < bar)
        take = may & (may.cumsum(-1) <= self._k_max)
        if self._keep:
            short = take.sum(-1) < min(self.model.top_k, self._k_max)
            reason = torch.where((reason == APPLIED) & short, UNION, reason)
        return take, reason

    def _guarded(self, rows: _Rows, eligible: torch.Tensor, in_group: torch.Tensor, union: torch.Tensor,
                 k0: Any) -> torch.Tensor:
        """Reasons once the guards have spoken; the one written last holds."""
        reason = rows.own_reason
        if self._target:
            reason = torch.where(eligible & (k0.squeeze(-1) == self.model.top_k), BUDGET, reason)
        if self._guard:
            reason = torch.where(eligible & (union < self.model.top_k), UNION, reason)
        reason = torch.where(eligible & ((~rows.pad).sum() > self._max_rows), MAX_ROWS, reason)
        return torch.where(eligible & (in_group < self._min_batch), MIN_BATCH, reason)

    # ---- Output

    def _compact(self, ranked: _Ranked, take: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The taken experts at the front: ids int64 [T, routed columns], count int64 [T, 1]. The rest is arbitrary."""
        front = torch.sort((~take).to(torch.uint8), dim=-1, stable=True).indices[:, : self._routed_columns]
        return ranked.order.gather(-1, front), take.sum(-1, keepdim=True)

    def _divisor(self, ranked: _Ranked, mix: torch.Tensor, ids: torch.Tensor, count: torch.Tensor,
                 reason: torch.Tensor) -> Optional[torch.Tensor]:
        """float32 [T, 1]: what an applied row's weights are divided by instead of the model's sum; 0: the model's."""
        if self._norm == "model":
            return None
        if self._norm == "none":
            divisor = torch.ones_like(mix[:, :1])
        elif self._norm == "final":
            divisor = _sum_in_order(mix.gather(-1, ids), torch.arange(ids.shape[-1], device=ids.device) < count)
        else:
            n = min(self.model.top_k if self._norm == "topk" else int(self._norm), self.model.n_experts)
            divisor = _sum_in_order(mix.gather(-1, ranked.order[:, :n]), ranked.usable[:, :n])
        return torch.where((reason == APPLIED).unsqueeze(-1), divisor, 0.0)

    def _weigh(self, mix: torch.Tensor, ids: torch.Tensor, count: torch.Tensor,
               divisor: Optional[torch.Tensor]) -> torch.Tensor:
        """The weights of a row in rank order; 0 past its count."""
        used = torch.arange(ids.shape[-1], device=ids.device) < count
        scores = torch.where(used, mix.gather(-1, ids), 0.0)
        weights = scores
        if self.model.renormalize or self.model.scoring == "softmax_topk":
            total = _sum_in_order(scores, used)
            equal = divide(torch.ones_like(total), count.clamp(min=1).float())
            weights = torch.where(total > 0, divide(scores, torch.where(total > 0, total, 1.0)), equal)
        if divisor is not None:
            weights = torch.where(divisor > 0, divide(scores, torch.where(divisor > 0, divisor, 1.0)), weights)
        return torch.where(used, weights, 0.0) * self.model.routed_scaling_factor

    def _lay_out(self, ids: torch.Tensor, weights: torch.Tensor, count: torch.Tensor,
                 rows: _Rows) -> tuple[torch.Tensor, torch.Tensor]:
        """Filler in unused columns, and the columns of shared experts."""
        T, C = ids.shape
        used = torch.arange(C, device=ids.device) < count
        repeat = self.model.filler == "repeat"
        if repeat:
            has = count > 0
            # The first expert of the first row that has one; 0 when no row has.
            dead = ids[:, :1]
            if T:
                at = has.squeeze(-1).to(torch.uint8).argmax(-1, keepdim=True)
                dead = torch.where(has, dead, torch.where(has.any(), ids[:, 0].gather(0, at), 0).unsqueeze(-1))
        else:
            dead = torch.full_like(ids[:, :1], -1)
        ids = torch.where(used, ids, dead).to(torch.int32)
        if self.model.n_shared:
            shared = torch.arange(self.model.n_experts, self.model.n_experts + self.model.n_shared, dtype=torch.int32,
                                  device=ids.device).expand(T, -1)
            pad = rows.pad.unsqueeze(-1)
            weight = torch.full_like(weights[:, :1], self.model.shared_weight).masked_fill(pad, 0.0).expand_as(shared)
            ids = torch.cat([ids, shared if repeat else torch.where(pad, -1, shared)], -1)
            weights = torch.cat([weights, weight], -1)
        return ids, weights

    def _count(self, ranked: _Ranked, plain: torch.Tensor, take: torch.Tensor, reason: torch.Tensor,
               rows: _Rows) -> torch.Tensor:
        by_expert = torch.zeros_like(ranked.order)
        distinct = by_expert.scatter(-1, ranked.order, take.long()).amax(0).sum() if len(take) else take.sum()
        distinct_plain = by_expert.scatter(-1, ranked.order, plain.long()).amax(0).sum() if len(take) else take.sum()
        real = ~rows.pad
        rerouted = ((take != plain).any(-1) & real).sum()
        underfilled = ((take.sum(-1) < plain.sum(-1)) & real).sum()
        numbers = [torch.ones_like(distinct), distinct, distinct_plain, take.sum(), rerouted, underfilled]
        numbers += [((reason == r) & real).sum() for r in range(len(REASONS))]
        return torch.stack(numbers)
