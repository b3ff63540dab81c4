"""The definition of routing: scoring and every policy, in plain numpy, written to be read.

Given one request (the JSON of `carpool routing score`, described in src/cli/routing.h) it answers the same JSON:

    python python/reference/routing.py request.json      # or - for standard input

Nothing here is fast and nothing is shared with the C++ code. Arithmetic is float32 where carpool's is; exponentials and
the sum of a softmax are rounded from float64, as there, which makes the bits the same. To add a policy: a function in the section "Policies"
and an entry in POLICIES. Golden files are made from this by python/golden/make_routing.py.
"""
import json
import sys

import numpy as np

F32 = np.float32
INF = F32(np.inf)


# ---- Scoring: from logits to rank scores and weight scores; from chosen experts to weights

def softmax(logits):
    """Softmax over the finite and +inf entries of a row; NaN and -inf get 0; +inf entries share all the mass."""
    usable = logits > -INF
    if not usable.any():
        return np.zeros_like(logits)
    top = logits[usable].max()
    if top == INF:
        powers = (logits == INF).astype(F32)
    else:
        shifted = np.where(usable, logits, -INF) - top
        powers = np.exp(shifted.astype(np.float64)).astype(F32)
    return powers / F32(powers.sum(dtype=np.float64))


def sigmoid(logits):
    usable = logits > -INF
    x = np.where(usable, logits, 0).astype(np.float64)
    return np.where(usable, np.exp(-np.logaddexp(0.0, -x)), 0).astype(F32)


def group_value(selection, kind):
    """A group's score from its experts' selection scores: its best, or the sum of its two best that can be chosen."""
    best = sorted((s for s in selection if s > -INF), reverse=True)
    if not best:
        return -INF
    return sum(best[:2], F32(0)) if kind == "top2" else best[0]


def limit_groups(selection, request):
    """Selection scores with everything outside the topk_group best groups set to -inf; ties to the lower group."""
    n_group, keep = request.get("n_group", 1), request.get("topk_group", 1)
    groups = selection.reshape(n_group, -1).copy()
    values = [group_value(g, request.get("group_score", "top2")) for g in groups]
    order = sorted(range(n_group), key=lambda g: (-values[g], g))
    for g in order[keep:]:
        groups[g] = -INF
    return groups.reshape(-1)


def score_row(logits, request):
    """One row of logits [E] -> (rank [E], mix [E])."""
    kind = request.get("scoring", "softmax")
    bias = request.get("bias")
    mix = sigmoid(logits) if kind == "sigmoid" else softmax(logits)
    selection = logits if kind == "softmax_topk" else mix
    if bias is not None:
        selection = selection + np.array(bias, F32)
    selection = np.where(logits > -INF, selection, -INF)
    rank = limit_groups(selection, request)
    if kind == "softmax" and bias is None:
        rank = np.where(rank > -INF, logits, -INF)  # the same order, without ties made by rounding probabilities
    return rank, mix


def mass(weights):
    """Their sum, best first in float32: the order is part of the definition."""
    total = F32(0)
    for w in weights:
        total = total + w
    return total


def divisor(batch, t, experts, norm):
    """What the weights of an applied row are divided by; 0 = what the model's rule says."""
    if norm == "model":
        return F32(0)
    if norm == "none":
        return F32(1)
    if norm == "final":
        return mass(batch.mix[t][experts])
    return mass(batch.mix[t][batch.order(t)[:batch.top_k if norm == "topk" else int(norm)]])


def finish_weights(mix, experts, request, divide_by=F32(0), total=F32(0)):
    """Weights of one row's experts, in their order. `total`: what stands in for their sum, 0 for nothing."""
    weights = mix[experts]
    if divide_by > 0:
        weights = weights / divide_by
    elif request.get("renormalize", True) or request.get("scoring") == "softmax_topk":
        total = total if total > 0 else mass(weights)
        weights = weights / total if total > 0 else np.full(len(experts), F32(1) / F32(max(1, len(experts))), F32)
    return weights * F32(request.get("routed_scaling_factor", 1))


# ---- What policies share

