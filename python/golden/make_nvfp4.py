"""Makes a tiny random GLM-5 checkpoint in ModelOpt's NVFP4 layout, and its golden file.

  python make_nvfp4.py [--out tests/golden]

Routed experts are NVFP4 (codes, a scale for 16 of them, a scale for the matrix, a scale of activations that an
engine which multiplies weights only has no use for), everything else is BF16. The reference reads the same
weights dequantised to float32. Next: family.py, make_glm_moe_dsa.py.
"""
import sys

import torch

import family
import make_glm_moe_dsa as glm

BASE = {
    **glm.BASE, "num_hidden_layers": 4, "moe_intermediate_size": 16, "num_nextn_predict_layers": 0,
    "quantization_config": {
        "quant_method": "modelopt", "quant_algo": "NVFP4", "producer": {"name": "modelopt", "version": "0.39.0"},
        "config_groups": {"group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "float", "group_size": 16, "dynamic": False},
            "input_activations": {"num_bits": 4, "type": "float", "group_size": 16, "dynamic": False}}},
        "ignore": ["lm_head", "model.layers.*.self_attn*", "model.layers.*.mlp.gate",
                   "model.layers.*.mlp.shared_experts*", "model.layers.0.*"]},
}
CASES = {
    "glm5": {
        "what": "as GLM-5-NVFP4: routed experts in NVFP4 with scales of activations from tiny to huge, the rest BF16",
        "bias": (34.5, 0.14), "prompts": [5, 48], "without_prediction": True, "folder": "nvfp4",
    },
}
VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
EDGES = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5])  # equality goes up at every second one


def encode(matrix):
    """(codes U8 [rows, cols / 2], scales E4M3 [rows, cols / 16], scale F32, the values they stand for)."""
    rows, cols = matrix.shape
    blocks = matrix.float().reshape(rows, cols // 16, 16)
    whole = blocks.abs().max() / (6 * 448)
    scales = (blocks.abs().amax(-1) / 6 / whole).clamp(2.0 ** -9, 448).to(torch.float8_e4m3fn)
    unit = (scales.float() * whole).unsqueeze(-1)
    size = (blocks.abs() / unit).contiguous()
    codes = torch.bucketize(size, EDGES, right=False)
    codes += ((size == EDGES[1]) | (size == EDGES[3]) | (size == EDGES[5])).to(codes.dtype)
    values = (VALUES[codes] * blocks.sign() * unit).reshape(rows, cols)
    codes = (codes + 8 * (blocks < 0)).to(torch.uint8).reshape(rows, cols // 2, 2)
    return codes[..., 0] | codes[..., 1] << 4, scales, whole.reshape(()), values


def quantise(tensors):
    stored, read = {}, {}
    for i, (name, tensor) in enumerate(tensors.items()):
        if ".mlp.experts." not in name:
            stored[name] = read[name] = tensor
            continue
        stem = name.removesuffix("weight")
        stored[name], stored[stem + "weight_scale"], stored[stem + "weight_scale_2"], read[name] = encode(tensor)
        stored[stem + "input_scale"] = torch.tensor([1e-7, 0.01, 3e4][i % 3])
    return stored, read


make_tensors, unread, breakages = glm.make_tensors, glm.unread, glm.breakages

if __name__ == "__main__":
    family.main(sys.modules[__name__])
