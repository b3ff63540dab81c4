"""Makes the tiny random GLM-4.7-Flash model of the tests and its golden file.

  python make_glm4_moe_lite.py [--out tests/golden] [CASE...]

Next: family.py (how a case is made), latent.py (what DeepSeek and GLM models share), README.md.
"""
import sys

import family
import latent

BASE = {
    "architectures": ["Glm4MoeLiteForCausalLM"], "attention_bias": False, "eos_token_id": None,
    "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 32, "intermediate_size": 40, "kv_lora_rank": 32,
    "max_position_embeddings": 256, "model_type": "glm4_moe_lite", "moe_intermediate_size": 12, "n_group": 1,
    "n_routed_experts": 16, "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 5,
    "num_experts_per_tok": 4, "num_hidden_layers": 3, "num_key_value_heads": 5, "num_nextn_predict_layers": 1,
    "q_lora_rank": 24, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "rms_norm_eps": 1e-5, "rope_scaling": None,
    "rope_theta": 1000000, "routed_scaling_factor": 1.8, "tie_word_embeddings": False, "topk_group": 1,
    "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "v_head_dim": 16, "vocab_size": 96,
}
CASES = {
    "flash": {
        "what": "as GLM-4.7-Flash: five heads, latent attention, one dense layer, a prediction layer",
        "bias": (10.16, 0.04), "prompts": [5, 1, 40],
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
    latent.prediction_layer(made, config["num_hidden_layers"], config)


def unread(name, config):
    return latent.is_prediction(name, config)


def breakages(config, case):
    return {**latent.attention_mistakes(config), **latent.mlp_mistakes(config, case),
            "half-split rotation": latent.rotate_otherwise("Attention")}


if __name__ == "__main__":
    family.main(sys.modules[__name__])
