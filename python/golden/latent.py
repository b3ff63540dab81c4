"""Tensors and mistakes that the makers for DeepSeek and GLM models share.

Names are those of published checkpoints. A case may say `bias`: (mean, spread) of the selection biases, which
published models have near 7, 10 and 34.5, where the nearest bfloat16 numbers are coarser than their spread.
"""
import sys
from unittest import mock

import torch


def attention(made, p, config):
    """Latent attention of one layer; p = "model.layers.0.self_attn."."""
    D, H = config["hidden_size"], config["num_attention_heads"]
    q, kv = config["q_lora_rank"], config["kv_lora_rank"]
    nope, rope, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    if q is None:
        made.matrix(p + "q_proj.weight", H * (nope + rope), D, 1.5 * D ** -0.5)
    else:
        made.matrix(p + "q_a_proj.weight", q, D)
        made.vector(p + "q_a_layernorm.weight", q, 1.0, 0.3)
        made.matrix(p + "q_b_proj.weight", H * (nope + rope), q, 1.5 * q ** -0.5)
    made.matrix(p + "kv_a_proj_with_mqa.weight", kv + rope, D, 1.5 * D ** -0.5)
    made.vector(p + "kv_a_layernorm.weight", kv, 1.0, 0.3)
    made.matrix(p + "kv_b_proj.weight", H * (nope + value), kv, 1.5 * kv ** -0.5)
    made.matrix(p + "o_proj.weight", D, H * value)


def experts(made, p, config, case):
    """Router, routed and shared experts of one layer; p = "model.layers.0.mlp."."""
    D, E, F = config["hidden_size"], config["n_routed_experts"], config["moe_intermediate_size"]
    made.matrix(p + "gate.weight", E, D, 0.6 * case.get("router", 1.0))
    if "bias" in case:
        made.vector(p + "gate.e_score_correction_bias", E, *case["bias"])
    for e in range(E):
        made.mlp(f"{p}experts.{e}.", D, F)
    if config["n_shared_experts"]:
        made.mlp(p + "shared_experts.", D, F * config["n_shared_experts"])


def ends(made, config):
    made.matrix("model.embed_tokens.weight", config["vocab_size"], config["hidden_size"], 0.5)
    made.vector("model.norm.weight", config["hidden_size"], 1.0, 0.3)
    made.matrix("lm_head.weight", config["vocab_size"], config["hidden_size"], 0.5)


def layer_norms(made, p, config):
    made.vector(p + "input_layernorm.weight", config["hidden_size"], 1.0, 0.3)
    made.vector(p + "post_attention_layernorm.weight", config["hidden_size"], 1.0, 0.3)


def prediction_layer(made, layer, config):
    """What a checkpoint has behind its last layer, in part: enough to be in the way."""
    p, D = f"model.layers.{layer}.", config["hidden_size"]
    for name in ("enorm", "hnorm", "shared_head.norm"):
        made.vector(p + name + ".weight", D, 1.0, 0.3)
    made.matrix(p + "eh_proj.weight", D, 2 * D)
    made.mlp(p + "mlp.experts.0.", D, config["moe_intermediate_size"])


def is_prediction(name, config):
    parts = name.split(".")
    return parts[1] == "layers" and int(parts[2]) >= config["num_hidden_layers"]


# Mistakes --------------------------------------------------------------------------------------------------------


def ones(suffix):
    def change(model, stack):
        for name, p in model.named_parameters():
            if name.endswith(suffix):
                p.data.fill_(1.0)
    return change


def zeros(suffix):
    def change(model, stack):
        for name, p in list(model.named_parameters()) + list(model.named_buffers()):
            if name.endswith(suffix):
                p.data.zero_()
    return change


def each(kind, act):
    def change(model, stack):
        found = [m for m in model.modules() if type(m).__name__.endswith(kind)]
        if not found:
            raise AssertionError(f"there is no module {kind}")
        for module in found:
            act(module)
    return change


def round_bias(router):
    router.e_score_correction_bias.data = router.e_score_correction_bias.to(torch.bfloat16).float()


def swap_gate_up(experts):
    gate, up = experts.gate_up_proj.data.chunk(2, 1)
    experts.gate_up_proj.data = torch.cat((up, gate), 1)


def half_split(q, k, cos, sin, *args, unsqueeze_dim=1, **kwargs):
    """The rotation of pairs (i, i + n/2) in place of (2i, 2i + 1)."""
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)

    def rotated(x):
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin
    return rotated(q), rotated(k)


def rotate_otherwise(kind_of_module):
    """Half-split rotation inside modules whose class name ends so, and not in modules inside those."""
    def change(model, stack):
        kinds = {type(m) for m in model.modules() if type(m).__name__.endswith(("Attention", "Indexer"))}
        inside = []

        def watched(forward):
            def run(self, *args, **kwargs):
                inside.append(type(self).__name__)
                try:
                    return forward(self, *args, **kwargs)
                finally:
                    inside.pop()
            return run

        source = sys.modules[next(iter(kinds)).__module__]
        plain = source.apply_rotary_pos_emb_interleave
        for kind in kinds:
            stack.enter_context(mock.patch.object(kind, "forward", watched(kind.forward)))
        stack.enter_context(mock.patch.object(
            source, "apply_rotary_pos_emb_interleave",
            lambda *args, **kwargs: (half_split if inside[-1].endswith(kind_of_module) else plain)(*args, **kwargs)))
    return change


def mlp_mistakes(config, case):
    result = {
        "gate and up swapped in experts": each("Experts", swap_gate_up),
        "down projections of neighbouring experts exchanged": each(
            "Experts", lambda m: setattr(m.down_proj, "data", m.down_proj.data.roll(1, 0))),
        "one expert more per token": each("TopkRouter", lambda m: setattr(m, "top_k", m.top_k + 1)),
        "routed scaling left out": each("TopkRouter", lambda m: setattr(m, "routed_scaling_factor", 1.0)),
        "shared experts left out": zeros("shared_experts.down_proj.weight"),
        "input norm weight left out": ones("input_layernorm.weight"),
        "post-attention norm weight left out": ones("post_attention_layernorm.weight"),
        "final norm weight left out": ones("model.norm.weight"),
        "rotary frequencies halved": each("RotaryEmbedding", lambda m: m.inv_freq.mul_(0.5)),
    }
    if config["routed_scaling_factor"] == 1:
        del result["routed scaling left out"]
    if "bias" in case:
        result["selection bias left out"] = zeros("e_score_correction_bias")
        result["weights renormalised or not"] = each(
            "TopkRouter", lambda m: setattr(m, "norm_topk_prob", not m.norm_topk_prob))
        if case["bias"][0] > 1:
            result["selection bias rounded to bfloat16"] = each("TopkRouter", round_bias)
    if (config.get("n_group") or 1) > (config.get("topk_group") or 1):
        result["groups ignored"] = each("TopkRouter", lambda m: setattr(m, "topk_group", m.num_group))
    return result


def attention_mistakes(config):
    result = {
        "latent norm weight left out": ones("kv_a_layernorm.weight"),
        "attention scale of the nope part alone": each(
            "Attention", lambda m: setattr(m, "scaling", m.qk_nope_head_dim ** -0.5)),
    }
    if config["q_lora_rank"]:
        result["query norm weight left out"] = ones("q_a_layernorm.weight")
    return result
