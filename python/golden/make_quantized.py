"""Golden checkpoints of quantised matrices: tests/golden/quantized, by the packages whose formats they are.

    python python/golden/make_quantized.py

model.safetensors holds matrices as nvidia-modelopt and compressed_tensors store them, under names of modules, and for
each MODULE what it means as MODULE.expected: the package's own dequantised values in float32. Where scales are short
(bfloat16), the package multiplies in that type; then expected is the product in float32, which is exact, and it is
checked here that rounding it gives the package's bits (of NVFP4, whose scales have a quotient that the package rounds
as well, that it is within two such roundings). index.json says which format carpool must see in a module, how
many units in the last place its values may be off (a product of three factors has two roundings, and where a package
divides, carpool multiplies with the inverse), and the versions. The ModelOpt encoder is written once more below from
its published definition, and must give the package's bytes.
"""
import importlib.metadata
import json
import pathlib

import numpy as np
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor
from safetensors.torch import save_file

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "quantized"
SEED = 20251130


def weights(generator, rows, cols, size=0.05):
    return torch.randn(rows, cols, generator=generator) * size


def nvfp4_by_definition(values):
    """E2M1 nibbles (low = even column), E4M3 scales of 16, one scale: amax / (6 * 448), then amax of a block / 6."""
    second = np.float32(np.abs(values).max() / np.float32(6 * 448))
    blocks = values.reshape(values.shape[0], -1, 16)
    scales = np.abs(blocks).max(-1) / np.float32(6) / second
    scales = np.where(scales == 0, np.float32(1), np.clip(scales, 2.0**-9, 448)).astype(np.float32)
    scales = torch.from_numpy(scales).to(torch.float8_e4m3fn)
    steps = np.abs(blocks / (scales.float().numpy() * second)[:, :, None])
    bounds = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5], np.float32)
    codes = np.searchsorted(bounds, steps) + np.isin(steps, bounds[[1, 3, 5]])
    codes = (codes + 8 * (blocks < 0)).astype(np.uint8).reshape(values.shape)
    return codes[:, 0::2] | codes[:, 1::2] << 4, scales, second


def add_modelopt(tensors, index, generator):
    """Experts of very different sizes, so that a scale shared by mistake would drown the small ones."""
    for e, size in enumerate((0.05, 4.0, 1e-4)):
        module, values = f"modelopt.{e}", weights(generator, 12, 64, size)
        values[0, :16] = 0
        quantized, scales, second = NVFP4QTensor.quantize(values.clone(), 16)
        data = quantized._quantized_data
        own_data, own_scales, own_second = nvfp4_by_definition(values.numpy())
        assert np.array_equal(data.numpy(), own_data) and own_second == second.numpy()
        assert torch.equal(scales.view(torch.uint8), own_scales.view(torch.uint8))
        expected = quantized.dequantize(dtype=torch.float32, scale=scales, double_scale=second, block_sizes={-1: 16})
        tensors.update({f"{module}.weight": data, f"{module}.weight_scale": scales,
                        f"{module}.weight_scale_2": second, f"{module}.expected": expected})
        if e != 2:  # an expert that no calibration token reached has none
            tensors[f"{module}.input_scale"] = torch.tensor(0.01 * (e + 1))
        index[module] = {"format": "nvfp4", "ulp": 2}


def compressed(name, scheme, state):
    compressor = BaseCompressor.get_value_from_registry(name)
    out = compressor.compress(state, scheme)
    back = compressor.decompress(dict(out), scheme)["weight"]
    return out, back


def add_compressed(tensors, index, generator, module, name, carpool, args, rows, cols, make, ulp=0):
    """`make(values)` gives scales, zero points and the like, as an observer would."""
    values = weights(generator, rows, cols)
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**args), format=name)
    stored, back = compressed(name, scheme, {"weight": values, **make(values)})
    stored = {k: v.detach().contiguous() for k, v in stored.items()}
    exact = back
    if back.dtype != torch.float32:
        wide = {k: v.float() if k == "weight_scale" else v for k, v in stored.items()}
        exact = BaseCompressor.get_value_from_registry(name).decompress(wide, scheme)["weight"]
        if "weight_global_scale" in stored:  # the package rounds the quotient of the scales too
            codes = unpack_fp4_from_uint8(stored["weight_packed"], rows, cols).float()
            exact = dequantize(x_q=codes, scale=wide["weight_scale"], args=scheme.weights,
                               global_scale=stored["weight_global_scale"], dtype=torch.float32)
            assert torch.all((exact - back.float()).abs() <= 2.0**-7 * exact.abs()), module
        else:
            assert torch.equal(exact.to(back.dtype), back), module
    tensors.update({f"{module}.{k}": v for k, v in stored.items()})
    tensors[f"{module}.expected"] = exact.float().contiguous()
    index[module] = {"format": carpool, "ulp": ulp, "by": name}


