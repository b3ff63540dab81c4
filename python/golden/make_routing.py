"""Golden files of the routing core: tests/golden/routing/<scoring>.json, from python/reference/routing.py.

    python python/golden/make_routing.py

Every scoring kind (with and without renormalisation, bias, groups, scale) meets every policy argument, plus rows with
NaN and infinities and rows full of ties. Chosen experts are compared exactly by the C++ test, so an input is drawn again
until no choice hangs on the last digits: rank scores, group scores and mass thresholds are equal or apart by MARGIN.
Each file records the seed and the version of numpy.
"""
import json
import pathlib
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python" / "reference"))
import routing  # noqa: E402  (found through the path above)

SEED = 20251102
MARGIN = 1e-4
EXPERTS, TOP_K, ROWS = 12, 4, 6

SPECS = [
    "topk", "prune:k0=0", "prune:k0=2", "prune:k0=3,p=0.5", "oea:k0=0", "oea:k0=1", "oea:k0=2", "oea:k0=3", "oea:k0=4",
    "oea:k0=1,min_batch=1,guard=off", "oea:k0=2,min_batch=1,guard=off", "oea:k0=2,min_batch=4", "oea:k0=3,p=0.5",
    "oea:k0=3,p=0.3,guard=off", "oea:k0=2,k_max=6", "oea:k0=2,k_max=3", "oea:k0=2,max_p=5", "oea:k0=2,max_rows=4",
    "oea:k0=1,underfill=keep,guard=off", "oea:k0=2,k_max=3,underfill=keep,guard=off", "oea:k0=1,lend=prefill", "oea:k0=2,lend=prefill,guard=off",
    "oea:k0=2,p=0.6,k_max=5,max_p=8,min_batch=1,underfill=keep,lend=prefill,guard=off",
    "oea:k0=auto,t=50%", "oea:k0=auto,t=6,min_batch=1,guard=off", "oea:k0=1,floor=0.4,guard=off", "oea:k0=2,norm=topk",
    "oea:k0=2,norm=none", "oea:k0=2,norm=7,guard=off", "xshare:m=5", "xshare:m=50%", "xshare:m=6,k0=2,guard=off",
    "xshare:m=75%,k0=0,norm=final,always=1+0.3+5.2", "des_vote:m=5", "des_vote:m=50%,norm=topk",
    "des_vote:m=4,vote=all,min_batch=1,guard=off,always=2", "lynx:drop=2", "lynx:drop=50%,norm=none", "lynx_bins:m=5",
    "lynx_bins:m=50%,sure=0.3", "lynx_bins:m=3,scores=sigmoid,min_batch=1,guard=off", "top_p:p=0.4", "top_p:p=0.7,norm=topk",
    "ser:k_min=1,t=0.4", "ser:k_min=2,t=0.7,norm=final",
]
TABLE_SPECS = [
    "sere:table=t,k0=1", "sere:table=t,k0=2,rho=0", "sere:table=t,k0=2,rho=0.6,norm=topk",
    "sere:table=t,k0=1,rho=0.5,min_batch=1,norm=none", "sere:table=t,k0=1,rho=0,max_rows=5,norm=final",
    "exfold:table=t,m=5", "exfold:table=t,m=50%,norm=topk", "exfold:table=t,m=4,pool=static,guard=off",
    "exfold:table=t,m=3,guard=off,min_batch=1,always=1+0.3,norm=final", "cache_prior:table=t,lambda=0.2",
    "cache_prior:table=t,lambda=0.6,k0=2,norm=topk", "cache_prior:table=t,lambda=50,k0=0",
    "oea:k0=table,table=t", "oea:k0=table,table=t,guard=off,min_batch=1",
]
VARIANTS = {
    "softmax": [{}, {"renormalize": False}, {"bias": True}, {"n_group": 4, "topk_group": 2},
                {"n_group": 3, "topk_group": 2, "group_score": "max", "routed_scaling_factor": 2.5,
                 "renormalize": False}],
    "softmax_topk": [{}, {"bias": True, "routed_scaling_factor": 1.5}, {"n_group": 3, "topk_group": 2}],
    "sigmoid": [{}, {"bias": True}, {"bias": True, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5},
                {"renormalize": False, "n_group": 3, "topk_group": 1, "group_score": "max"}],
}


