"""Makes the tiny random Qwen3-MoE models of the tests and their golden files.

  python make_qwen3_moe.py [--out tests/golden/qwen3_moe] [CASE...]

Each case is a Hugging Face folder with the tensor names of published Qwen3-MoE checkpoints (one tensor
per expert and projection) plus golden.json, made by transformers in float32. Together the cases take
every branch of the family. Weights come from numpy's generator, seeded; the first seed is taken whose
greedy continuations have no near-tie, neither between two tokens nor at the edge of a routing decision,
so that a test may compare token ids. For each case the maker also breaks the reference in several ways
(no query norm, gate and up swapped ...) and requires that the logits notice.
Next: common.py (how the reference runs), README.md (the schema of golden.json).
"""
import argparse
import copy
import json
import pathlib
import shutil
import tempfile

import numpy
import torch
import transformers
from safetensors.torch import load_file, save_file

import common

PROMPT_LENGTHS = [5, 1, 2, 17, 40]
MIN_LOGIT_MARGIN, MIN_ROUTER_MARGIN, MIN_DISTINCT_TOKENS = 1e-3, 1e-4, 8

BASE = {
    "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": None, "decoder_sparse_step": 1, "eos_token_id": None, "head_dim": 16, "hidden_act": "silu",
    "hidden_size": 32, "initializer_range": 0.02, "intermediate_size": 48, "max_position_embeddings": 256,
    "max_window_layers": 2, "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 20,
    "norm_topk_prob": True, "num_attention_heads": 4, "num_experts": 8, "num_experts_per_tok": 2,
    "num_hidden_layers": 2, "num_key_value_heads": 2, "output_router_logits": False, "rms_norm_eps": 1e-6,
    "rope_scaling": None, "rope_theta": 10000.0, "router_aux_loss_coef": 0.001, "sliding_window": None,
    "tie_word_embeddings": False, "torch_dtype": "float32", "use_cache": True, "use_sliding_window": False,
    "vocab_size": 96,
}
# name -> (what it is for, changes to BASE; None removes a field, number of files, how it is saved)
CASES = {
    "float32_untied": (
        "float32 weights, head_dim is not hidden_size / heads, two query heads per key head, own output head",
        {}, 1, "published"),
    "bf16_tied": (
        "weights stored as BF16 and computed in float32, the output head is the embedding",
        {"torch_dtype": "bfloat16", "tie_word_embeddings": True, "vocab_size": 128, "num_experts": 16,
         "num_experts_per_tok": 4, "num_hidden_layers": 3, "hidden_size": 40, "head_dim": 12,
         "moe_intermediate_size": 16}, 1, "published"),
    "dense_layers": (
        "weights of the chosen experts are not renormalised; MoE only in layers 3 and 5 (decoder_sparse_step 2 and "
        "mlp_only_layers [1]); as many key heads as query heads; head_dim not given; rope_theta 1e6",
        {"norm_topk_prob": False, "decoder_sparse_step": 2, "mlp_only_layers": [1], "num_hidden_layers": 6,
         "num_key_value_heads": 4, "head_dim": None, "rope_theta": 1000000.0, "num_experts_per_tok": 3,
         "moe_intermediate_size": 24}, 1, "published"),
    "sharded_top1": (
        "three files with an index, the experts of each layer lie in two of them; one expert per token; one key head",
        {"num_experts_per_tok": 1, "num_key_value_heads": 1, "num_experts": 12, "hidden_size": 40,
         "moe_intermediate_size": 12, "vocab_size": 101}, 3, "published"),
    "all_experts_bias": (
        "every expert is chosen; biases on the four attention projections; rms_norm_eps 1e-5",
        {"num_experts_per_tok": 8, "attention_bias": True, "rms_norm_eps": 1e-5, "moe_intermediate_size": 12},
        1, "published"),
    "saved_by_transformers5": (
        "config.json as save_pretrained of transformers 5 writes it (rope_parameters, dtype, num_local_experts)",
        {"rope_theta": 50000.0, "moe_intermediate_size": 12, "num_experts_per_tok": 3}, 1, "save_pretrained"),
}


def make_config(changes):
    config = {**BASE, **changes}
    return {k: v for k, v in config.items() if not (k == "head_dim" and v is None)}


def is_moe(config, layer):
    return layer not in config["mlp_only_layers"] and (layer + 1) % config["decoder_sparse_step"] == 0


