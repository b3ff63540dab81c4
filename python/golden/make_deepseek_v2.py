"""Makes the tiny random DeepSeek-V2 models of the tests and their golden files.

  python make_deepseek_v2.py [--out tests/golden] [CASE...]

Next: family.py (how a case is made), latent.py (what DeepSeek and GLM models share), README.md.
"""
import sys

import family
import latent

BASE = {
    "architectures": ["DeepseekV2ForCausalLM"], "attention_bias": False, "eos_token_id": None,
    "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 32, "intermediate_size": 40, "kv_lora_rank": 32,
    "max_position_embeddings": 256, "model_type": "deepseek_v2", "moe_intermediate_size": 12, "moe_layer_freq": 1,
    "n_group": 4, "n_routed_experts": 16, "n_shared_experts": 2, "norm_topk_prob": False, "num_attention_heads": 4,
    "num_experts_per_tok": 3, "num_hidden_layers": 3, "num_key_value_heads": 4, "q_lora_rank": 24,
    "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "rms_norm_eps": 1e-6, "rope_theta": 10000,
    "rope_scaling": {"type": "yarn", "factor": 8, "original_max_position_embeddings": 32, "beta_fast": 32,
                     "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707},
    "routed_scaling_factor": 6.0, "scoring_func": "softmax", "tie_word_embeddings": False, "topk_group": 2,
    "topk_method": "group_limited_greedy", "torch_dtype": "bfloat16", "v_head_dim": 16, "vocab_size": 96,
}
CASES = {
    "v2": {
        "what": "as DeepSeek-V2: the two best of four groups by their best, two shared experts, weights of the softmax "
                "over all experts times 6",
        "prompts": [5, 1, 40], "router": 0.7,
    },
    "lite": {
        "what": "as DeepSeek-V2-Lite: no groups, queries without a low-rank step, weights not scaled",
        "prompts": [5, 17],
        "config": {"q_lora_rank": None, "topk_method": "greedy", "n_group": 1, "topk_group": 1,
                   "routed_scaling_factor": 1.0, "num_experts_per_tok": 4},
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


def unread(name, config):
    return False


def breakages(config, case):
    return {**latent.attention_mistakes(config), **latent.mlp_mistakes(config, case)}


if __name__ == "__main__":
    family.main(sys.modules[__name__])
