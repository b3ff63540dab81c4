"""Writes GGUF files of the tiny models of every family with the `gguf` package, by its own table of names.

  python make_gguf_families.py [--out tests/golden/gguf] [FAMILY/CASE...]

Keys and layouts are those of llama.cpp's converter: experts of a layer in one tensor, rows of queries and keys of llama
in pairs, keys and values of latent attention apart (together where OLD_FORM says so, as before April 2025), layers of
multi-token prediction behind the others and counted among them, where the architecture has names for theirs. carpool must compute from a file FAMILY-CASE.gguf what it computes
from the checkpoint tests/golden/FAMILY/CASE. Values keep their type, so the files are deterministic.
"""
import argparse
import json
import pathlib
import re
import struct

import gguf
import numpy
from gguf import GGMLQuantizationType as Type

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Not among them, as GGUF cannot say it: deepseek_v3/direct_queries rotates halves of heads, glm_moe_dsa/glm52 has a dense
# layer behind sparse ones.
CASES = ["qwen3/dense_tied", "llama/plain", "llama/llama3_tied", "mixtral/published", "olmoe/whole_norms",
         "minimax_m2/published", "gpt_oss/mxfp4", "glm4_moe/*", "glm4_moe_lite/*",
         "deepseek_v2/*", "deepseek_v3/v3", "kimi_k2/*", "glm_moe_dsa/glm5", "glm_moe_dsa/by_frequency"]
OLD_FORM = ("deepseek_v2/lite",)
ARCHITECTURES = {"qwen3": "qwen3", "llama": "llama", "mixtral": "llama", "olmoe": "olmoe", "minimax_m2": "minimax-m2",
                 "gpt_oss": "gpt-oss", "glm4_moe": "glm4moe", "glm4_moe_lite": "deepseek2", "deepseek_v3": "deepseek2",
                 "glm_moe_dsa": "glm-dsa", "deepseek_v2": "deepseek2", "kimi_k2": "deepseek2"}
NUMPY = {"F32": "<f4", "BF16": "<u2", "F16": "<f2", "U8": "u1"}


def read_safetensors(path):
    """name -> (dtype, array); BF16 as its 16 bits."""
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    out = {}
    for name, entry in json.loads(data[8:8 + length]).items():
        if name != "__metadata__":
            begin, end = (8 + length + o for o in entry["data_offsets"])
            array = numpy.frombuffer(data[begin:end], NUMPY[entry["dtype"]]).reshape(entry["shape"])
            out[name] = (entry["dtype"], array)
    return out


def as_float(dtype, array):
    return (array.astype("<u4") << 16).view("<f4") if dtype == "BF16" else array.astype("<f4")


