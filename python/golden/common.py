"""What every golden-file maker shares: loading a reference model, running it, describing the run.

The reference is transformers, in float32, with the plain ("eager") attention and experts, on one
thread. A golden file is JSON; arrays of numbers are base64 of little-endian float32, row-major, so
that no digit is lost. README.md in this folder gives the schema. This file knows no model family
except that routers are modules whose class name ends in TopKRouter (in any case), which return
(logits, weights, expert ids), and that a router with an e_score_correction_bias chooses by
sigmoid(logits) plus that bias, any other by its logits. Makers: make_qwen3_moe.py, make_model_golden.py.
"""
import base64
import contextlib
import json
import re

import numpy
import torch
import transformers

GREEDY_TOKENS = 64


def encode_floats(tensor):
    """Any float tensor -> base64 of little-endian float32, row-major."""
    array = tensor.detach().to(torch.float32).contiguous().numpy().astype("<f4")
    return base64.b64encode(array.tobytes()).decode("ascii")


def decode_floats(text, shape):
    return torch.from_numpy(numpy.frombuffer(base64.b64decode(text), dtype="<f4").reshape(shape).copy())


def versions():
    return {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}


def quiet():
    """One thread, so that sums have one order; no progress bars."""
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


def load_reference(folder, dtype=torch.float32):
    """The model of `folder`, computing in `dtype`; fails if a tensor is missing or left over."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        str(folder), dtype=dtype, attn_implementation="eager", experts_implementation="eager",
        output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info.get(kind):
            raise SystemExit(f"{folder}: {kind}: {sorted(info[kind])[:5]}")
    return model.eval()


def best_first(router, logits, weights, ids):
    """(logits, choice, weights, ids): what experts are chosen by, [T, E], and the columns put in its order."""
    bias = getattr(router, "e_score_correction_bias", None)
    choice = logits if bias is None else logits.sigmoid() + bias
    order = choice.gather(1, ids).argsort(dim=-1, descending=True, stable=True)
    return logits, choice, weights.gather(1, order), ids.gather(1, order)


@contextlib.contextmanager
def watch(model):
    """Records, in layer order, each router's (layer, logits, choice, weights, ids) and each layer's output."""
    records, handles = {"routers": [], "hidden": []}, []
    for i, layer in enumerate(model.model.layers):
        handles.append(layer.register_forward_hook(lambda m, a, out: records["hidden"].append(out[0])))
        for module in layer.modules():
            if type(module).__name__.lower().endswith("topkrouter"):
                handles.append(module.register_forward_hook(
                    lambda m, a, out, i=i: records["routers"].append((i, *best_first(m, *out)))))
    try:
        yield records
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def all_logits(model, tokens):
    """Logits [T, V] of one forward pass over `tokens`, without a cache."""
    return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]


@torch.no_grad()
def greedy(model, tokens, steps=GREEDY_TOKENS):
    """The next `steps` tokens, each the lowest id of highest logit, and the margin over the second best."""
    cache, step_input, chosen, margins = transformers.DynamicCache(config=model.config), torch.tensor([tokens]), [], []
    for _ in range(steps):
        out = model(input_ids=step_input, cache=cache, use_cache=True)
        best = out.logits[0, -1].topk(2).values
        token = int((out.logits[0, -1] == best[0]).nonzero()[0, 0])
        chosen.append(token)
        margins.append(float(best[0] - best[1]))
        step_input = torch.tensor([[token]])
    return chosen, margins


def router_margin(routers, top_k):
    """The smallest gap between what the last chosen and the first unchosen expert were chosen by, over tokens and layers."""
    gaps = []
    for _, _, choice, _, _ in routers:
        if top_k < choice.shape[-1]:
            ranked = choice.sort(dim=-1, descending=True).values
            gaps.append((ranked[:, top_k - 1] - ranked[:, top_k]).min().item())
    return min(gaps) if gaps else None


def trace(model, tokens):
    """Per layer: the residual stream after it, and for an MoE layer what its router did."""
    with watch(model) as records:
        all_logits(model, tokens)
    layers = [{"layer": i, "hidden": encode_floats(h.reshape(len(tokens), -1))}
              for i, h in enumerate(records["hidden"])]
    for i, logits, _, weights, ids in records["routers"]:
        layers[i].update(router_logits=encode_floats(logits), selected=ids.tolist(), weights=encode_floats(weights))
    return layers


def describe_prompt(model, exact, tokens, every_position=False):
    """One entry of "prompts", plus what the caller needs to judge it.

    `exact` is the same model in float64. Returns (entry, facts); facts has the smallest margins and the
    largest difference of a float32 logit from float64, over the prompt and its continuation.
    """
    chosen, margins = greedy(model, tokens)
    whole = list(tokens) + chosen[:-1]
    with watch(model) as records:
        logits = all_logits(model, whole)
    exact_logits = all_logits(exact, whole)
    first = len(tokens) - 1
    facts = {
        "min_logit_margin": min(margins),
        "min_router_margin": router_margin(records["routers"], model.config.num_experts_per_tok),
        "float64_max_abs_difference": (logits.double() - exact_logits).abs().max().item(),
        # The cached run, the uncached run and the float64 run must agree on every token.
        "agreed": chosen == logits[first:].argmax(-1).tolist() == exact_logits[first:].argmax(-1).tolist(),
        "distinct_tokens": len(set(chosen)),
    }
    entry = {"tokens": list(tokens), "last_logits": encode_floats(logits[first])}
    if every_position:
        entry["all_logits"] = encode_floats(logits[: first + 1])
    entry["greedy"] = chosen
    entry["margins"] = [float(f"{m:.4g}") for m in margins]
    return entry, facts


def summarise(facts):
    """The facts of all prompts, folded: the worst of each."""
    routers = [f["min_router_margin"] for f in facts if f["min_router_margin"] is not None]
    return {"min_logit_margin": min(f["min_logit_margin"] for f in facts),
            "min_router_margin": min(routers) if routers else None,
            "float64_max_abs_difference": max(f["float64_max_abs_difference"] for f in facts)}


def write_golden(path, golden):
    """JSON with every list of plain numbers on one line, so that a diff can be read."""
    text = json.dumps(golden, indent=1)
    text = re.sub(r"\[\s+([-+.\de]+(?:,\s+[-+.\de]+)*)\s+\]", lambda m: "[" + " ".join(m[1].split()) + "]", text)
    if json.loads(text) != golden:
        raise AssertionError("the compact form says something else")
    path.write_text(text + "\n")
