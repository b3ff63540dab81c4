"""Makes the tiny random GLM-4.5 models of the tests and their golden files.

  python make_glm4_moe.py [--out tests/golden] [CASE...]

Next: family.py (how a case is made), latent.py (what DeepSeek and GLM models share), README.md.
"""
import sys

import family
import latent

BASE = {
    "architectures": ["Glm4MoeForCausalLM"], "attention_bias": True, "eos_token_id": None, "first_k_dense_replace": 1,
    "head_dim": 16, "hidden_act": "silu", "hidden_size": 32, "intermediate_size": 40, "max_position_embeddings": 256,
    "model_type": "glm4_moe", "moe_intermediate_size": 12, "n_group": 1, "n_routed_experts": 16, "n_shared_experts": 1,
    "norm_topk_prob": True, "num_attention_heads": 6, "num_experts_per_tok": 4, "num_hidden_layers": 3,
    "num_key_value_heads": 2, "num_nextn_predict_layers": 1, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-5,
    "rope_scaling": None, "rope_theta": 1000000, "routed_scaling_factor": 2.5, "tie_word_embeddings": False,
    "topk_group": 1, "torch_dtype": "bfloat16", "use_qk_norm": True, "vocab_size": 96,
}
CASES = {
    "glm45": {
        "what": "as GLM-4.5: half of each head is rotated, biases on q, k and v, per-head norms; a prediction layer",
        "bias": (7.0, 0.05), "prompts": [5, 1, 40],
    },
    "air": {
        "what": "as GLM-4.5-Air: no per-head norms, routed weights are not scaled, head_dim is hidden_size / heads",
        "bias": (0.0, 0.2), "prompts": [5, 17], "without_prediction": True,
        "config": {"use_qk_norm": False, "routed_scaling_factor": 1.0, "head_dim": "absent", "num_attention_heads": 4,
                   "num_nextn_predict_layers": 0, "n_routed_experts": 12, "num_experts_per_tok": 3,
                   "rope_theta": 10000},
    },
}


def make_tensors(made, config, case):
    D, H, G = config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]
    hd = config.get("head_dim", D // H)
    latent.ends(made, config)
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        latent.layer_norms(made, p, config)
        for name, rows in (("q", H * hd), ("k", G * hd), ("v", G * hd)):
            made.matrix(p + f"self_attn.{name}_proj.weight", rows, D)
            made.vector(p + f"self_attn.{name}_proj.bias", rows, 0.0, 0.3)
        made.matrix(p + "self_attn.o_proj.weight", D, H * hd)
        if config["use_qk_norm"]:
            made.vector(p + "self_attn.q_norm.weight", hd, 1.4, 0.4)
            made.vector(p + "self_attn.k_norm.weight", hd, 1.4, 0.4)
        if i < config["first_k_dense_replace"]:
            made.mlp(p + "mlp.", D, config["intermediate_size"])
        else:
            latent.experts(made, p + "mlp.", config, case)
    if not case.get("without_prediction"):
        latent.prediction_layer(made, config["num_hidden_layers"], config)


def unread(name, config):
    return latent.is_prediction(name, config)


def breakages(config, case):
    result = {**latent.mlp_mistakes(config, case), "attention biases left out": latent.zeros("_proj.bias")}
    if config["use_qk_norm"]:
        result["query norm weight left out"] = latent.ones("q_norm.weight")
        result["key norm weight left out"] = latent.ones("k_norm.weight")
    return result


if __name__ == "__main__":
    family.main(sys.modules[__name__])