def pairs(array, heads):
    """Rows half a head apart become neighbours."""
    return array.reshape(heads, 2, len(array) // heads // 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def mxfp4(blocks, scales):
    """Rows of 17-byte blocks: the scale, then element i in the low and i + 16 in the high half of byte i."""
    codes = numpy.stack((blocks & 15, blocks >> 4), -1).reshape(*blocks.shape[:-1], 32)
    packed = codes[..., :16] | codes[..., 16:] << 4
    rows = numpy.concatenate((scales[..., None], packed), -1)
    return rows.reshape(*rows.shape[:-2], -1).astype("u1")


class File:
    def __init__(self, path, config, architecture, old_form):
        self.old_form = old_form
        self.writer = gguf.GGUFWriter(path, architecture)
        self.config = config
        kind = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == architecture)
        layers = config["num_hidden_layers"] + (config.get("num_nextn_predict_layers") or 0)
        self.has_prediction = gguf.MODEL_TENSOR.NEXTN_EH_PROJ in gguf.MODEL_TENSORS[kind]
        self.map = gguf.get_tensor_name_map(kind, layers)

    def put(self, name, dtype, array):
        """A tensor by its name in checkpoints, single expert names without their number."""
        target = self.map.get_name(name, try_suffixes=(".weight", ".bias"))
        assert target, name
        flat = array.ndim == 1 or "ffn_gate_inp" in target or target.endswith(".bias") or "indexer.proj" in target
        if dtype == "MXFP4":
            self.writer.add_tensor(target, array, raw_dtype=Type.MXFP4)
        elif dtype == "BF16" and not flat:
            data = numpy.ascontiguousarray(array).view("u1")
            self.writer.add_tensor(target, data, raw_dtype=Type.BF16)
        else:
            self.writer.add_tensor(target, numpy.ascontiguousarray(as_float(dtype, array)), raw_dtype=Type.F32)

    def close(self):
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def put_tensors(file, tensors, architecture):
    c = file.config
    heads, kv_heads = c["num_attention_heads"], c.get("num_key_value_heads", c["num_attention_heads"])
    experts = {}
    for name, (dtype, array) in tensors.items():
        expert = re.fullmatch(r"(.*\.experts)\.(\d+)\.(\w+)\.weight", name)
        if expert:
            experts.setdefault((expert[1], expert[3]), {})[int(expert[2])] = (dtype, array)
        elif name.endswith("_scales"):
            continue
        elif name.endswith(("experts.gate_up_proj_blocks", "experts.down_proj_blocks")):
            stem = name.removesuffix("_blocks")
            scales = tensors[stem + "_scales"][1]
            if stem.endswith("down_proj"):
                file.put(stem + ".weight", "MXFP4", mxfp4(array, scales))
            else:
                for i, part in enumerate(("gate_proj", "up_proj")):
                    file.put(stem.replace("gate_up_proj", part) + ".weight", "MXFP4",
                             mxfp4(array[:, i::2], scales[:, i::2]))
        elif name.endswith("experts.gate_up_proj"):
            for i, part in enumerate(("gate_proj", "up_proj")):
                file.put(name.replace("gate_up_proj", part) + ".weight", dtype, array.swapaxes(1, 2)[:, i::2])
        elif name.endswith("experts.down_proj"):
            file.put(name + ".weight", dtype, array.swapaxes(1, 2))
        elif name.endswith("experts.gate_up_proj_bias"):
            for i, part in enumerate(("gate_proj", "up_proj")):
                file.put(name.replace("gate_up_proj_bias", part) + ".bias", dtype, array[:, i::2])
        elif name.endswith("experts.down_proj_bias"):
            file.put(name.replace("_bias", ".bias"), dtype, array)
        elif name.endswith("sinks"):
            file.put(name + ".weight", dtype, array)
        elif name.endswith("e_score_correction_bias"):
            file.put(name.replace("_bias", ".bias"), dtype, array)
        elif name.endswith("kv_b_proj.weight") and not file.old_form:
            nope, value = c["qk_nope_head_dim"], c["v_head_dim"]
            per_head = array.reshape(heads, nope + value, -1)
            file.put(name.replace("kv_b_proj", "k_b_proj"), dtype, per_head[:, :nope].swapaxes(1, 2))
            file.put(name.replace("kv_b_proj", "v_b_proj"), dtype, per_head[:, nope:])
        elif architecture == "llama" and ".q_proj." in name:
            file.put(name, dtype, pairs(array, heads))
        elif architecture == "llama" and ".k_proj." in name:
            file.put(name, dtype, pairs(array, kv_heads))
        else:
            file.put(name, dtype, array)
    for (stem, matrix), members in experts.items():
        stack = numpy.stack([members[e][1] for e in range(len(members))])
        file.put(f"{stem}.{matrix}.weight", members[0][0], stack)


def put_attention(writer, c, old_form):
    D, H = c["hidden_size"], c["num_attention_heads"]
    writer.add_head_count(H)
    if "kv_lora_rank" in c:
        writer.add_head_count_kv(H if old_form else 1)
        if c.get("q_lora_rank"):
            writer.add_q_lora_rank(c["q_lora_rank"])
        rank, rope = c["kv_lora_rank"], c["qk_rope_head_dim"]
        writer.add_kv_lora_rank(rank)
        key, value = c["qk_nope_head_dim"] + rope, c["v_head_dim"]
        writer.add_key_length(key if old_form else rank + rope)
        writer.add_value_length(value if old_form else rank)
        if not old_form:
            writer.add_key_length_mla(key)
            writer.add_value_length_mla(value)
        writer.add_rope_dimension_count(rope)
    else:
        head_dim = c.get("head_dim") or D // H
        writer.add_head_count_kv(c["num_key_value_heads"])
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
        part = c.get("partial_rotary_factor", 0.5 if c["model_type"] == "glm4_moe" else 1)
        writer.add_rope_dimension_count(c.get("rotary_dim") or int(head_dim * part))
    if "index_topk" in c:
        writer.add_indexer_head_count(c["index_n_heads"])
        writer.add_indexer_key_length(c["index_head_dim"])
        writer.add_indexer_top_k(c["index_topk"])
    if c["model_type"] == "gpt_oss":
        writer.add_sliding_window(c["sliding_window"])


