"""Makes the tiny random Llama models of the tests and their golden files: dense decoders, without routed experts.

  python make_llama.py [--out tests/golden] [CASE...]

See family.py.
"""
import sys

import decoder
import family

BASE = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 32, "initializer_range": 0.02, "intermediate_size": 48,
    "max_position_embeddings": 256, "mlp_bias": False, "model_type": "llama", "num_attention_heads": 4,
    "num_hidden_layers": 3, "num_key_value_heads": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-5,
    "rope_scaling": None, "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "use_cache": True, "vocab_size": 96,
}
CASES = {
    "plain": {"what": "two query heads per key head, own output head", "prompts": [5, 1, 17, 40]},
    "llama3_tied": {
        "what": "rotary scaling of Llama 3 with all three kinds of wavelengths; head_dim given; tied head",
        "config": {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                    "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
                   "rope_theta": 500.0, "head_dim": 16, "tie_word_embeddings": True},
        "prompts": [5, 1, 17, 60]},
    "bias_linear": {
        "what": "biases on the four attention projections; linear rotary scaling; as many key heads as query heads; "
                "float32; as save_pretrained of transformers 5 writes it",
        "config": {"attention_bias": True, "rope_scaling": {"type": "linear", "factor": 4.0}, "num_key_value_heads": 4,
                   "torch_dtype": "float32"},
        "dtype": "float32", "save": "save_pretrained", "prompts": [5, 1, 17, 40]},
}


def make_tensors(made, config, case):
    decoder.ends(made, config)
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        decoder.attention(made, config, p, biases="qkvo" if config["attention_bias"] else "")
        made.mlp(p + "mlp.", config["hidden_size"], config["intermediate_size"])


def unread(name, config):
    return False


def unscaled(model, stack):
    """The rotation without its scaling."""
    rotary, hd = model.model.rotary_emb, model.config.head_dim
    theta = model.config.rope_parameters["rope_theta"]
    for i in range(hd // 2):
        rotary.inv_freq[i] = theta ** (-2 * i / hd)


def breakages(config, case):
    result = decoder.mistakes("Llama", config, experts=False)
    if config["rope_scaling"]:
        result["no rotary scaling"] = unscaled
    if config["attention_bias"]:
        for part in "qkvo":
            if part != "k":  # moves all scores of a query alike where keys are not rotated, and little here
                result[f"bias of {part} left out"] = decoder.fill(f"{part}_proj.bias", 0.0)
    return result


if __name__ == "__main__":
    family.main(sys.modules[__name__])
