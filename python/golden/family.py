"""What the makers of tiny random models share: from the tensors of a case to a golden file.

A maker (make_glm_moe_dsa.py ...) says what its cases are: a configuration, the tensors by their published
names, and mistakes that an engine could make. This file writes the checkpoint as published ones look, runs
the reference on it, and takes the first seed whose run has no near-tie anywhere a decision is made: between
two tokens, at the edge of a routing decision or of a group of experts, or of the positions that an indexer
chooses. So a test may compare token ids. Every mistake must change the logits visibly.
"""
import argparse
import contextlib
import copy
import json
import pathlib
import shutil
import tempfile
from unittest import mock

import numpy
import torch
from safetensors.torch import save_file

import common

MIN_LOGIT_MARGIN, MIN_ROUTER_MARGIN, MIN_INDEX_MARGIN, MIN_DISTINCT_TOKENS = 1e-3, 4e-5, 1e-5, 8
MIN_BREAKAGE = 0.02


class Tensors:
    """Random tensors by name; scales keep every part of a network visible in the logits."""

    def __init__(self, rng):
        self.rng, self.all = rng, {}

    def matrix(self, name, rows, columns, std=None):
        std = columns ** -0.5 if std is None else std
        self.all[name] = torch.from_numpy((self.rng.standard_normal((rows, columns)) * std).astype(numpy.float32))

    def vector(self, name, size, mean, std):
        self.all[name] = torch.from_numpy((mean + self.rng.standard_normal(size) * std).astype(numpy.float32))

    def mlp(self, prefix, width, inner, names=("gate_proj", "up_proj", "down_proj")):
        self.matrix(f"{prefix}{names[0]}.weight", inner, width, 1.5 * width ** -0.5)
        self.matrix(f"{prefix}{names[1]}.weight", inner, width, 1.5 * width ** -0.5)
        self.matrix(f"{prefix}{names[2]}.weight", width, inner, 1.5 * inner ** -0.5)

    def stored(self, dtype, keep=("e_score_correction_bias",)):
        """As a checkpoint of this type has them: what `keep` names stays float32."""
        return {n: t if any(k in n for k in keep) else t.to(dtype) for n, t in self.all.items()}


def write_checkpoint(folder, config, tensors):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})


# Margins of decisions --------------------------------------------------------------------------------------------


def selection_scores(router, logits, bias):
    """What a router ranks experts by, before groups are left out: float64 [T, E]. `bias`: given to it, or its own."""
    bias = getattr(router, "e_score_correction_bias", bias)
    return logits.double() if bias is None else logits.double().sigmoid() + bias.double()


def edge(values, kept):
    """The smallest gap between the last kept and the first other of the last dimension; inf when all are kept."""
    if kept >= values.shape[-1]:
        return float("inf")
    ranked = values.sort(dim=-1, descending=True).values
    return (ranked[..., kept - 1] - ranked[..., kept]).min().item()


def router_margin(router, logits, bias=None):
    scores = selection_scores(router, logits, bias)
    groups, kept = getattr(router, "num_group", None) or 1, getattr(router, "topk_group", None) or 1
    if getattr(router, "topk_method", "") == "greedy":
        groups = kept = 1
    margin = float("inf")
    if kept < groups:
        parts = scores.view(len(scores), groups, -1)
        best = parts.topk(2, dim=-1).values.sum(-1) if hasattr(router, "e_score_correction_bias") else parts.amax(-1)
        margin = edge(best, kept)
        inside = torch.zeros_like(best).scatter_(1, best.topk(kept, dim=-1).indices, 1).bool()
        scores = parts.masked_fill(~inside.unsqueeze(-1), float("-inf")).reshape(scores.shape)
        scores = scores.clamp_min(-1e6)
    return min(margin, edge(scores, router.top_k))


@contextlib.contextmanager
def watch_decisions(model):
    """Yields a dict with the smallest margin of every kind of decision made inside."""
    margins, handles, inside = {"router": float("inf"), "index": float("inf")}, [], []
    plain_topk = torch.Tensor.topk

    def topk(self, k, *args, **kwargs):
        if inside:
            for row in self.reshape(-1, self.shape[-1]):
                row = row[row > -1e30]
                if k < len(row):
                    margins["index"] = min(margins["index"], edge(row.double(), k))
        return plain_topk(self, k, *args, **kwargs)

    for module in model.modules():
        kind = type(module).__name__
        if kind.lower().endswith("topkrouter"):
            handles.append(module.register_forward_hook(
                lambda m, a, out: margins.update(router=min(margins["router"], router_margin(m, out[0], *a[1:])))))
        if kind.endswith("Indexer"):
            handles.append(module.register_forward_pre_hook(lambda m, a: inside.append(m)))
            handles.append(module.register_forward_hook(lambda m, a, out: inside.pop() and None))
    try:
        with mock.patch.object(torch.Tensor, "topk", topk):
            yield margins
    finally:
        for handle in handles:
            handle.remove()


# A case ----------------------------------------------------------------------------------------------------------