def put_rope(writer, c):
    rope = c.get("rope_scaling") or c.get("rope_parameters") or {}
    writer.add_rope_freq_base(float(rope.get("rope_theta") or c["rope_theta"]))
    if rope.get("rope_type", rope.get("type")) == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        for key in ("beta_fast", "beta_slow"):
            if key in rope:
                getattr(writer, "add_rope_scaling_yarn_" + key)(rope[key])
        if "mscale_all_dim" in rope:
            writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
    if rope.get("rope_type") == "llama3":
        hd = c["head_dim"]
        frequencies = c["rope_theta"] ** (-numpy.arange(0, hd, 2) / hd)
        wavelength = 2 * numpy.pi / frequencies
        low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
        blend = (rope["original_max_position_embeddings"] / wavelength - low) / (high - low)
        blend = numpy.clip(blend, 0, 1)
        writer.add_tensor("rope_freqs.weight", (1 / ((1 - blend) / factor + blend)).astype("<f4"), raw_dtype=Type.F32)


def put_experts(writer, c):
    count = c.get("n_routed_experts") or c.get("num_local_experts") or c.get("num_experts")
    if not count:
        return
    writer.add_expert_count(count)
    writer.add_expert_used_count(c["num_experts_per_tok"])
    kind = c["model_type"]
    if kind not in ("mixtral", "olmoe"):
        writer.add_expert_feed_forward_length(c.get("moe_intermediate_size") or c["intermediate_size"])
    if kind == "deepseek_v2":
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SOFTMAX)
    elif kind == "minimax_m2" or c.get("n_routed_experts"):
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if not c.get("n_routed_experts"):
        return
    if c.get("n_group", 1) > 1:
        writer.add_expert_group_count(c["n_group"])
        writer.add_expert_group_used_count(c["topk_group"])
    writer.add_leading_dense_block_count(c["first_k_dense_replace"])
    writer.add_expert_shared_count(c["n_shared_experts"])
    writer.add_expert_weights_scale(c["routed_scaling_factor"])
    writer.add_expert_weights_norm(c["norm_topk_prob"])


def write(source, path):
    config = json.loads((source / "config.json").read_text())
    if config["num_hidden_layers"] <= 0:
        raise SystemExit(f"{source}: no layers")
    architecture = ARCHITECTURES[config["model_type"]]
    old_form = f"{source.parent.name}/{source.name}" in OLD_FORM
    file = File(path, config, architecture, old_form)
    w, tensors = file.writer, read_safetensors(source / "model.safetensors")
    layers = config["num_hidden_layers"]
    layer_of = {n: int(m[1]) for n in tensors if (m := re.match(r"model\.layers\.(\d+)\.", n))}
    behind = {l for l in layer_of.values() if l >= layers}
    if not file.has_prediction:
        tensors, behind = {n: t for n, t in tensors.items() if layer_of.get(n, 0) < layers}, set()
    w.add_vocab_size(config["vocab_size"])
    w.add_block_count(layers + len(behind))
    if behind:
        w.add_nextn_predict_layers(len(behind))
    w.add_context_length(config["max_position_embeddings"])
    w.add_embedding_length(config["hidden_size"])
    w.add_feed_forward_length(config["intermediate_size"])
    w.add_layer_norm_rms_eps(config["rms_norm_eps"])
    put_attention(w, config, old_form)
    put_rope(w, config)
    put_experts(w, config)
    put_tensors(file, tensors, architecture)
    file.close()
    print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "tests/golden/gguf")
    parser.add_argument("cases", nargs="*", default=CASES)
    args = parser.parse_args()
    for pattern in args.cases:
        for source in sorted((ROOT / "tests/golden").glob(pattern)):
            if (source / "model.safetensors").exists():
                write(source, args.out / f"{source.parent.name}-{source.name}.gguf")


if __name__ == "__main__":
    main()
