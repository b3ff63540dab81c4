"""Makes the tiny random gpt-oss models of the tests and their golden files.

  python make_gpt_oss.py [--out tests/golden] [CASE...]

Matrices of experts are [E, D, 2F] and [E, F, D], columns of gate and up alternating, as in re-exports to BF16; or
MXFP4 as published: blocks and scales of their transposes, which the reference reads in BF16. See family.py.
"""
import copy
import sys

import numpy
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import decoder
import family
from decoder import each, fill, put

YARN = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
        "original_max_position_embeddings": 128}
BASE = {
    "architectures": ["GptOssForCausalLM"], "attention_bias": True, "attention_dropout": 0.0, "eos_token_id": 2,
    "experts_per_token": 2, "head_dim": 16, "hidden_act": "silu", "hidden_size": 32, "initial_context_length": 128,
    "initializer_range": 0.02, "intermediate_size": 32,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "max_position_embeddings": 4096, "model_type": "gpt_oss", "num_attention_heads": 4, "num_experts_per_tok": 2,
    "num_hidden_layers": 3, "num_key_value_heads": 2, "num_local_experts": 8, "output_router_logits": False,
    "pad_token_id": 1, "rms_norm_eps": 1e-5, "rope_scaling": YARN, "rope_theta": 150000,
    "router_aux_loss_coef": 0.9, "sliding_window": 8, "swiglu_limit": 7.0, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 96,
}
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": [
    "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
CASES = {
    "mxfp4": {
        "what": "experts in MXFP4 as published, sinks, biases everywhere, windows of 8 in layers 0 and 2, YaRN without "
                "truncation",
        "config": {"quantization_config": MXFP4, "hidden_size": 64}, "prompts": [5, 1, 17, 40]},
    "bf16_export": {
        "what": "experts in BF16, transposed; expert width that fills no panel; which layers have windows follows from "
                "their numbers; gates and ups are often clamped",
        "config": {"layer_types": "absent", "intermediate_size": 24, "num_hidden_layers": 4, "num_local_experts": 4,
                   "swiglu_limit": 1.5},
        "prompts": [5, 1, 17, 40]},
    "saved_by_transformers5": {
        "what": "as save_pretrained of transformers 5 writes it; window longer than most prompts; rotation unscaled; "
                "as many key heads as query heads; tied head",
        "config": {"rope_scaling": "absent", "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
                   "rope_theta": "absent", "layer_types": ["full_attention", "sliding_attention"],
                   "num_hidden_layers": 2, "sliding_window": 20, "num_local_experts": 6, "num_key_value_heads": 4,
                   "tie_word_embeddings": True},
        "save": "save_pretrained", "prompts": [5, 1, 17, 40]},
}
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def to_mxfp4(values):
    """The nearest values that MXFP4 can hold, blocks along the last dimension."""
    blocks = values.unflatten(-1, (-1, 32))
    scale = 2.0 ** (blocks.abs().amax(-1, keepdim=True).log2().floor() - 2)
    levels = torch.tensor(E2M1)
    nearest = (blocks.abs().unsqueeze(-1) / scale.unsqueeze(-1) - levels).abs().argmin(-1)
    return (levels[nearest] * blocks.sign() * scale).flatten(-2)


def mxfp4_parts(values):
    """Blocks [..., 16] (low nibble first) and scales of values that MXFP4 can hold."""
    blocks = values.float().unflatten(-1, (-1, 32))
    exponent = blocks.abs().amax(-1, keepdim=True).log2().floor() - 2
    codes = (blocks.abs() / 2.0 ** exponent).unsqueeze(-1).eq(torch.tensor(E2M1)).int().argmax(-1)
    codes += 8 * torch.signbit(blocks).int()
    packed = codes[..., ::2] + 16 * codes[..., 1::2]
    return packed.to(torch.uint8), (exponent.squeeze(-1) + 127).to(torch.uint8)


def make_tensors(made, config, case):
    D, F, E = config["hidden_size"], config["intermediate_size"], config["num_local_experts"]
    decoder.ends(made, config)

    def stack(name, rows, columns, std):
        values = torch.from_numpy((made.rng.standard_normal((E, rows, columns)) * std).astype(numpy.float32))
        if "quantization_config" in config:
            values = to_mxfp4(values)
        made.all[name] = values.transpose(1, 2).contiguous()

    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        decoder.attention(made, config, p, biases="qkvo")
        made.vector(p + "self_attn.sinks", config["num_attention_heads"], 1.0, 0.7)
        made.matrix(p + "mlp.router.weight", E, D, 0.4)
        made.vector(p + "mlp.router.bias", E, 0.0, 0.6)
        stack(p + "mlp.experts.gate_up_proj", 2 * F, D, 2.0 * D ** -0.5)
        made.matrix(p + "mlp.experts.gate_up_proj_bias", E, 2 * F, 0.5)
        stack(p + "mlp.experts.down_proj", D, F, 1.5 * F ** -0.5)
        made.matrix(p + "mlp.experts.down_proj_bias", E, D, 0.5)


def unread(name, config):
    return False


def quantise(tensors):
    """What the checkpoint has, and what the reference reads: blocks and scales of experts whose values fit MXFP4."""
    stored = {}
    for name, value in tensors.items():
        rows = value.float().transpose(1, 2) if value.dim() == 3 else None
        if rows is not None and rows.shape[-1] % 32 == 0 and torch.equal(to_mxfp4(rows), rows):
            stored[name + "_blocks"], stored[name + "_scales"] = mxfp4_parts(rows)
        else:
            stored[name] = value
    return stored, tensors


def read_as_halves(module):
    for p in (module.gate_up_proj, module.gate_up_proj_bias):
        gate, up = p.data.chunk(2, -1)
        p.data = torch.stack((gate, up), -1).flatten(-2)


def truncated(model, stack):
    config = copy.deepcopy(model.config)
    config.rope_parameters["truncate"] = True
    model.model.rotary_emb.inv_freq.copy_(ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")[0])


def windows_exchanged(model, stack):
    other = {"full_attention": "sliding_attention", "sliding_attention": "full_attention"}
    model.model.config.layer_types = [other[t] for t in model.model.config.layer_types]


def breakages(config, case):
    result = {
        **decoder.mistakes("GptOss", config),
        "sinks left out": fill("sinks", -1e9),
        "no window": lambda model, stack: setattr(model.model.config, "sliding_window", 10 ** 6),
        "window of one more": lambda model, stack: setattr(
            model.model.config, "sliding_window", config["sliding_window"] + 1),
        "windows in the other layers": windows_exchanged,
        "bias of router left out": fill("router.bias", 0.0),
        "bias of gate and up left out": fill("gate_up_proj_bias", 0.0),
        "bias of down left out": fill("down_proj_bias", 0.0),
        "ordinary sigmoid": each("GptOssExperts", put(alpha=1.0)),
        "gate and up read as halves": each("GptOssExperts", read_as_halves),
    }
    for part in "qvo":
        result[f"bias of {part} left out"] = fill(f"{part}_proj.bias", 0.0)
    if config["swiglu_limit"] < 7:
        result["limit left out"] = each("GptOssExperts", put(limit=1e9))
    if config.get("rope_scaling"):
        result["YaRN truncated"] = truncated
        result["YaRN without its magnitude"] = each("GptOssRotaryEmbedding", put(attention_scaling=1.0))
    return result


if __name__ == "__main__":
    family.main(sys.modules[__name__])