class Batch:
    """The rows of one step: rank [T][E], mix [T][E], rows [T] of {phase, isolated, group}, E and K."""

    def __init__(self, rank, mix, rows, top_k, tables=None, layer=0):
        self.rank, self.mix, self.rows, self.top_k, self.tables = rank, mix, rows, top_k, tables or {}
        self.layer = layer
        self.n_experts = len(rank[0])

    def order(self, t):
        """Experts of row t that can be chosen, best first: falling score, then rising id."""
        row = self.rank[t]
        return sorted((e for e in range(self.n_experts) if row[e] > -INF), key=lambda e: (-row[e], e))

    def plain(self, t):
        return [] if self.rows[t]["phase"] == "pad" else self.order(t)[:self.top_k]

    def own_reason(self, t):
        """Why row t stays plain whatever the batch, or None when a policy may re-route it."""
        row = self.rows[t]
        if row["phase"] == "pad":
            return "phase"
        if row["isolated"]:
            return "isolated"
        return None if row["phase"] == "decode" else "phase"

    def all_plain(self, reason):
        return [(self.plain(t), "phase" if row["phase"] == "pad" else reason) for t, row in enumerate(self.rows)]


# ---- Policies: (batch, arguments) -> per row (experts best first, reason it stayed plain or None), and a third entry
# {expert: what its slots count in place of the expert's own weight score} where slots stand for other experts

def topk(batch, _):
    return batch.all_plain("policy")


def prune(batch, arguments):
    k0 = int(arguments["k0"])
    if k0 == 0:
        return batch.all_plain("policy")
    rows = range(len(batch.rows))
    reasons = [batch.own_reason(t) for t in rows]
    p = float(arguments.get("p", 1))
    return [(batch.plain(t) if reasons[t] else oea_base(batch, t, k0, p), reasons[t]) for t in rows]


def oea_base(batch, t, k0, p):
    """The best min(k0, t_i) experts of row t; t_i ranks reach the share p of the row's weight."""
    best = batch.order(t)[:k0]
    if p >= 1:
        return best
    weights = batch.mix[t].astype(np.float64)
    total, mass = sum(weights), 0.0
    for n, expert in enumerate(best):
        mass += weights[expert]
        if mass >= p * total:
            return best[:n + 1]
    return best


def k0_of(batch, text):
    """The number of "5", or that of the batch's layer of "5/3/0"; 0 for layers that the list does not name."""
    numbers = text.split("/")
    return int(numbers[0] if len(numbers) == 1 else dict(enumerate(numbers)).get(batch.layer, 0))


def oea(batch, arguments):
    """Opportunistic Expert Activation, arXiv 2511.02237, algorithm 2, with guards and groups."""
    auto, p = arguments["k0"] == "auto", float(arguments.get("p", 1))
    floor = F32(arguments.get("floor", 0))
    k_max, max_p = int(arguments.get("k_max", batch.top_k)), int(arguments.get("max_p", batch.n_experts))
    min_batch, max_rows = int(arguments.get("min_batch", 2)), int(arguments.get("max_rows", sys.maxsize))
    keep, lend = arguments.get("underfill") == "keep", arguments.get("lend") == "prefill"
    guard = arguments.get("guard", "on") == "on"
    by_table = arguments["k0"] == "table"
    if not auto and not by_table and k0_of(batch, arguments["k0"]) == 0:
        return batch.all_plain("policy")

    groups = {row["group"] for row in batch.rows}
    own_k0 = 0 if auto else batch.tables["k0"] if by_table else k0_of(batch, arguments["k0"])
    k0s = {g: largest_k0(batch, g, arguments["t"]) if auto else own_k0 for g in groups}
    n_rows = sum(row["phase"] != "pad" for row in batch.rows)
    union, eligible = {}, {}
    for t, row in enumerate(batch.rows):
        takes_part = batch.own_reason(t) is None
        eligible[row["group"]] = eligible.get(row["group"], 0) + takes_part
        if takes_part or (lend and row["phase"] == "prefill" and not row["isolated"]):
            union.setdefault(row["group"], set()).update(oea_base(batch, t, k0s[row["group"]], p))

    answer = []
    for t, row in enumerate(batch.rows):
        reason, group_union = batch.own_reason(t), union.get(row["group"], set())
        if reason is None and eligible[row["group"]] < min_batch:
            reason = "min_batch"
        if reason is None and n_rows > max_rows:
            reason = "max_rows"
        if reason is None and guard and len(group_union) < batch.top_k:
            reason = "union"
        if reason is None and auto and k0s[row["group"]] == batch.top_k:
            reason = "budget"
        if reason is not None:
            answer.append((batch.plain(t), reason))
            continue
        base = oea_base(batch, t, k0s[row["group"]], p)
        bar = min([floor * batch.mix[t][e] for e in base[:1]] + [batch.mix[t][e] for e in base], default=F32(0))
        chosen = base[:min(k_max, max_p)]  # a k0 that was found may be more than a row is to have
        for expert in batch.order(t)[len(chosen):max_p]:
            if len(chosen) >= k_max:
                break
            if expert in group_union and (floor == 0 or batch.mix[t][expert] >= bar):
                chosen = chosen + [expert]
        if keep and len(chosen) < min(batch.top_k, k_max):
            answer.append((batch.plain(t), "union"))
        else:
            answer.append((chosen, None))
    return answer