def make_tensors(config, rng):
    """Published names -> float32 tensors. Scales keep every part of the network visible in the logits."""
    D, H, G = config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]
    hd = config.get("head_dim", D // H)
    tensors = {}

    def matrix(name, rows, columns, std):
        tensors[name] = torch.from_numpy((rng.standard_normal((rows, columns)) * std).astype(numpy.float32))

    def vector(name, size, mean, std):
        tensors[name] = torch.from_numpy((mean + rng.standard_normal(size) * std).astype(numpy.float32))

    def mlp(prefix, width):
        matrix(prefix + "gate_proj.weight", width, D, 1.5 * D ** -0.5)
        matrix(prefix + "up_proj.weight", width, D, 1.5 * D ** -0.5)
        matrix(prefix + "down_proj.weight", D, width, 1.5 * width ** -0.5)

    matrix("model.embed_tokens.weight", config["vocab_size"], D, 0.5)
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        vector(p + "input_layernorm.weight", D, 1.0, 0.3)
        vector(p + "post_attention_layernorm.weight", D, 1.0, 0.3)
        for name, rows, columns in (("q", H * hd, D), ("k", G * hd, D), ("v", G * hd, D), ("o", D, H * hd)):
            matrix(p + f"self_attn.{name}_proj.weight", rows, columns, columns ** -0.5)
            if config["attention_bias"]:
                vector(p + f"self_attn.{name}_proj.bias", rows, 0.0, 0.3)
        vector(p + "self_attn.q_norm.weight", hd, 1.4, 0.4)
        vector(p + "self_attn.k_norm.weight", hd, 1.4, 0.4)
        if not is_moe(config, i):
            mlp(p + "mlp.", config["intermediate_size"])
            continue
        matrix(p + "mlp.gate.weight", config["num_experts"], D, 0.4)
        for e in range(config["num_experts"]):
            mlp(p + f"mlp.experts.{e}.", config["moe_intermediate_size"])
    vector("model.norm.weight", D, 1.0, 0.3)
    if not config["tie_word_embeddings"]:
        matrix("lm_head.weight", config["vocab_size"], D, 0.5)
    if config["torch_dtype"] == "bfloat16":
        tensors = {name: t.to(torch.bfloat16) for name, t in tensors.items()}
    return tensors


def write_published(folder, config, tensors, files):
    """The folder as published checkpoints look: config.json and one file, or several with an index."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    if files == 1:
        save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
        return
    names, weight_map = list(tensors), {}
    for i in range(files):
        file = f"model-{i + 1:05d}-of-{files:05d}.safetensors"
        part = names[len(names) * i // files : len(names) * (i + 1) // files]
        save_file({n: tensors[n] for n in part}, str(folder / file), metadata={"format": "pt"})
        weight_map.update({n: file for n in part})
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def check_loaded(model, tensors):
    """Every tensor of the loaded model equals ours; transformers keeps a layer's experts fused."""
    state = model.state_dict()
    for name, value in tensors.items():
        if ".experts." in name:
            prefix, rest = name.split(".experts.")
            e, projection, _ = rest.split(".")
            fused = state[f"{prefix}.experts." + ("down_proj" if projection == "down_proj" else "gate_up_proj")][int(e)]
            F = value.shape[0]
            loaded = {"gate_proj": fused[:F], "up_proj": fused[F:], "down_proj": fused}[projection]
        else:
            loaded = state[name]
        if not torch.equal(loaded, value.to(loaded.dtype)):
            raise AssertionError(f"{name} was not loaded as written")


def breakages(config):
    """Mistakes an engine could make: name -> function that makes it in the reference."""
    def ones(suffix):
        def change(model):
            for name, p in model.named_parameters():
                if name.endswith(suffix):
                    p.data.fill_(1.0)
        return change

    def each(kind, act):
        def change(model):
            for module in model.modules():
                if type(module).__name__ == kind:
                    act(module)
        return change

    def swap(experts):
        gate, up = experts.gate_up_proj.data.chunk(2, 1)
        experts.gate_up_proj.data = torch.cat((up, gate), 1)

    def shift_down(experts):
        experts.down_proj.data = experts.down_proj.data.roll(1, 0)

    result = {
        "query norm weight left out": ones("q_norm.weight"),
        "key norm weight left out": ones("k_norm.weight"),
        "input norm weight left out": ones("input_layernorm.weight"),
        "post-attention norm weight left out": ones("post_attention_layernorm.weight"),
        "final norm weight left out": ones("model.norm.weight"),
        "rotary frequencies halved": each("Qwen3MoeRotaryEmbedding", lambda m: m.inv_freq.mul_(0.5)),
        "gate and up swapped in experts": each("Qwen3MoeExperts", swap),
        "down projections of neighbouring experts exchanged": each("Qwen3MoeExperts", shift_down),
    }
    K, E = config["num_experts_per_tok"], config["num_experts"]
    if K < E:  # with all experts chosen the softmax already sums to one
        result["norm_topk_prob inverted"] = each(
            "Qwen3MoeTopKRouter", lambda m: setattr(m, "norm_topk_prob", not m.norm_topk_prob))
        result["one expert more per token"] = each("Qwen3MoeTopKRouter", lambda m: setattr(m, "top_k", K + 1))
    if config["attention_bias"]:
        def no_bias(model):
            for name, p in model.named_parameters():
                if name.endswith("_proj.bias"):
                    p.data.zero_()
        result["attention biases left out"] = no_bias
    return result


def sensitivity(model, config, prompts):
    """Largest change of a last-position logit under each breakage; every one must be seen."""
    right, result = [common.all_logits(model, p)[-1] for p in prompts], {}
    for name, change in breakages(config).items():
        broken = copy.deepcopy(model)
        with torch.no_grad():
            change(broken)
        difference = max((common.all_logits(broken, p)[-1] - r).abs().max().item() for p, r in zip(prompts, right))
        if difference < 0.05:
            raise AssertionError(f"{name}: the logits change by {difference} only")
        result[name] = float(f"{difference:.3g}")
    return result


def build(name, seed, folder):
    """Writes the model of one seed to `folder`; returns (model, float64 model, prompts)."""
    _, changes, files, how = CASES[name]
    config = make_config(changes)
    rng = numpy.random.default_rng([seed, list(CASES).index(name)])
    tensors = make_tensors(config, rng)
    prompts = [rng.integers(0, config["vocab_size"], n).tolist() for n in PROMPT_LENGTHS]
    write_published(folder, config, tensors, files)
    model = common.load_reference(folder)
    check_loaded(model, tensors)
    if how == "save_pretrained":
        shutil.rmtree(folder)
        model.save_pretrained(str(folder))
        (folder / "generation_config.json").unlink(missing_ok=True)
        saved = load_file(str(folder / "model.safetensors"))
        if saved.keys() != tensors.keys() or not all(torch.equal(saved[n], tensors[n]) for n in tensors):
            raise AssertionError("save_pretrained wrote other tensors than the published ones")
        model = common.load_reference(folder)
        check_loaded(model, tensors)
    return config, model, common.load_reference(folder, torch.float64), prompts


def make_case(name, out, max_seeds=200):
    what = CASES[name][0]
    for seed in range(1, max_seeds + 1):
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch) / name
            config, model, exact, prompts = build(name, seed, folder)
            entries, facts = [], []
            for i, prompt in enumerate(prompts):
                entry, fact = common.describe_prompt(model, exact, prompt, every_position=i == 0)
                entries.append(entry)
                facts.append(fact)
                numbers = common.summarise(facts)
                router = numbers["min_router_margin"]
                good = (numbers["min_logit_margin"] > MIN_LOGIT_MARGIN and fact["agreed"]
                        and (router is None or router > MIN_ROUTER_MARGIN)
                        and fact["distinct_tokens"] >= MIN_DISTINCT_TOKENS)
                if not good:
                    break
            if not good:
                continue
            golden = {
                "family": "qwen3_moe", "case": name, "what": what,
                "made_by": {"command": f"python python/golden/make_qwen3_moe.py {name}", "seed": seed,
                            **common.versions()},
                "vocab_size": config["vocab_size"], "numerics": numbers,
                "breakages": sensitivity(model, config, prompts),
                "prompts": entries, "trace": {"prompt": 0, "layers": common.trace(model, prompts[0])},
            }
            common.write_golden(folder / "golden.json", golden)
            target = out / name
            if target.exists():
                shutil.rmtree(target)
            shutil.copytree(folder, target)
            for file in target.iterdir():
                file.chmod(0o644)
            print(name, "seed", seed, numbers, "distinct", [f["distinct_tokens"] for f in facts], flush=True)
            return
    raise SystemExit(f"{name}: no seed up to {max_seeds} is free of near-ties")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "qwen3_moe")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of: {', '.join(CASES)}; default: all")
    args = parser.parse_args()
    unknown = set(args.cases) - set(CASES)
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    common.quiet()
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.cases or CASES:
        make_case(name, args.out)


if __name__ == "__main__":
    main()
