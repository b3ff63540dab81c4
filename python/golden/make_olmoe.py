"""Makes the tiny random OLMoE models of the tests and their golden files.

  python make_olmoe.py [--out tests/golden] [CASE...]

See family.py.
"""
import sys

import decoder
import family
from decoder import each

BASE = {
    "architectures": ["OlmoeForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "clip_qkv": None,
    "eos_token_id": None, "hidden_act": "silu", "hidden_size": 32, "initializer_range": 0.02,
    "intermediate_size": 20, "max_position_embeddings": 256, "model_type": "olmoe", "norm_topk_prob": False,
    "num_attention_heads": 4, "num_experts": 8, "num_experts_per_tok": 3, "num_hidden_layers": 2,
    "num_key_value_heads": 4, "output_router_logits": False, "pad_token_id": 1, "rms_norm_eps": 1e-5,
    "rope_scaling": None, "rope_theta": 10000.0, "router_aux_loss_coef": 0.01, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 96,
}
CASES = {
    "whole_norms": {
        "what": "queries and keys are normalised over all heads together; weights of the chosen experts are not "
                "renormalised",
        "prompts": [5, 1, 2, 17, 40]},
    "grouped_tied": {
        "what": "two query heads per key head, so that the two norms differ in size; tied head; renormalised",
        "config": {"num_key_value_heads": 2, "tie_word_embeddings": True, "norm_topk_prob": True,
                   "num_hidden_layers": 3, "hidden_size": 48, "intermediate_size": 16, "num_experts": 12},
        "prompts": [5, 1, 17, 40]},
    "saved_by_transformers5": {
        "what": "float32 weights; as save_pretrained of transformers 5 writes it", "dtype": "float32",
        "config": {"rope_theta": 50000.0, "torch_dtype": "float32"}, "save": "save_pretrained",
        "prompts": [5, 1, 17, 40]},
}


def make_tensors(made, config, case):
    D, H, G = config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]
    decoder.ends(made, config)
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        decoder.attention(made, config, p, norms=(D, D // H * G))
        made.matrix(p + "mlp.gate.weight", config["num_experts"], D, 0.4)
        decoder.experts(made, config, p + "mlp.experts.", config["num_experts"], config["intermediate_size"])


def unread(name, config):
    return False


def breakages(config, case):
    return {
        **decoder.mistakes("Olmoe", config, norms=True),
        "norms of single heads": decoder.norms_of_heads,
        "gate and up swapped in experts": each("OlmoeExperts", decoder.swap_halves),
        "norm_topk_prob inverted": each(
            "OlmoeTopKRouter", decoder.put(norm_topk_prob=not config["norm_topk_prob"])),
    }


if __name__ == "__main__":
    family.main(sys.modules[__name__])