def largest_k0(batch, group, target):
    """The largest k0 of 1 to K whose base sets together are at most `target` experts ("8" or "50%" of plain)."""
    rows = [t for t, row in enumerate(batch.rows) if row["group"] == group and batch.own_reason(t) is None]
    unions = [set().union(*(batch.order(t)[:k0] for t in rows)) for k0 in range(1, batch.top_k + 1)]
    most = budget(target, len(unions[-1]))
    return max([1] + [k0 for k0, union in enumerate(unions, 1) if len(union) <= most])


def budget(text, plain):
    """"8" -> 8; "50%" -> that share of `plain`, rounded up, at least 1."""
    return max(1, int(np.ceil(float(text[:-1]) / 100 * plain - 1e-9))) if text.endswith("%") else int(text)


def kept_experts(arguments, layer=0):
    """Experts of "always": "3+0.7" names expert 3 of every layer and expert 7 of layer 0."""
    items = arguments.get("always", "none")
    pairs = [item.split(".") for item in items.split("+")] if items != "none" else []
    return {int(p[-1]) for p in pairs if len(p) == 1 or int(p[0]) == layer}


def pool_policy(batch, arguments, vote, protect, size, has_guard=True, take=None):
    """Policies that choose a pool by vote: protected and kept experts, then those of most votes, ties to the lower id.
    take(t, pool) -> (experts, None, counts) of an applied row; without it a row takes its K best."""
    min_batch, max_rows = int(arguments.get("min_batch", 2)), int(arguments.get("max_rows", sys.maxsize))
    n_rows = sum(row["phase"] != "pad" for row in batch.rows)
    pools, reasons = {}, {}
    for group in {row["group"] for row in batch.rows}:
        rows = [t for t, row in enumerate(batch.rows) if row["group"] == group and batch.own_reason(t) is None]
        plain = set().union(*(batch.plain(t) for t in rows))
        if len(rows) < min_batch or n_rows > max_rows:
            reasons[group] = "min_batch" if len(rows) < min_batch else "max_rows"
            continue
        if has_guard and arguments.get("guard", "on") == "on" and len(plain) <= size(len(plain)):
            reasons[group] = "budget"
            continue
        votes = sum((vote(t) for t in rows), np.zeros(batch.n_experts))
        pool = set().union(*(protect(t) for t in rows)) | (kept_experts(arguments) & plain)
        rest = sorted((e for e in range(batch.n_experts) if votes[e] > 0 and e not in pool),
                      key=lambda e: (-votes[e], e))
        pool |= set(rest[:max(0, size(len(plain)) - len(pool))])
        empty = [t for t in rows if not pool & set(batch.order(t))]
        pools[group] = pool | {batch.order(t)[0] for t in empty if batch.order(t)}
    answer = []
    for t, row in enumerate(batch.rows):
        reason = batch.own_reason(t) or reasons.get(row["group"])
        pool = pools.get(row["group"], set())
        if take and not reason:
            answer.append(take(t, pool))
            continue
        chosen = batch.plain(t) if reason else [e for e in batch.order(t) if e in pool][:batch.top_k]
        answer.append((chosen, reason))
    return answer


def weight_votes(batch, t, among=None):
    """The weights of row t's experts that can be chosen, or of those `among` them, as votes [E] in float64."""
    votes = np.zeros(batch.n_experts)
    for e in batch.order(t) if among is None else among:
        votes[e] = batch.mix[t][e]
    return votes


def xshare(batch, arguments):
    """XShare, arXiv 2602.07265."""
    return pool_policy(batch, arguments, lambda t: weight_votes(batch, t),
                       lambda t: batch.order(t)[:int(arguments.get("k0", 1))],
                       lambda plain: budget(arguments["m"], plain))


def des_vote(batch, arguments):
    """DES-Vote, arXiv 2602.00879; vote=all: MoE-Spec, arXiv 2602.16052."""
    among = (lambda t: None) if arguments.get("vote") == "all" else batch.plain
    return pool_policy(batch, arguments, lambda t: weight_votes(batch, t, among(t)), lambda t: [],
                       lambda plain: budget(arguments["m"], plain))