def describe(model, exact, tokens, every_position):
    """One entry of "prompts", and the facts that decide whether the seed is taken."""
    chosen, lead = common.greedy(model, tokens)
    whole, first = list(tokens) + chosen[:-1], len(tokens) - 1
    with watch_decisions(model) as margins:
        logits = common.all_logits(model, whole)
    exact_logits = common.all_logits(exact, whole)
    facts = {
        "logit": min(lead), **margins,
        "float64": (logits.double() - exact_logits).abs().max().item(),
        "agreed": chosen == logits[first:].argmax(-1).tolist() == exact_logits[first:].argmax(-1).tolist(),
        "distinct": len(set(chosen)),
    }
    entry = {"tokens": list(tokens), "last_logits": common.encode_floats(logits[first])}
    if every_position:
        entry["all_logits"] = common.encode_floats(logits[: first + 1])
    entry["greedy"] = chosen
    entry["margins"] = [float(f"{m:.4g}") for m in lead]
    return entry, facts


def good(facts):
    return (facts["agreed"] and facts["distinct"] >= MIN_DISTINCT_TOKENS and facts["logit"] > MIN_LOGIT_MARGIN
            and facts["router"] > MIN_ROUTER_MARGIN and facts["index"] > MIN_INDEX_MARGIN)


def finite(value):
    return None if value == float("inf") else value


def sensitivity(model, breakages, prompts):
    """Largest change of a logit at the last position under each mistake; every one must be seen."""
    right, result = [common.all_logits(model, p)[-1] for p in prompts], {}
    for name, change in breakages.items():
        broken = copy.deepcopy(model)
        with torch.no_grad(), contextlib.ExitStack() as stack:
            change(broken, stack)
            wrong = [common.all_logits(broken, p)[-1] for p in prompts]
        difference = max((w - r).abs().max().item() for w, r in zip(wrong, right))
        if not difference >= MIN_BREAKAGE:
            return name, difference
        result[name] = float(f"{difference:.3g}")
    return result


def save_by_transformers(model, target, original_names):
    """The folder as transformers writes it, with the tensor names of published checkpoints or with its own."""
    model.save_pretrained(str(target), save_original_format=original_names)
    (target / "generation_config.json").unlink(missing_ok=True)
    again = common.load_reference(target).state_dict()
    if not all(torch.equal(t, again[n]) for n, t in model.state_dict().items()):
        raise SystemExit(f"{target}: transformers wrote another model")
    for file in target.iterdir():
        file.chmod(0o644)


def make_case(maker, name, out, max_seeds=400):
    case, reasons = maker.CASES[name], {}
    config = {**maker.BASE, **case.get("config", {})}
    config = {k: v for k, v in config.items() if v != "absent"}
    # What transformers is told: a model type that it knows, and plain weights.
    known = {**config, "model_type": maker.BASE["model_type"]}
    known.pop("quantization_config", None)
    for seed in range(1, max_seeds + 1):
        rng = numpy.random.default_rng([seed, list(maker.CASES).index(name)])
        made = Tensors(rng)
        maker.make_tensors(made, config, case)
        tensors = made.stored(getattr(torch, case.get("dtype", "bfloat16")))
        read = tensors
        if hasattr(maker, "quantise"):  # what the checkpoint has, and what the reference reads in its place
            tensors, read = maker.quantise(tensors)
        prompts = [rng.integers(0, config["vocab_size"], n).tolist() for n in case["prompts"]]
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch) / name
            write_checkpoint(folder, known, {n: t for n, t in read.items() if not maker.unread(n, config)})
            model, exact = common.load_reference(folder), common.load_reference(folder, torch.float64)
            entries, facts = [], []
            for i, prompt in enumerate(prompts):
                entry, fact = describe(model, exact, prompt, every_position=i in (0, len(prompts) - 1))
                entries.append(entry)
                facts.append(fact)
                if not good(fact):
                    break
            if not good(facts[-1]):
                continue
            seen = sensitivity(model, maker.breakages(config, case), prompts)
            if isinstance(seen, tuple):
                reasons[seen[0]] = max(reasons.get(seen[0], 0), seen[1])
                continue
        least = {kind: finite(min(f[kind] for f in facts)) for kind in ("logit", "router", "index")}
        golden = {
            "family": config["model_type"], "case": name, "what": case["what"],
            "made_by": {"command": f"python python/golden/{pathlib.Path(maker.__file__).name} {name}", "seed": seed,
                        **common.versions()},
            "vocab_size": config["vocab_size"],
            "numerics": {"min_logit_margin": least["logit"], "min_router_margin": least["router"],
                         "min_index_margin": least["index"],
                         "float64_max_abs_difference": max(f["float64"] for f in facts)},
            "breakages": seen, "prompts": entries,
        }
        target = out / case.get("folder", config["model_type"]) / name
        if target.exists():
            shutil.rmtree(target)
        if "save" in case:
            save_by_transformers(model, target, original_names=case["save"] != "fused")
        else:
            write_checkpoint(target, config, tensors)
        common.write_golden(target / "golden.json", golden)
        print(config["model_type"], name, "seed", seed, golden["numerics"], "breakages", seen, flush=True)
        return
    raise SystemExit(f"{name}: no seed up to {max_seeds} will do; mistakes that were not seen: {reasons}")


def main(maker):
    parser = argparse.ArgumentParser(description=maker.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of: {', '.join(maker.CASES)}; default: all")
    args = parser.parse_args()
    unknown = set(args.cases) - set(maker.CASES)
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    common.quiet()
    for name in args.cases or maker.CASES:
        make_case(maker, name, args.out)
