"""Makes the tiny random models of a dense Llama cut into experts (python/train/moefy.py), and their golden files.

  python make_llama_moefied.py [--out tests/golden] [CASE...]

The reference is the Llama of transformers whose blocks are the experts' neurons put together again. Where a token does
not use all experts, its blocks are given the router and add up the chosen parts, each of weight 1. See family.py.
"""
import sys
import types

import torch

import common
import decoder
import family
from decoder import each, put

BASE = {
    "architectures": ["LlamaMoefiedForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 32, "initializer_range": 0.02, "intermediate_size": 96,
    "max_position_embeddings": 256, "mlp_bias": False, "model_type": "llama", "moe_intermediate_size": 16,
    "num_attention_heads": 4, "num_experts": 6, "num_experts_per_tok": 3, "num_hidden_layers": 3,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_scaling": None, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 96,
}
OURS = {"model_type": "llama_moefied"}
CASES = {
    "all_experts": {
        "what": "every token uses all experts, so that the logits are those of the dense model; tied head",
        "config": {**OURS, "num_experts_per_tok": 6, "tie_word_embeddings": True}, "prompts": [5, 1, 17, 40]},
    "some_experts": {
        "what": "half of the experts, each of weight 1, chosen by a router with bias; float32",
        "config": {**OURS, "torch_dtype": "float32"}, "dtype": "float32", "prompts": [5, 1, 17, 40]},
}
MATRICES = ("gate_proj", "up_proj", "down_proj")
routers = []  # (weight, bias, experts per token) of each layer of the case at hand


class PartTopKRouter(torch.nn.Module):
    def __init__(self, weight, bias, top_k):
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)
        self.top_k, self.whole = top_k, True

    def forward(self, x):
        logits = x @ self.weight.T + self.bias
        scores, ids = logits.softmax(-1).topk(self.top_k, dim=-1)
        return logits, torch.ones_like(scores) if self.whole else scores, ids


def add_parts(self, x):
    """In place of LlamaMLP.forward: a neuron counts what the router says of the expert it belongs to."""
    rows = x.flatten(0, -2)
    logits, weights, ids = self.router(rows)
    parts = torch.zeros_like(logits).scatter_(1, ids, weights)
    neurons = self.act_fn(self.gate_proj(rows)) * self.up_proj(rows)
    return self.down_proj(neurons * parts.repeat_interleave(neurons.shape[1] // parts.shape[1], 1)).view_as(x)


def load_with_routers(folder, dtype=torch.float32, load=common.load_reference):
    model = load(folder, dtype)
    for layer, (weight, bias, top_k) in zip(model.model.layers, routers):
        if top_k == len(bias):
            continue  # the dense model itself
        layer.mlp.router = PartTopKRouter(weight.to(dtype), bias.to(dtype), top_k)
        layer.mlp.forward = types.MethodType(add_parts, layer.mlp)
    return model


def make_tensors(made, config, case):
    D, E = config["hidden_size"], config["num_experts"]
    decoder.ends(made, config)
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        decoder.attention(made, config, p)
        made.matrix(p + "mlp.gate.weight", E, D, 0.4)
        made.vector(p + "mlp.gate.bias", E, 0.0, 1.0)
        decoder.experts(made, config, p + "mlp.experts.", E, config["moe_intermediate_size"])
    routers.clear()
    routers.extend((made.all[f"model.layers.{i}.mlp.gate.weight"], made.all[f"model.layers.{i}.mlp.gate.bias"],
                    config["num_experts_per_tok"]) for i in range(config["num_hidden_layers"]))


def quantise(tensors):
    """What is stored, and the dense model that it is."""
    dense = {n: t for n, t in tensors.items() if ".mlp." not in n}
    for i in range(len(routers)):
        p = f"model.layers.{i}.mlp."
        for matrix in MATRICES:
            parts = [tensors[f"{p}experts.{e}.{matrix}.weight"] for e in range(len(routers[i][1]))]
            dense[f"{p}{matrix}.weight"] = torch.cat(parts, dim=1 if matrix == "down_proj" else 0)
    return tensors, dense


def unread(name, config):
    return False


def breakages(config, case):
    result, K = decoder.mistakes("Llama", config, experts=False), config["num_experts_per_tok"]
    if K < config["num_experts"]:
        result["one expert more per token"] = each("PartTopKRouter", put(top_k=K + 1))
        result["weights are the router's scores"] = each("PartTopKRouter", put(whole=False))
        result["bias of the router left out"] = decoder.fill("router.bias", 0.0)
    return result


if __name__ == "__main__":
    common.load_reference = load_with_routers
    family.main(sys.modules[__name__])
