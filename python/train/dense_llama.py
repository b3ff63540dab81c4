"""A Llama of a GGUF file as torch tensors: its weights, its tokenizer and its forward pass, a window of tokens at a time.

Used by moefy.py, which needs the blocks' activations and may replace the blocks. Everything is float32. Weights keep the
order of the rows that the file has, in which rotated pairs of an attention head are neighbours ("rope_interleave").
"""
import json

import gguf
import numpy
import torch
from torch.nn import functional

BLOCK_MATRICES = ("gate_proj", "up_proj", "down_proj")
NAMES = {  # of the file -> of a checkpoint
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
ENDS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def checkpoint_name(name):
    if name.startswith("blk."):
        _, layer, part, last = name.split(".")
        return f"model.layers.{layer}.{NAMES[part]}.{last}"
    part, last = name.split(".")
    return f"{ENDS[part]}.{last}"


class DenseLlama:
    """`config`: what config.json of the dense model says. `tensors`: float32 by the names of checkpoints."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.fields = {k: f.contents() for k, f in reader.fields.items()}
        if self.fields["general.architecture"] != "llama":
            raise SystemExit(f'{path}: a model of the architecture "{self.fields["general.architecture"]}", not llama')
        if any(k.startswith("llama.rope.scaling") or k == "llama.expert_count" for k in self.fields):
            raise SystemExit(f"{path}: rotary scaling and experts are not supported here")
        self.tensors = {checkpoint_name(t.name): torch.from_numpy(gguf.dequantize(t.data, t.tensor_type).astype(numpy.float32))
                        for t in reader.tensors}
        self.config = self._config()

    def _config(self):
        f = self.fields
        heads, width = f["llama.attention.head_count"], f["llama.embedding_length"]
        return {
            "attention_bias": False, "bos_token_id": f["tokenizer.ggml.bos_token_id"],
            "eos_token_id": f["tokenizer.ggml.eos_token_id"], "head_dim": f.get("llama.rope.dimension_count", width // heads),
            "hidden_act": "silu", "hidden_size": width, "intermediate_size": f["llama.feed_forward_length"],
            "max_position_embeddings": f["llama.context_length"], "mlp_bias": False, "num_attention_heads": heads,
            "num_hidden_layers": f["llama.block_count"], "num_key_value_heads": f["llama.attention.head_count_kv"],
            "rms_norm_eps": float(numpy.float32(f["llama.attention.layer_norm_rms_epsilon"]).astype(str)),
            "rope_interleave": True, "rope_theta": f["llama.rope.freq_base"],
            "tie_word_embeddings": "lm_head.weight" not in self.tensors,
            "vocab_size": self.tensors["model.embed_tokens.weight"].shape[0],
        }

    def tokenizer(self):
        """The content of tokenizer.json: byte-level BPE with single digits, which is what "smollm" means."""
        f = self.fields
        if (f["tokenizer.ggml.model"], f["tokenizer.ggml.pre"]) != ("gpt2", "smollm"):
            raise SystemExit(f'the tokenizer "{f["tokenizer.ggml.pre"]}" is not supported here, only "smollm"')
        tokens, kinds = f["tokenizer.ggml.tokens"], f["tokenizer.ggml.token_type"]
        control = gguf.TokenType.CONTROL
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        return {
            "version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False,
                              "normalized": False, "special": True}
                             for i, (t, kind) in enumerate(zip(tokens, kinds)) if kind == control],
            "normalizer": None,
            "pre_tokenizer": {"type": "Sequence",
                              "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]},
            "post_processor": None, "decoder": byte_level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": {t: i for i, t in enumerate(tokens)}, "merges": f["tokenizer.ggml.merges"]},
        }

    def tokenizer_config(self):
        f = self.fields
        tokens = f["tokenizer.ggml.tokens"]
        return {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": f["tokenizer.ggml.add_bos_token"],
                "clean_up_tokenization_spaces": False, "model_max_length": f["llama.context_length"],
                "bos_token": tokens[f["tokenizer.ggml.bos_token_id"]], "eos_token": tokens[f["tokenizer.ggml.eos_token_id"]],
                "chat_template": f["tokenizer.chat_template"]}

    # The forward pass. Windows [S, T] of token ids; hidden states [S, T, D].

    def embed(self, windows):
        return self.tensors["model.embed_tokens.weight"][windows]

    def norm(self, x, name):
        return functional.rms_norm(x, x.shape[-1:], self.tensors[name], self.config["rms_norm_eps"])

    def _rotate(self, x):
        """x [S, heads, T, head_dim], the pairs (2i, 2i + 1) turned by their position."""
        pairs = x.shape[-1] // 2
        frequencies = self.config["rope_theta"] ** (-torch.arange(pairs) / pairs)
        angles = torch.arange(x.shape[-2])[:, None] * frequencies
        turned = torch.view_as_complex(x.unflatten(-1, (pairs, 2)).contiguous()) * torch.polar(torch.ones_like(angles), angles)
        return torch.view_as_real(turned).flatten(-2)

    def attention(self, layer, x):
        """x plus the attention of `layer`, causal within each window."""
        p, size = f"model.layers.{layer}.", self.config["head_dim"]
        normed = self.norm(x, p + "input_layernorm.weight")
        q, k, v = ((normed @ self.tensors[f"{p}self_attn.{m}_proj.weight"].T).unflatten(-1, (-1, size)).transpose(1, 2)
                   for m in "qkv")
        mixed = functional.scaled_dot_product_attention(self._rotate(q), self._rotate(k), v, is_causal=True, enable_gqa=True)
        return x + mixed.transpose(1, 2).flatten(2) @ self.tensors[p + "self_attn.o_proj.weight"].T

    def block(self, layer):
        """The matrices of the feed-forward block: gate [F, D], up [F, D], down [D, F]."""
        return tuple(self.tensors[f"model.layers.{layer}.mlp.{m}.weight"] for m in BLOCK_MATRICES)

    def losses(self, x, windows):
        """Cross-entropy in nats of every token but the first of each window, [S, T - 1], of final hidden states x."""
        head = self.tensors.get("lm_head.weight", self.tensors["model.embed_tokens.weight"])
        normed = self.norm(x, "model.norm.weight")
        return torch.stack([functional.cross_entropy(rows[:-1] @ head.T, ids[1:], reduction="none")
                            for rows, ids in zip(normed, windows)])