def draw_logits(rng, kind):
    """[ROWS][EXPERTS] multiples of 1/16; "ties": of 1; "special": a quarter of them NaN or infinite."""
    step = 1 if kind == "ties" else 16
    logits = (rng.integers(-3 * step, 3 * step + 1, (ROWS, EXPERTS)) / step).tolist()
    if kind == "special":
        names = ["nan", "inf", "-inf"]
        logits = [[names[rng.integers(3)] if rng.random() < 0.25 else x for x in row] for row in logits]
        logits[1] = ["nan" if e % 2 else "-inf" for e in range(EXPERTS)]
    return logits


def draw_rows(rng):
    """Mostly decode rows of two groups; one of each other kind now and then."""
    kinds = [{}] * 6 + [{"group": 1}] * 4 + [{"phase": "prefill"}, {"isolated": True}, {"phase": "pad"},
                                            {"phase": "prefill", "isolated": True}, {"phase": "prefill", "group": 1}]
    return [kinds[i] for i in rng.integers(len(kinds), size=ROWS)]


def draw_tables(rng, spec):
    """The tables that a policy needs, multiples of 1/16 (1/128 where a sum is to be settled)."""
    def draw(size, steps=16, most=1.0):
        return (rng.integers(0, steps + 1, size) / steps * most).tolist()
    name, square = spec.split(":")[0], (EXPERTS, EXPERTS)
    if name == "sere":
        return {"similarity": draw(square)}
    if name == "exfold":
        return {"fold_scale": draw(square, most=1.5), "fold_loss": draw(square), "norm": draw(EXPERTS, 128, 8),
                "contribution": draw(EXPERTS, 128, 2)}
    if name == "cache_prior":
        return {"resident": rng.integers(0, 2, EXPERTS).tolist(), "rank_range": draw(None, 16, 4)}
    return {"k0": int(rng.integers(1, TOP_K + 1))}


def draw_request(rng, scoring, variant, spec, kind):
    request = {"logits": draw_logits(rng, kind), "scoring": scoring, "top_k": TOP_K, "policy": spec, **variant}
    if variant.get("bias"):
        request["bias"] = (rng.integers(-8, 9, EXPERTS) / 16).tolist()
    if rng.random() < 0.7:
        request["rows"] = draw_rows(rng)
    if "table=" in spec:
        request["tables"] = draw_tables(rng, spec)
    return request


def apart(values):
    """Whether values are pairwise equal or at least MARGIN apart, infinities aside."""
    gaps = np.diff(np.sort([float(v) for v in values if np.isfinite(v)]))
    return bool(np.all((gaps == 0) | (gaps > MARGIN)))


def settled(request):
    """Whether no choice of the request depends on rounding."""
    batch = routing.make_batch(request)
    _, arguments = routing.parse_spec(request["policy"])
    for t in range(ROWS):
        logits = np.array([routing.decode(x) for x in request["logits"][t]], np.float32)
        kind = request["scoring"]
        selection = logits if kind == "softmax_topk" else batch.mix[t]
        selection = selection + np.array(request.get("bias", 0), np.float32)
        selection = np.where(logits > -np.inf, selection, -np.inf)
        groups = selection.reshape(request.get("n_group", 1), -1)
        values = [routing.group_value(g, request.get("group_score", "top2")) for g in groups]
        if not apart(batch.rank[t]) or (len(values) > 1 and not apart(values)):
            return False
        mass = np.cumsum([float(batch.mix[t][e]) for e in batch.order(t)])
        shares = mass / max(float(batch.mix[t].sum(dtype=np.float64)), 1e-30)
        if np.any(np.abs(shares - float(arguments.get("p", 1))) < MARGIN) and "p" in arguments:
            return False
        if not settled_ratios(batch, t, arguments):
            return False
    return settled_votes(batch, request, arguments) and settled_bonuses(batch, request, arguments)


def settled_bonuses(batch, request, arguments):
    """Whether no expert with the bonus of a resident one stands just beside another."""
    if not request["policy"].startswith("cache_prior"):
        return True
    bonus = float(arguments["lambda"]) * request["tables"]["rank_range"]
    resident = np.array(request["tables"]["resident"], bool)
    for rank in batch.rank:
        biased = np.where(resident, rank.astype(np.float64) + bonus, rank)
        if not apart(biased):
            return False
    return True


