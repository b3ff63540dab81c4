"""Makes the tiny random DeepSeek-V3 and Kimi-K2 models of the tests and their golden files.

  python make_deepseek_v3.py [--out tests/golden] [CASE...]

Next: family.py (how a case is made), latent.py (what DeepSeek and GLM models share), README.md.
"""
import sys

import family
import latent

YARN = {"type": "yarn", "factor": 8, "original_max_position_embeddings": 32, "beta_fast": 32, "beta_slow": 1,
        "mscale": 1.0, "mscale_all_dim": 1.0}
BASE = {
    "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": False, "eos_token_id": None,
    "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 32, "intermediate_size": 40, "kv_lora_rank": 32,
    "max_position_embeddings": 256, "model_type": "deepseek_v3", "moe_intermediate_size": 12, "moe_layer_freq": 1,
    "n_group": 4, "n_routed_experts": 16, "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 4,
    "num_experts_per_tok": 4, "num_hidden_layers": 3, "num_key_value_heads": 4, "num_nextn_predict_layers": 1,
    "q_lora_rank": 24, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "rms_norm_eps": 1e-6, "rope_scaling": YARN,
    "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "tie_word_embeddings": False,
    "topk_group": 2, "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "v_head_dim": 16, "vocab_size": 96,
}
CASES = {
    "v3": {
        "what": "as DeepSeek-V3: the two best of four groups by the sums of their two best, YaRN with equal weights of "
                "its magnitude, a prediction layer",
        "bias": (7.0, 0.05), "prompts": [5, 1, 48],
    },
    "direct_queries": {
        "what": "queries without a low-rank step, half-split rotation, YaRN whose magnitude changes cosines too, "
                "weights that are not renormalised",
        "bias": (0.1, 0.1), "prompts": [5, 40], "without_prediction": True,
        "config": {"q_lora_rank": None, "rope_interleave": False, "norm_topk_prob": False, "n_group": 2,
                   "topk_group": 1, "num_experts_per_tok": 3, "num_nextn_predict_layers": 0,
                   "rope_scaling": {**YARN, "mscale": 0.6}},
    },
    "kimi_k2": {
        "what": "model_type kimi_k2 with architectures of DeepSeek-V3: one group, scale 2.827, YaRN with other rotations",
        "bias": (34.5, 0.14), "prompts": [5, 40], "without_prediction": True,
        "config": {"model_type": "kimi_k2", "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.827,
                   "n_routed_experts": 24, "moe_intermediate_size": 8, "rope_theta": 50000,
                   "num_nextn_predict_layers": 0,
                   "rope_scaling": {**YARN, "beta_fast": 1.0, "beta_slow": 0.5}},
    },
}


def make_tensors(made, config, case):
    latent.ends(made, config)
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        latent.layer_norms(made, p, config)
        latent.attention(made, p + "self_attn.", config)
        if i < config["first_k_dense_replace"]:
            made.mlp(p + "mlp.", config["hidden_size"], config["intermediate_size"])
        else:
            latent.experts(made, p + "mlp.", config, case)
    if not case.get("without_prediction"):
        latent.prediction_layer(made, config["num_hidden_layers"], config)


def unread(name, config):
    return latent.is_prediction(name, config)


def breakages(config, case):
    result = {**latent.attention_mistakes(config), **latent.mlp_mistakes(config, case),
              "YaRN's part of the scale left out": latent.each("Attention", lambda m: setattr(
                  m, "scaling", m.qk_head_dim ** -0.5))}
    if config.get("rope_interleave", True):
        result["half-split rotation"] = latent.rotate_otherwise("Attention")
    return result


if __name__ == "__main__":
    family.main(sys.modules[__name__])
