"""Golden files of the number formats: tests/golden/formats/<name>.json, by the gguf package and published definitions.

    python python/golden/make_formats.py

"decode" cases: stored bytes and the float32 values that they mean; by gguf.quants.dequantize, and, for what GGUF files
do not hold, by compressed_tensors (packed integers with scales of groups) or by the few lines of numpy below (ModelOpt's
NVFP4, gpt-oss's MXFP4, FP8 with scales of 128 x 128 or of rows).
"encode" cases: float32 values and the bytes that gguf.quants.quantize writes, for the formats where it has an encoder.
Bytes are hex, floats little-endian float32. "checked" lists the rows whose values are given. The E2M1 code 8 is +0
everywhere, as in gguf. Two bytes are left out because carpool makes NaN of them where the package does not: the MXFP4
scale 255 and the NVFP4 scale 0xff, which no encoder writes. The same versions and seed give the same bytes.
"""
import importlib.metadata
import json
import pathlib

import gguf
import numpy as np
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import dequantize

ROOT = pathlib.Path(__file__).resolve().parents[2]
SEED = 20251130
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
TYPES = {name: getattr(gguf.GGMLQuantizationType, name.upper())
         for name in ("f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "nvfp4", "mxfp4", "q2_k", "q3_k", "q4_k", "q5_k",
                      "q6_k", "iq4_nl", "iq4_xs")}


def text(array):
    return np.ascontiguousarray(array).tobytes().hex()


def e4m3(codes):
    """OCP FP8 E4M3 (FN), code by code."""
    table = [(-1.0 if c & 128 else 1.0) * (np.nan if c & 127 == 127 else
             (c & 7) * 2.0**-9 if c & 120 == 0 else (8 + (c & 7)) * 2.0**((c >> 3 & 15) - 10)) for c in range(256)]
    return np.array(table, np.float32)[codes]


def case(what, data, values, **more):
    return {"what": what, "rows": data.shape[0], "cols": values.shape[1], **more, "data": text(data),
            "values": text(values.astype("<f4"))}


def halves(rng, shape):
    """Half-precision scales as bytes: mostly usual ones, and some random patterns (subnormals, infinities, NaN)."""
    usual = (rng.standard_normal(shape) * 0.01).astype(np.float16).view(np.uint16)
    wild = rng.integers(0, 65536, shape).astype(np.uint16)
    return np.where(rng.random(shape) < 0.75, usual, wild)


def random_blocks(rng, name, rows, blocks):
    """Stored rows of random blocks, [rows, bytes]."""
    elements, size = gguf.GGML_QUANT_SIZES[TYPES[name]]
    data = rng.integers(0, 256, (rows, blocks, size), dtype=np.uint8)
    at = {"q4_1": [0, 2], "q5_1": [0, 2], "q2_k": [80, 82], "q3_k": [108], "q4_k": [0, 2], "q5_k": [0, 2], "q6_k": [208],
          "f16": [], "bf16": [], "nvfp4": [], "mxfp4": []}.get(name, [0])
    for offset in at:
        data[:, :, offset:offset + 2] = halves(rng, (rows, blocks, 1)).view(np.uint8)
    if name == "mxfp4":
        scales = np.array([*range(0, 8), *range(112, 136), 200, 250, 251, 252, 253, 254, 127, 127], np.uint8)
        data[:, :, 0] = np.resize(scales, (rows, blocks))
    if name == "nvfp4":
        data[:, :, 0:4] = np.resize(np.arange(255, dtype=np.uint8), (rows, blocks, 4))
    return data.reshape(rows, -1)


def decoded(rng, name):
    rows, blocks = {"f16": (2, 64), "bf16": (2, 64), "mxfp4": (2, 20), "nvfp4": (2, 32)}.get(name, (2, 3))
    data = random_blocks(rng, name, rows, blocks)
    with np.errstate(all="ignore"):
        values = gguf.quants.dequantize(data, TYPES[name]).astype(np.float32)
    return case("gguf.quants.dequantize", data, values.reshape(rows, -1))


def nibbles_apart(data):
    """[rows, n] bytes -> [rows, 2 n] E2M1 values, the low nibble first."""
    return E2M1[np.stack([data & 15, data >> 4], axis=-1).reshape(data.shape[0], -1)]