def lynx(batch, arguments):
    """Lynx, arXiv 2411.08982, first version."""
    def count(t):
        return np.isin(np.arange(batch.n_experts), batch.plain(t)).astype(float)
    return pool_policy(batch, arguments, count, lambda t: [],
                       lambda plain: max(1, plain - budget(arguments["drop"], plain)), has_guard=False)


def lynx_bins(batch, arguments, alpha=2, beta=8):
    """Affinity binning of Lynx, third version, with constants of our own."""
    sigmoid_scores, sure = arguments.get("scores") == "sigmoid", float(arguments.get("sure", 0.5))

    def log_of(w):
        w = np.float64(w)
        with np.errstate(all="ignore"):
            return np.log(w / (1 - w) if sigmoid_scores else w)

    def vote(t):
        votes, best = np.zeros(batch.n_experts), batch.plain(t)
        for e in best:
            with np.errstate(all="ignore"):
                step = np.floor(alpha * (log_of(batch.mix[t][e]) - log_of(batch.mix[t][best[0]])))
            votes[e] = 2.0 ** (beta + (min(step, 0) if step >= -beta else -beta))
        return votes

    def protect(t):
        best = batch.plain(t)
        total = sum(float(batch.mix[t][e]) for e in best)
        return best[:1] if best and float(batch.mix[t][best[0]]) >= sure * total else []
    return pool_policy(batch, arguments, vote, protect, lambda plain: budget(arguments["m"], plain))


def per_row(batch, choose):
    """A policy whose rows know nothing of each other: choose(t) for those that may be re-routed."""
    reasons = [batch.own_reason(t) for t in range(len(batch.rows))]
    return [(batch.plain(t) if reason else choose(t), reason) for t, reason in enumerate(reasons)]


def top_p(batch, arguments):
    """The best experts that hold the share p of the row's weight, at most K: arXiv 2403.07652 without the training."""
    return per_row(batch, lambda t: oea_base(batch, t, batch.top_k, float(arguments["p"])))


def ser(batch, arguments):
    """Smart expert reduction of ik_llama.cpp: a prefix of the K best whose weights are at least t of the best one's."""
    k_min, share = int(arguments["k_min"]), float(arguments["t"])

    def choose(t):
        best = batch.plain(t)
        for i in range(k_min, len(best)):
            if float(batch.mix[t][best[i]]) < share * float(batch.mix[t][best[0]]):
                return best[:i]
        return best
    return per_row(batch, choose)


def merged(batch, t, slots):
    """A row of (expert that runs the slot, what the slot counts): slots of one expert are summed in float32, in order."""
    counts = {}
    for expert, count in slots:
        counts[expert] = counts.get(expert, F32(0)) + F32(count)
    return [e for e in batch.order(t) if e in counts], None, counts


def sere(batch, arguments):
    """SERE, arXiv 2602.07616: slots beyond the k0 best move to the most similar of the rows' k0 best."""
    k0, rho = int(arguments["k0"]), float(arguments.get("rho", 0.1))
    min_batch, max_rows = int(arguments.get("min_batch", 2)), int(arguments.get("max_rows", sys.maxsize))
    alike = np.array(batch.tables["similarity"], F32)
    n_rows = sum(row["phase"] != "pad" for row in batch.rows)
    answer = []
    for t, row in enumerate(batch.rows):
        peers = [u for u, other in enumerate(batch.rows)
                 if other["group"] == row["group"] and batch.own_reason(u) is None]
        reason = batch.own_reason(t)
        if reason is None and len(peers) < min_batch:
            reason = "min_batch"
        if reason is None and n_rows > max_rows:
            reason = "max_rows"
        if reason is not None:
            answer.append((batch.plain(t), reason))
            continue
        primary = set().union(*(batch.order(u)[:k0] for u in peers))
        targets = sorted(primary & set(batch.order(t)))
        slots = []
        for expert in batch.plain(t):
            to = expert
            if expert not in primary and targets:
                best = max(targets, key=lambda v: (alike[expert][v], -v))
                to = best if rho == 0 or float(alike[expert][best]) >= rho else expert
            slots.append((to, batch.mix[t][expert]))
        answer.append(merged(batch, t, slots))
    return answer