def grouped(group, bits, dtype, zeros=False):
    top = (1 << (bits - 1)) - 1

    def make(values):
        parts = values.reshape(values.shape[0], -1, group or values.shape[1])
        if not zeros:
            return {"weight_scale": (parts.abs().amax(-1) / (top + 0.5)).to(dtype)}
        low, high = parts.amin(-1).clamp(max=0), parts.amax(-1).clamp(min=0)
        scale = ((high - low) / (2 * top + 1)).to(dtype)
        zero = (-(top + 1) - low / scale.float()).round().clamp(-top - 1, top)
        return {"weight_scale": scale, "weight_zero_point": zero.to(torch.int8)}
    return make


def fp8(axis, dtype):
    def make(values):
        largest = values.abs().amax(axis, keepdim=True) if axis is not None else values.abs().max().reshape(1)
        return {"weight_scale": (largest / 448).to(dtype)}
    return make


def fp8_blocks(values):
    rows, cols = values.shape
    padded = torch.zeros(-(-rows // 128) * 128, -(-cols // 128) * 128)
    padded[:rows, :cols] = values.abs()
    return {"weight_scale": padded.reshape(padded.shape[0] // 128, 128, -1, 128).amax((1, 3)) / 448}


def nvfp4(values):
    whole = (6 * 448 / values.abs().max()).reshape(1)
    scale = (values.reshape(values.shape[0], -1, 16).abs().amax(-1) / 6 * whole).to(torch.float8_e4m3fn)
    return {"weight_scale": scale.float(), "weight_global_scale": whole}


def mxfp4(values):
    largest = values.reshape(values.shape[0], -1, 32).abs().amax(-1)
    return {"weight_scale": torch.exp2(torch.floor(torch.log2(largest)) - 2)}


def main():
    generator = torch.Generator().manual_seed(SEED)
    tensors, index = {}, {}
    add_modelopt(tensors, index, generator)
    four, eight = {"num_bits": 4, "type": "int"}, {"num_bits": 8, "type": "int"}
    floats = {"num_bits": 8, "type": "float"}

    def add(*rest, **more):
        add_compressed(tensors, index, generator, *rest, **more)

    packed = "pack-quantized"
    add("int4", packed, "int4", {**four, "strategy": "group", "group_size": 32}, 20, 96, grouped(32, 4, torch.bfloat16))
    add("int4_channel", packed, "int4f", {**four, "strategy": "channel"}, 5, 64, grouped(0, 4, torch.float32))
    add("int4_zeros", packed, "int4f", {**four, "strategy": "group", "group_size": 64, "symmetric": False}, 21, 128,
        grouped(64, 4, torch.float16, zeros=True))
    add("int8", packed, "int8", {**eight, "strategy": "channel"}, 6, 96, grouped(0, 8, torch.bfloat16))
    add("int8_zeros", packed, "int8", {**eight, "strategy": "group", "group_size": 32, "symmetric": False}, 9, 64,
        grouped(32, 8, torch.float32, zeros=True))
    add("fp8_channel", "float-quantized", "fp8", {**floats, "strategy": "channel"}, 18, 40, fp8(1, torch.bfloat16))
    add("fp8_tensor", "float-quantized", "fp8", {**floats, "strategy": "tensor"}, 7, 40, fp8(None, torch.float32))
    add("fp8_block", "float-quantized", "fp8", {**floats, "strategy": "block", "block_structure": [128, 128]}, 140, 150,
        fp8_blocks)
    add("nvfp4", "nvfp4-pack-quantized", "nvfp4", {"num_bits": 4, "type": "float", "strategy": "tensor_group",
                                                   "group_size": 16}, 7, 48, nvfp4, ulp=2)
    add("mxfp4", "mxfp4-pack-quantized", "mxfp4", {"num_bits": 4, "type": "float", "strategy": "group",
                                                   "group_size": 32}, 7, 96, mxfp4)
    FOLDER.mkdir(parents=True, exist_ok=True)
    save_file({k: v.contiguous() for k, v in tensors.items()}, str(FOLDER / "model.safetensors"))
    about = {"made_by": "python/golden/make_quantized.py", "seed": SEED, "modules": index}
    for package in ("torch", "nvidia-modelopt", "compressed-tensors", "safetensors"):
        about[package] = importlib.metadata.version(package).split("+")[0]
    (FOLDER / "index.json").write_text(json.dumps(about, indent=1) + "\n")
    print(f"{len(index)} modules, {len(tensors)} tensors")


if __name__ == "__main__":
    main()
