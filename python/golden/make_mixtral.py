"""Makes the tiny random Mixtral models of the tests and their golden files.

  python make_mixtral.py [--out tests/golden] [CASE...]

See family.py.
"""
import sys

import decoder
import family
from decoder import each

BASE = {
    "architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
    "hidden_act": "silu", "hidden_size": 32, "initializer_range": 0.02, "intermediate_size": 24,
    "max_position_embeddings": 256, "model_type": "mixtral", "num_attention_heads": 4, "num_experts_per_tok": 2,
    "num_hidden_layers": 2, "num_key_value_heads": 2, "num_local_experts": 8, "output_router_logits": False,
    "rms_norm_eps": 1e-5, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02, "sliding_window": None,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 96,
}
CASES = {
    "published": {"what": "names as published (block_sparse_moe, w1, w3, w2); renormalised", "prompts": [5, 1, 17, 40]},
    "windowed": {
        "what": "every layer sees 8 positions; head_dim given; the head is the embedding",
        "config": {"sliding_window": 8, "head_dim": 12, "tie_word_embeddings": True, "rope_theta": 10000.0},
        "prompts": [5, 1, 17, 40]},
    "fused_by_transformers5": {
        "what": "the names that transformers 5 has itself: experts of a layer in one tensor",
        "config": {"num_hidden_layers": 3, "num_local_experts": 6, "intermediate_size": 16}, "save": "fused",
        "prompts": [5, 1, 17, 40]},
}


def make_tensors(made, config, case):
    decoder.ends(made, config)
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        decoder.attention(made, config, p)
        made.matrix(p + "block_sparse_moe.gate.weight", config["num_local_experts"], config["hidden_size"], 0.4)
        decoder.experts(made, config, p + "block_sparse_moe.experts.", config["num_local_experts"],
                        config["intermediate_size"], ("w1", "w3", "w2"))


def unread(name, config):
    return False


def breakages(config, case):
    result = {
        **decoder.mistakes("Mixtral", config),
        "gate and up swapped in experts": each("MixtralExperts", decoder.swap_halves),
    }
    if config["sliding_window"]:
        result["no window"] = lambda model, stack: setattr(model.model.config, "sliding_window", None)
        result["window of one more"] = lambda model, stack: setattr(model.model.config, "sliding_window", 9)
    return result


if __name__ == "__main__":
    family.main(sys.modules[__name__])
