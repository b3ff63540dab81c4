"""Makes the tiny random MiniMax-M2 models of the tests and their golden files.

  python make_minimax_m2.py [--out tests/golden] [CASE...]

See family.py.
"""
import sys

import decoder
import family
from decoder import each

BASE = {
    "architectures": ["MiniMaxM2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
    "head_dim": 16, "hidden_act": "silu", "hidden_size": 32, "initializer_range": 0.02, "intermediate_size": 20,
    "max_position_embeddings": 256, "model_type": "minimax_m2", "mtp_transformer_layers": 1,
    "num_attention_heads": 4, "num_experts_per_tok": 3, "num_hidden_layers": 2, "num_key_value_heads": 2,
    "num_local_experts": 8, "num_mtp_modules": 3, "output_router_logits": False, "qk_norm_type": "per_layer",
    "rms_norm_eps": 1e-6, "rope_theta": 5000000.0, "rotary_dim": 8, "router_aux_loss_coef": 0.001,
    "scoring_func": "sigmoid", "shared_intermediate_size": 0, "sliding_window": None, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "use_cache": True, "use_mtp": True, "use_qk_norm": True, "use_routing_bias": True,
    "vocab_size": 96,
}
CASES = {
    "published": {
        "what": "half of each head is rotated; norms over all heads; sigmoid with a bias for choosing, renormalised; "
                "no tensors of the multi-token prediction that config.json names",
        "prompts": [5, 1, 2, 17, 40]},
    "fused_by_transformers5": {
        "what": "the names that transformers 5 has itself: experts of a layer in one tensor; rope_parameters",
        "config": {"num_hidden_layers": 3, "rope_theta": 10000.0, "num_local_experts": 6, "intermediate_size": 16},
        "save": "fused", "prompts": [5, 1, 17, 40]},
}


def make_tensors(made, config, case):
    D, H, G, hd = (config[k] for k in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"))
    decoder.ends(made, config)
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        decoder.attention(made, config, p, norms=(H * hd, G * hd))
        made.matrix(p + "block_sparse_moe.gate.weight", config["num_local_experts"], D, 0.4)
        made.vector(p + "block_sparse_moe.e_score_correction_bias", config["num_local_experts"], 8.0, 0.3)
        decoder.experts(made, config, p + "block_sparse_moe.experts.", config["num_local_experts"],
                        config["intermediate_size"], ("w1", "w3", "w2"))


def unread(name, config):
    return False


def breakages(config, case):
    return {
        **decoder.mistakes("MiniMaxM2", config, norms=True),
        "norms of single heads": decoder.norms_of_heads,
        "gate and up swapped in experts": each("MiniMaxM2Experts", decoder.swap_halves),
        "bias for choosing left out": decoder.fill("e_score_correction_bias", 0.0),
    }


if __name__ == "__main__":
    family.main(sys.modules[__name__])
