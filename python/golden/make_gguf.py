"""Writes GGUF files with the `gguf` package: the fixtures of tests/golden/gguf, and checks files that carpool wrote.

  python make_gguf.py [--out tests/golden/gguf]     make the fixtures
  python make_gguf.py --check FILE.gguf DIRECTORY   compare a file that `carpool quantize` wrote with the float32
                                                    directory that `carpool quantize FILE.gguf DIRECTORY --format f32`
                                                    made of it: every tensor, bit for bit

Fixtures: model-0000N-of-00002.gguf, a split qwen3moe model with the weights of qwen3_moe/saved_by_transformers5, its
matrices as bf16, q8_0 and f32 in turn; model.json, for each tensor by its checkpoint name its shape and the FNV-1a hash
of what the package dequantizes it to; tokenizer.gguf, tokenizer/qwen2.json as its keys. Deterministic for the versions
in requirements.txt.
"""
import argparse
import json
import pathlib
import re
import struct
import sys

import gguf
import numpy
from gguf import GGMLQuantizationType as Type

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests/golden/qwen3_moe/saved_by_transformers5"
TOKENIZER = ROOT / "tests/golden/tokenizer/qwen2.json"
LAYER = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
         "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate": "ffn_gate_inp"}
GLOBAL = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def read_safetensors(path):
    """name -> float32 array, of a file with F32, BF16 or F16 tensors."""
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    out = {}
    for name, entry in json.loads(data[8:8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + o for o in entry["data_offsets"])
        raw = data[begin:end]
        if entry["dtype"] == "BF16":
            array = (numpy.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
        else:
            array = numpy.frombuffer(raw, {"F32": "<f4", "F16": "<f2"}[entry["dtype"]]).astype("<f4")
        out[name] = array.reshape(entry["shape"])
    return out


def gguf_name(name):
    """(name in GGUF, expert or None) of a checkpoint's tensor."""
    stem, part = name.rsplit(".", 1)
    if stem in GLOBAL:
        return f"{GLOBAL[stem]}.{part}", None
    layer, rest = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", stem).groups()
    expert = re.fullmatch(r"mlp\.experts\.(\d+)\.(gate|up|down)_proj", rest)
    if expert:
        return f"blk.{layer}.ffn_{expert[2]}_exps.{part}", int(expert[1])
    return f"blk.{layer}.{LAYER[rest]}.{part}", None


def stacked(tensors):
    """GGUF name -> (array, checkpoint names of its slices or of the whole)."""
    groups = {}
    for name in tensors:
        target, expert = gguf_name(name)
        groups.setdefault(target, {})[expert] = name
    out = {}
    for target, members in groups.items():
        if None in members:
            out[target] = (tensors[members[None]], [members[None]])
        else:
            names = [members[e] for e in range(len(members))]
            out[target] = (numpy.stack([tensors[n] for n in names]), names)
    return out


def fnv(array):
    h = 0xCBF29CE484222325
    for byte in numpy.ascontiguousarray(array, "<f4").tobytes():
        h = (h ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{h:016x}"


def add_config(writer, config):
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_expert_count(config["num_experts"] if "num_experts" in config else config["num_local_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_weights_norm(config["norm_topk_prob"])


def write_model(out):
    config = json.loads((MODEL / "config.json").read_text())
    tensors = stacked(read_safetensors(MODEL / "model.safetensors"))
    writer = gguf.GGUFWriter(out / "model.gguf", "qwen3moe", split_max_tensors=(len(tensors) + 1) // 2)
    add_config(writer, config)
    expected, matrices = {}, 0
    for name, (array, names) in tensors.items():
        kind = Type.F32
        if array.ndim > 1 and "ffn_gate_inp" not in name:
            fits = array.shape[-1] % 32 == 0
            kind = [Type.BF16, Type.Q8_0 if fits else Type.BF16, Type.F32][matrices % 3]
            matrices += 1
        if array.ndim == 3:
            kind = Type.BF16  # keeps the files small
        data = gguf.quants.quantize(numpy.ascontiguousarray(array), kind)
        writer.add_tensor(name, data, raw_dtype=kind)
        back = gguf.quants.dequantize(data, kind).reshape(array.shape)
        for i, checkpoint_name in enumerate(names):
            part = back[i] if array.ndim == 3 else back
            expected[checkpoint_name] = {"type": kind.name, "shape": list(part.shape), "fnv": fnv(part)}
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    facts = {"maker": "python/golden/make_gguf.py", "gguf": "0.19.0", "tensors": expected}
    (out / "model.json").write_text(json.dumps(facts, indent=1) + "\n")


def write_tokenizer(out):
    tokenizer = json.loads(TOKENIZER.read_text())
    size = 1 + max([*tokenizer["model"]["vocab"].values(), *(t["id"] for t in tokenizer["added_tokens"])])
    tokens, types = [""] * size, [gguf.TokenType.NORMAL] * size
    for token, i in tokenizer["model"]["vocab"].items():
        tokens[i] = token
    for token in tokenizer["added_tokens"]:
        tokens[token["id"]] = token["content"]
        types[token["id"]] = gguf.TokenType.CONTROL if token["special"] else gguf.TokenType.USER_DEFINED
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]
    writer = gguf.GGUFWriter(out / "tokenizer.gguf", "qwen3moe")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(tokens.index("<|end|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def check(path, directory):
    """Exits 1 unless the package reads from `path` what carpool decoded into the float32 `directory`."""
    reader = gguf.GGUFReader(path)
    values = {}
    for t in reader.tensors:
        shape = [int(n) for n in reversed(t.shape)]
        values[t.name] = gguf.quants.dequantize(t.data, t.tensor_type).reshape(shape)
    compared, kinds = 0, {t.tensor_type.name for t in reader.tensors}
    for name, array in read_safetensors(pathlib.Path(directory) / "model.safetensors").items():
        target, expert = gguf_name(name)
        found = values[target] if expert is None else values[target][expert]
        scale = values.get(target.rsplit(".", 1)[0] + ".scale")
        if scale is not None and target.endswith(".weight"):
            found = found * scale[expert or 0]
        if found.shape != array.shape or not numpy.array_equal(found, array):
            worst = numpy.abs(found - array).max() if found.shape == array.shape else "shape"
            sys.exit(f"{path}: {name}: differs by {worst}")
        compared += array.size
    print(f"{path}: {compared} values of {', '.join(sorted(kinds))} are equal")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "tests/golden/gguf")
    parser.add_argument("--check", nargs=2)
    options = parser.parse_args()
    if options.check:
        return check(*options.check)
    options.out.mkdir(parents=True, exist_ok=True)
    write_model(options.out)
    write_tokenizer(options.out)


if __name__ == "__main__":
    main()