def exfold(batch, arguments):
    """ExFold, arXiv 2608.24938: slots outside a pool go to its experts that stand in for theirs best."""
    scale, loss = np.array(batch.tables["fold_scale"], F32), np.array(batch.tables["fold_loss"], F32)
    static = arguments.get("pool") == "static"
    values = np.array(batch.tables["contribution" if static else "norm"], F32)
    shares = values / values.max() if values.max() > 0 else np.ones_like(values)

    def vote(t):
        if static:
            return np.maximum(shares.astype(np.float64), 2.0 ** -40)
        votes = np.zeros(batch.n_experts)
        for e in batch.plain(t):
            votes[e] = batch.mix[t][e] * shares[e]
        return votes

    def take(t, pool):
        targets = sorted(pool & set(batch.order(t)))
        slots = []
        for expert in batch.plain(t):
            if expert in pool:
                slots.append((expert, batch.mix[t][expert]))
            elif targets:
                to = min(targets, key=lambda v: (loss[expert][v], v))
                if scale[expert][to] > 0:
                    slots.append((to, batch.mix[t][expert] * scale[expert][to]))
        if not slots:
            slots = [(e, batch.mix[t][e]) for e in batch.order(t) if e in pool][:1]
        return merged(batch, t, slots)
    return pool_policy(batch, arguments, vote, lambda t: [], lambda plain: budget(arguments["m"], plain), take=take)


def cache_prior(batch, arguments):
    """The cache-prior rule of arXiv 2412.00099, with the mean range of a calibration."""
    k0 = int(arguments.get("k0", 1))
    bonus = F32(float(arguments["lambda"]) * float(F32(batch.tables["rank_range"])))
    resident = batch.tables["resident"]

    def choose(t):
        order, rank = batch.order(t), batch.rank[t]
        rest = sorted(order[k0:], key=lambda e: (-(rank[e] + bonus if resident[e] else rank[e]), e))
        chosen = set(order[:k0]) | set(rest[:max(0, batch.top_k - k0)])
        return [e for e in order if e in chosen]
    return per_row(batch, choose)


POLICIES = {"topk": topk, "prune": prune, "oea": oea, "xshare": xshare, "des_vote": des_vote, "lynx": lynx,
            "lynx_bins": lynx_bins, "top_p": top_p, "ser": ser, "sere": sere, "exfold": exfold,
            "cache_prior": cache_prior}


# ---- Requests

def parse_spec(spec):
    """"oea:k0=5,p=0.5" -> ("oea", {"k0": "5", "p": "0.5"})."""
    name, _, text = spec.partition(":")
    return name, dict(item.split("=") for item in text.split(",") if item)


def decode(number):
    return F32(float(number))  # float() reads "nan", "inf" and "-inf" as well


def encode(number):
    return float(number) if np.isfinite(number) else str(float(number))


def make_batch(request):
    """The scored rows of a request."""
    rows = [{"phase": "decode", "isolated": False, "group": 0, **row} for row in request.get("rows") or
            [{}] * len(request["logits"])]
    scored = [score_row(np.array([decode(x) for x in row], F32), request) for row in request["logits"]]
    return Batch([rank for rank, _ in scored], [mix for _, mix in scored], rows, request["top_k"],
                 request.get("tables"), request.get("layer", 0))


def weigh(batch, t, row, request, norm):
    """The finished weights of one row of a policy's answer."""
    experts, reason, *counts = row
    mix = batch.mix[t]
    if not counts:
        return finish_weights(mix, experts, request, F32(0) if reason else divisor(batch, t, experts, norm))
    own = mix.copy()
    for expert, count in counts[0].items():
        own[expert] = count
    divide_by = mass(own[experts]) if norm == "final" else divisor(batch, t, experts, norm)
    return finish_weights(own, experts, request, divide_by, mass(mix[batch.plain(t)]))


def answer(request):
    batch = make_batch(request)
    name, arguments = parse_spec(request.get("policy", "topk"))
    answers = POLICIES[name](batch, arguments)
    chosen = [row[:2] for row in answers]
    plain = [batch.plain(t) for t in range(len(batch.rows))]
    norm = arguments.get("norm", "model")
    return {
        "experts": [experts for experts, _ in chosen],
        "weights": [[encode(w) for w in weigh(batch, t, row, request, norm)] for t, row in enumerate(answers)],
        "active": sorted({e for experts, _ in chosen for e in experts}),
        "active_plain": sorted({e for experts in plain for e in experts}),
        "plain_reason": [reason for _, reason in chosen],
    }


def main():
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} FILE|-")
    with (sys.stdin if sys.argv[1] == "-" else open(sys.argv[1], encoding="utf-8")) as file:
        request = json.load(file)
    np.seterr(invalid="ignore")  # comparisons with NaN are meant
    print(json.dumps(answer(request)))


if __name__ == "__main__":
    main()
