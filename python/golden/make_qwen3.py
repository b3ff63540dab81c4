"""Makes the tiny random dense Qwen3 model of the tests and its golden file.

  python make_qwen3.py [--out tests/golden] [CASE...]

See family.py.
"""
import sys

import decoder
import family

BASE = {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": None,
    "eos_token_id": None, "head_dim": 16, "hidden_act": "silu", "hidden_size": 32, "initializer_range": 0.02,
    "intermediate_size": 48, "max_position_embeddings": 256, "max_window_layers": 3, "model_type": "qwen3",
    "num_attention_heads": 4, "num_hidden_layers": 3, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
    "rope_scaling": None, "rope_theta": 1000000.0, "sliding_window": None, "tie_word_embeddings": True,
    "torch_dtype": "bfloat16", "use_cache": True, "use_sliding_window": False, "vocab_size": 96,
}
CASES = {
    "dense_tied": {"what": "norms of each head, tied head, no experts", "prompts": [5, 1, 17, 40]},
}


def make_tensors(made, config, case):
    decoder.ends(made, config)
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        decoder.attention(made, config, p, norms=(config["head_dim"],) * 2)
        made.mlp(p + "mlp.", config["hidden_size"], config["intermediate_size"])


def unread(name, config):
    return False


def breakages(config, case):
    return decoder.mistakes("Qwen3", config, experts=False, norms=True)


if __name__ == "__main__":
    family.main(sys.modules[__name__])
