"""Makes the tiny random GLM-5 models of the tests and their golden files.

  python make_glm_moe_dsa.py [--out tests/golden] [CASE...]

Prompts and continuations are far longer than index_topk, so that most rows attend to a choice of positions.
Next: family.py (how a case is made), latent.py (tensors), README.md (the schema of golden.json).
"""
import sys

import family
import latent

BASE = {
    "architectures": ["GlmMoeDsaForCausalLM"], "attention_bias": False, "eos_token_id": None, "first_k_dense_replace": 1,
    "head_dim": 8, "hidden_act": "silu", "hidden_size": 32, "index_head_dim": 16, "index_n_heads": 6, "index_topk": 8,
    "indexer_rope_interleave": True, "intermediate_size": 40, "kv_lora_rank": 32, "max_position_embeddings": 256,
    "model_type": "glm_moe_dsa", "moe_intermediate_size": 12, "n_group": 1, "n_routed_experts": 16,
    "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 4, "num_experts_per_tok": 4,
    "num_hidden_layers": 3, "num_key_value_heads": 4, "num_nextn_predict_layers": 1, "q_lora_rank": 24,
    "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "rms_norm_eps": 1e-5, "rope_interleave": True,
    "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"}, "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid", "tie_word_embeddings": False, "topk_group": 1, "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16", "v_head_dim": 16, "vocab_size": 96,
}
CASES = {
    "glm5": {
        "what": "as GLM-5: each layer has an indexer; selection biases near 34.5; a prediction layer with tensors",
        "bias": (34.5, 0.14), "prompts": [5, 1, 48],
    },
    "glm52": {
        "what": "as GLM-5.2: layers 2 and 3 share the positions that layer 1 chose; selection biases near 7; "
                "mlp_layer_types; a prediction layer is declared and has no tensors; head_dim says something else",
        "bias": (6.94, 0.1), "prompts": [5, 48], "without_prediction": True,
        "config": {"num_hidden_layers": 4, "moe_intermediate_size": 8, "head_dim": 20, "index_topk_freq": 4,
                   "index_skip_topk_offset": 3, "index_topk_pattern": None, "n_routed_experts": 12,
                   "indexer_types": ["full", "full", "shared", "shared"],
                   "mlp_layer_types": ["dense", "sparse", "dense", "sparse"], "first_k_dense_replace": 1,
                   "rope_parameters": {"rope_theta": 8000000, "rope_type": "default"}},
    },
    "by_frequency": {
        "what": "index_topk_freq 2 and index_skip_topk_offset 1: layers 0 and 2 choose; two shared experts, 6 heads, "
                "weights in float32",
        "bias": (0.0, 0.2), "prompts": [5, 40], "dtype": "float32", "without_prediction": True,
        "config": {"index_topk_freq": 2, "index_skip_topk_offset": 1, "n_shared_experts": 2, "n_routed_experts": 8,
                   "num_attention_heads": 6, "num_key_value_heads": 6, "num_experts_per_tok": 2,
                   "moe_intermediate_size": 8, "num_nextn_predict_layers": 0, "torch_dtype": "float32"},
    },
}


def own_indexers(config):
    layers = config["num_hidden_layers"]
    if config.get("indexer_types"):
        return [kind == "full" for kind in config["indexer_types"]]
    freq, offset = config.get("index_topk_freq", 1), config.get("index_skip_topk_offset", 2)
    return [max(i - offset + 1, 0) % freq == 0 for i in range(layers)]


def is_moe(config, layer):
    types = config.get("mlp_layer_types")
    return types[layer] == "sparse" if types else layer >= config["first_k_dense_replace"]


def make_tensors(made, config, case):
    D = config["hidden_size"]
    latent.ends(made, config)
    for i, own in enumerate(own_indexers(config)):
        p = f"model.layers.{i}."
        latent.layer_norms(made, p, config)
        latent.attention(made, p + "self_attn.", config)
        if own:
            x, n, heads = p + "self_attn.indexer.", config["index_head_dim"], config["index_n_heads"]
            made.matrix(x + "wq_b.weight", heads * n, config["q_lora_rank"], 1.5 * config["q_lora_rank"] ** -0.5)
            made.matrix(x + "wk.weight", n, D)
            made.vector(x + "k_norm.weight", n, 1.0, 0.3)
            made.vector(x + "k_norm.bias", n, 0.0, 0.5)
            made.matrix(x + "weights_proj.weight", heads, D)
        if is_moe(config, i):
            latent.experts(made, p + "mlp.", config, case)
        else:
            made.mlp(p + "mlp.", D, config["intermediate_size"])
    if not case.get("without_prediction"):
        latent.prediction_layer(made, config["num_hidden_layers"], config)


def unread(name, config):
    return latent.is_prediction(name, config)


def breakages(config, case):
    return {
        **latent.attention_mistakes(config), **latent.mlp_mistakes(config, case),
        "half-split rotation in the indexer": latent.rotate_otherwise("Indexer"),
        "half-split rotation in attention": latent.rotate_otherwise("Attention"),
        "every position attended to": latent.each("Indexer", lambda m: setattr(m, "index_topk", 100000)),
        "one position more chosen": latent.each("Indexer", lambda m: setattr(m, "index_topk", m.index_topk + 1)),
        "indexer key norm weight left out": latent.ones("indexer.k_norm.weight"),
        "indexer key norm bias left out": latent.zeros("indexer.k_norm.bias"),
        "indexer head weights equal": latent.each(
            "Indexer", lambda m: m.weights_proj.weight.data.copy_(m.weights_proj.weight.data.mean(0, keepdim=True))),
    }


if __name__ == "__main__":
    family.main(sys.modules[__name__])