def modelopt(rng):
    rows, cols, scale = 5, 48, np.float32(0.0123)
    data = rng.integers(0, 256, (rows, cols // 2), dtype=np.uint8)
    scales = rng.integers(0, 256, (rows, cols // 16), dtype=np.uint8)
    values = nibbles_apart(data) * np.repeat(e4m3(scales), 16, axis=1) * scale
    what = "ModelOpt: E2M1 * E4M3 of 16 columns * second scale"
    return case(what, data, values, scales=text(scales), scale=float(scale))


def gpt_oss(rng):
    rows, cols = 3, 96
    data = rng.integers(0, 256, (rows, cols // 2), dtype=np.uint8)
    scales = np.array([[0, 1, 254], [120, 127, 128], [100, 126, 2]], np.uint8)
    power = np.ldexp(np.float32(1), scales.astype(np.int32) - 127)
    with np.errstate(over="ignore"):
        values = nibbles_apart(data) * np.repeat(power, 32, axis=1)
    return case("gpt-oss: E2M1 * 2^(scale - 127) of 32 columns", data, values, scales=text(scales))


def fp8(rng):
    rows, cols, checked = 130, 150, [0, 1, 127, 128, 129]
    data = rng.integers(0, 256, (rows, cols), dtype=np.uint8)
    data[:, 40:] &= 0xbf  # few NaN
    scales = (rng.random((2, 2)) * 0.01).astype("<f4")
    spread = np.repeat(np.repeat(scales, 128, axis=0)[:rows], 128, axis=1)[:, :cols]
    values = (e4m3(data) * spread)[checked]
    whole, scale = np.arange(256, dtype=np.uint8).reshape(2, 128), np.float32(0.37)
    by_row = (rng.random((130, 1)) * 0.01).astype(np.float16)
    rows_values = (e4m3(data) * by_row.astype(np.float32))[checked]
    return [case("E4M3 * scale of 128 x 128", data, values, scales=text(scales), checked=checked),
            case("E4M3 * half scale of the row", data, rows_values, scales=text(by_row), checked=checked,
                 scale_type="f16", scale_rows=1, scale_cols=cols),
            case("E4M3 * scale of the tensor", whole, e4m3(whole) * scale, scale=float(scale))]


def packed(rng, bits, group, scale_type, with_zeros, cols=128, rows=11):
    """Integers in words of 32 bits, by compressed_tensors. Products are in float32, where those of short scales are exact."""
    half = 1 << (bits - 1)
    codes = torch.from_numpy(rng.integers(-half, half, (rows, cols)).astype(np.int8))
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[scale_type]
    scales = torch.from_numpy(rng.standard_normal((rows, cols // group)).astype(np.float32) * 0.01).to(dtype)
    zeros = torch.from_numpy(rng.integers(-half, half, (rows, cols // group)).astype(np.int8)) if with_zeros else None
    args = QuantizationArgs(num_bits=bits, type="int", symmetric=not with_zeros, strategy="group", group_size=group)
    values = dequantize(x_q=codes, scale=scales.float(), zero_point=zeros, args=args, dtype=torch.float32).numpy()
    data = pack_to_int32(codes, bits).numpy().view(np.uint8)
    bits_of_scales = scales.view(torch.int32 if scale_type == "f32" else torch.int16)
    more = {"zeros": text(pack_to_int32(zeros, bits, packed_dim=0).numpy())} if with_zeros else {}
    return case(f"compressed_tensors {bits} bits, groups of {group}, {scale_type} scales", data, values,
                scales=text(bits_of_scales.numpy()), scale_type=scale_type, scale_rows=1, scale_cols=group, **more)


def encoded(rng, name):
    """Usual values, outliers, ties, zeros and values of every magnitude that the format can hold."""
    cols = 32
    rows = [rng.standard_normal(cols) * s for s in (0.02, 1, 300)]
    rows += [rng.integers(-8, 9, cols) * s for s in (0.125, 1.0)] + [rng.integers(-127, 128, cols) / 2.0]
    rows += [np.zeros(cols), -np.zeros(cols), np.where(np.arange(cols) == 9, -1000, rng.standard_normal(cols))]
    rows += [np.where(np.arange(cols) == 3, -127, np.arange(cols) - 15.5)]  # ties of Q8_0
    rows += [np.where(np.arange(cols) == 31, 7.0, 0)] + [rng.standard_normal(cols) * s for s in (1e-5, 1e-8)]
    values = np.array(rows, "<f4")
    with np.errstate(all="ignore"):
        data = gguf.quants.quantize(values, TYPES[name])
    data = np.ascontiguousarray(data).view(np.uint8)
    return case("gguf.quants.quantize", data.reshape(len(rows), -1), values)


def main():
    folder = ROOT / "tests" / "golden" / "formats"
    folder.mkdir(parents=True, exist_ok=True)
    split = {"nvfp4": modelopt, "mxfp4": gpt_oss}
    apart = {"fp8": fp8,
             "int4": lambda rng: [packed(rng, 4, 32, "bf16", False), packed(rng, 4, 128, "bf16", False)],
             "int4f": lambda rng: [packed(rng, 4, 32, "f32", False), packed(rng, 4, 64, "bf16", True),
                                   packed(rng, 4, 128, "f16", True)],
             "int8": lambda rng: [packed(rng, 8, 128, "bf16", False), packed(rng, 8, 32, "f32", True)]}
    for name in [*TYPES, *apart]:
        rng = np.random.default_rng([SEED, *name.encode()])
        decode = apart[name](rng) if name in apart else [decoded(rng, name)]
        if name in split:
            decode.append(split[name](rng))
        encode = [encoded(rng, name)] if name in ("bf16", "f16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "mxfp4") else []
        golden = {"made_by": "python/golden/make_formats.py", "seed": SEED, "numpy": np.__version__,
                  "gguf": importlib.metadata.version("gguf"),
                  **({"compressed_tensors": importlib.metadata.version("compressed-tensors")} if "int" in name else {}),
                  "format": name, "decode": decode, "encode": encode}
        written = json.dumps(golden, indent=1) + "\n"
        (folder / f"{name}.json").write_text(written)
        print(f"{name}: {len(decode)} decode, {len(encode)} encode, {len(written)} bytes")


if __name__ == "__main__":
    main()