def settled_ratios(batch, t, arguments):
    """Whether no weight of row t stands just at a share of another, or at the edge of a bin."""
    order = batch.order(t)
    if not order:
        return True
    weights = np.array([float(batch.mix[t][e]) for e in order])
    ratios = weights / weights[0] if weights[0] > 0 else np.zeros(len(order))
    for key, share in (("floor", None), ("t", None), ("sure", None)):
        if key in arguments and not arguments[key].endswith("%") and "auto" not in arguments.values():
            total = weights[:TOP_K].sum()
            near = ratios - float(arguments[key]) if key != "sure" else weights[:1] / max(total, 1e-30) - float(arguments[key])
            if np.any(np.abs(near) < MARGIN):
                return False
    if "scores" in arguments or "sure" in arguments or arguments.get("m") and "vote" not in arguments:
        for kind in ("softmax", "sigmoid"):
            with np.errstate(all="ignore"):
                logs = np.log(weights / (1 - weights) if kind == "sigmoid" else weights)
                bins = 2 * (logs[:TOP_K] - logs[0])
            bins = bins[1:][np.isfinite(bins[1:])]
            if np.any(np.abs(bins - np.round(bins)) < MARGIN):
                return False
    return True


def settled_votes(batch, request, arguments):
    """Whether sums of weights over a group, where they decide, are zero or apart by MARGIN."""
    name = request["policy"].split(":")[0]
    if name == "exfold":
        return settled_contributions(batch, request)
    if name not in ("xshare", "des_vote"):
        return True
    for group in {row["group"] for row in batch.rows}:
        rows = [t for t, row in enumerate(batch.rows) if row["group"] == group and batch.own_reason(t) is None]
        of_all = name == "xshare" or arguments.get("vote") == "all"
        votes = sum((routing.weight_votes(batch, t, None if of_all else batch.plain(t)) for t in rows), np.zeros(EXPERTS))
        gaps = np.diff(np.sort(votes[votes > 0]))
        if np.any(gaps < MARGIN):
            return False
    return True


def settled_contributions(batch, request):
    """The same for weights times norms, or for calibrated contributions."""
    tables = request["tables"]
    if "pool=static" in request["policy"]:
        return len(set(tables["contribution"])) == EXPERTS
    shares = np.array(tables["norm"]) / max(tables["norm"])
    for group in {row["group"] for row in batch.rows}:
        rows = [t for t, row in enumerate(batch.rows) if row["group"] == group and batch.own_reason(t) is None]
        votes = sum((routing.weight_votes(batch, t, batch.plain(t)) * shares for t in rows), np.zeros(EXPERTS))
        if np.any(np.diff(np.sort(votes[votes > 0])) < MARGIN):
            return False
    return True


def make_case(rng, scoring, variant, spec, kind):
    for _ in range(10000 if kind == "usual" else 300):
        request = draw_request(rng, scoring, variant, spec, kind)
        if settled(request):
            return {"request": request, "answer": routing.answer(request)}
    if kind != "usual":
        return None  # sums of tied weights are tied themselves, up to rounding
    raise SystemExit(f"no settled input for {scoring} {variant} {spec} {kind}")


def main():
    np.seterr(invalid="ignore")
    folder = ROOT / "tests" / "golden" / "routing"
    folder.mkdir(parents=True, exist_ok=True)
    for scoring, variants in VARIANTS.items():
        rng = np.random.default_rng(SEED)
        cases = [make_case(rng, scoring, variant, spec, "usual") for variant in variants for spec in SPECS]
        for kind in ("ties", "special"):
            cases += [make_case(rng, scoring, variants[0], spec, kind) for spec in SPECS]
        rng = np.random.default_rng(SEED + 1)
        cases += [make_case(rng, scoring, variant, spec, "usual") for variant in variants for spec in TABLE_SPECS]
        for kind in ("ties", "special"):
            cases += [make_case(rng, scoring, variants[0], spec, kind) for spec in TABLE_SPECS]
        cases = [case for case in cases if case]
        head = {"made_by": "python/golden/make_routing.py", "seed": SEED, "numpy": np.__version__}
        lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
        text = json.dumps(head)[:-1] + ', "cases": [\n' + lines + "\n]}\n"
        if json.loads(text)["cases"] != cases:
            raise AssertionError("the file says something else")
        (folder / f"{scoring}.json").write_text(text)
        print(f"{scoring}: {len(cases)} cases, {len(text)} bytes")


if __name__ == "__main__":
    main()
