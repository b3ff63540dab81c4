"""Golden files of the safetensors reader: what the safetensors package writes, and what it refuses.

Writes to tests/golden/safetensors/:
  all_dtypes.safetensors  one tensor of every dtype that torch can store, a scalar, an empty tensor, odd names
  all_dtypes.json         per tensor: dtype, shape, bytes in hex, number of NaN and infinities and the first one
  verdicts.json           small files (hex), and whether the package accepts them; src/io/safetensors_test.cc must
                          agree, except where it is stricter on purpose and says so
Deterministic: the same versions give the same bytes. Usage: make_safetensors.py [output folder]
"""
import json
import pathlib
import struct
import sys

import numpy
import safetensors
import safetensors.torch
import torch

FLOATS = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
          "float8_e5m2fnuz", "float8_e8m0fnu"]
INTEGERS = ["int64", "uint64", "int32", "uint32", "int16", "uint16", "int8", "uint8"]
WIDTH = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


def random_bytes(n, seed):
    return numpy.random.default_rng(seed).integers(0, 256, n, dtype=numpy.uint8)


def tensors():
    """Name -> tensor. Floats are random bit patterns, so NaN and infinities occur; 8-bit floats hold all 256."""
    out = {}
    for seed, name in enumerate(FLOATS):
        width = WIDTH.get(name, 1)
        if width == 1:
            raw, shape = numpy.arange(256, dtype=numpy.uint8), (16, 16)
        else:
            raw, shape = random_bytes(6 * width, seed), (2, 3)
            high = width - 1  # one infinity in the fifth element, little-endian
            special = torch.tensor([float("-inf")], dtype=getattr(torch, name)).view(torch.uint8).numpy()
            raw[4 * width:4 * width + high + 1] = special
        out[f"float.{name}"] = torch.from_numpy(raw).view(getattr(torch, name)).reshape(shape)
    for seed, name in enumerate(INTEGERS):
        dtype = getattr(torch, name)
        raw = torch.from_numpy(random_bytes(12 * dtype.itemsize, 100 + seed))
        out[f"integer.{name}"] = raw.view(dtype).reshape(3, 2, 2)
    out["bool"] = torch.tensor([True, False, True])
    out["packed.float4"] = torch.from_numpy(random_bytes(8, 7)).view(torch.float4_e2m1fn_x2).reshape(2, 4)
    out["complex"] = torch.tensor([1 + 2j, -3 - 4j], dtype=torch.complex64)
    out["scalar"] = torch.tensor(2.5)
    out["empty"] = torch.zeros(0, 3)
    out['odd "name"\n\u00e9\\'] = torch.tensor([7], dtype=torch.int32)
    return out


def non_finite(name, tensor):
    """(count, first index) as torch sees it; only the float types have any."""
    if not name.startswith("float."):
        return 0, -1
    bad = ~torch.isfinite(tensor.to(torch.float64)).flatten()
    where = bad.nonzero()
    return int(bad.sum()), int(where[0, 0]) if len(where) else -1


def contents(path, originals):
    """What the reference reader says is in `path`."""
    rows = []
    for name, info in safetensors.deserialize(path.read_bytes()):
        count, first = non_finite(name, originals[name])
        rows.append({"name": name, "dtype": info["dtype"], "shape": info["shape"], "hex": bytes(info["data"]).hex(),
                     "non_finite": count, "first_non_finite": first})
    return sorted(rows, key=lambda row: row["name"])


def file_bytes(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else header.encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(name="w", dtype="U8", shape="[2]", offsets="[0,2]"):
    return f'"{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}'


def wrap(*entries):
    return "{" + ",".join(entries) + "}"


def cases():
    """Name -> bytes of a file. The names are the keys of the exceptions in the C++ test."""
    good, two = wrap(entry()), b"ab"
    meta = '"__metadata__":'
    yield "good", file_bytes(good, two)
    yield "no bytes at all", b""
    yield "length field cut", b"\x02\0\0\0\0\0\0"
    yield "header length 0", file_bytes("", two)
    yield "header length beyond the file", file_bytes(good, two, 1000)
    yield "header length over the limit", file_bytes(good, two, 100_000_001)
    yield "header length 2^64-1", file_bytes(good, two, 2**64 - 1)
    yield "no tensors", file_bytes("{}")
    yield "no tensors but data", file_bytes("{}", two)
    yield "not an object", file_bytes("[]")
    yield "not JSON", file_bytes("{x}")
    yield "not UTF-8", file_bytes(good.encode().replace(b'"w"', b'"\xff"'), two)
    yield "leading space", file_bytes(" " + good, two)
    yield "trailing spaces", file_bytes(good + "    ", two)
    yield "trailing newline", file_bytes(good + "\n", two)
    yield "trailing zero byte", file_bytes(good + "\0", two)
    yield "trailing value", file_bytes(good + "{}", two)
    yield "inner white space", file_bytes(good.replace(":", " :\n\t"), two)
    yield "metadata of strings", file_bytes(wrap(meta + '{"format":"pt","a":"b"}', entry()), two)
    yield "metadata last", file_bytes(wrap(entry(), meta + "{}"), two)
    yield "metadata null", file_bytes(wrap(meta + "null", entry()), two)
    yield "metadata value a number", file_bytes(wrap(meta + '{"a":1}', entry()), two)
    yield "metadata value an object", file_bytes(wrap(meta + '{"a":{"b":"c"}}', entry()), two)
    yield "metadata a string", file_bytes(wrap(meta + '"x"', entry()), two)
    yield "metadata twice", file_bytes(wrap(meta + "{}", meta + "{}", entry()), two)
    yield "metadata key twice", file_bytes(wrap(meta + '{"a":"b","a":"c"}', entry()), two)
    yield "tensor named as the metadata", file_bytes(wrap(entry("__metadata__")), two)
    yield "overlap", file_bytes(wrap(entry("a"), entry("b", offsets="[1,3]")), b"abc")
    yield "same range twice", file_bytes(wrap(entry("a"), entry("b")), two)
    yield "hole", file_bytes(wrap(entry("a"), entry("b", offsets="[3,5]")), b"abcde")
    yield "hole at the start", file_bytes(wrap(entry(offsets="[1,3]")), b"abc")
    yield "data left over", file_bytes(good, b"abc")
    yield "data cut", file_bytes(good, b"a")
    yield "begin after end", file_bytes(wrap(entry(offsets="[2,0]")), two)
    yield "listed out of order", file_bytes(wrap(entry("b", offsets="[2,4]"), entry("a")), b"abcd")
    yield "empty tensors between", file_bytes(
        wrap(entry("a"), entry("e", shape="[0]", offsets="[2,2]"), entry("b", offsets="[2,4]")), b"abcd")
    yield "shape too small", file_bytes(wrap(entry(shape="[1]")), two)
    yield "shape too large", file_bytes(wrap(entry(shape="[3]")), two)
    yield "scalar", file_bytes(wrap(entry(shape="[]", offsets="[0,1]")), b"a")
    yield "product wraps to the size", file_bytes(wrap(entry(shape="[4294967296,4294967296,2]")), two)
    yield "product wraps to zero", file_bytes(wrap(entry(shape="[4294967296,4294967296]", offsets="[0,0]")))
    yield "bytes wrap", file_bytes(wrap(entry(dtype="F64", shape="[2305843009213693953]", offsets="[0,8]")), b"a" * 8)
    yield "huge entries around a zero", file_bytes(wrap(entry(shape="[9223372036854775807,2,0]", offsets="[0,0]")))
    yield "wrap before a zero", file_bytes(wrap(entry(shape="[9223372036854775807,4,0]", offsets="[0,0]")))
    yield "shape entry over int64", file_bytes(wrap(entry(shape="[0,9223372036854775808]", offsets="[0,0]")))
    yield "negative shape", file_bytes(wrap(entry(shape="[-2]")), two)
    yield "minus zero in the shape", file_bytes(wrap(entry(shape="[-0]", offsets="[0,0]")))
    yield "fraction in the shape", file_bytes(wrap(entry(shape="[2.0]")), two)
    yield "exponent in the shape", file_bytes(wrap(entry(shape="[2e0]")), two)
    yield "string in the shape", file_bytes(wrap(entry(shape='["2"]')), two)
    yield "shape a number", file_bytes(wrap(entry(shape="2")), two)
    yield "nested shape", file_bytes(wrap(entry(shape="[[2]]")), two)
    yield "one offset", file_bytes(wrap(entry(offsets="[0]")), two)
    yield "three offsets", file_bytes(wrap(entry(offsets="[0,2,2]")), two)
    yield "negative offset", file_bytes(wrap(entry(offsets="[-1,1]")), two)
    yield "offsets at 2^64-1", file_bytes(wrap(entry(offsets="[18446744073709551613,18446744073709551615]")), two)
    yield "offset over 2^64", file_bytes(wrap(entry(offsets="[0,18446744073709551618]")), two)
    yield "sub-byte not whole", file_bytes(wrap(entry(dtype="F4", shape="[3]")), two)
    yield "sub-byte whole", file_bytes(wrap(entry(dtype="F4", shape="[4]")), two)
    yield "six bits whole", file_bytes(wrap(entry(dtype="F6_E2M3", shape="[4]", offsets="[0,3]")), b"abc")
    yield "unknown dtype", file_bytes(wrap(entry(dtype="Q4")), two)
    yield "lower case dtype", file_bytes(wrap(entry(dtype="u8")), two)
    yield "dtype a number", file_bytes(good.replace('"U8"', "8"), two)
    yield "dtype missing", file_bytes(good.replace('"dtype":"U8",', ""), two)
    yield "shape missing", file_bytes(good.replace('"shape":[2],', ""), two)
    yield "offsets missing", file_bytes(good.replace(',"data_offsets":[0,2]', ""), two)
    yield "unknown field", file_bytes(good.replace('"dtype"', '"extra":1,"dtype"'), two)
    yield "field twice", file_bytes(good.replace('"dtype"', '"dtype":"U8","dtype"'), two)
    yield "tensor an array", file_bytes('{"w":["U8",[2],[0,2]]}', two)
    yield "name twice, other ranges", file_bytes(wrap(entry(), entry(offsets="[2,4]")), b"abcd")
    yield "name twice, same range", file_bytes(wrap(entry(), entry()), two)
    yield "name twice, empty range", file_bytes(wrap(entry(shape="[0]", offsets="[0,0]"), entry()), two)
    yield "name twice, one escaped", file_bytes(wrap(entry(), entry("\\u0077", offsets="[2,4]")), b"abcd")
    yield "name empty", file_bytes(wrap(entry("")), two)
    yield "name with a zero byte", file_bytes(wrap(entry("a\\u0000b")), two)
    yield "name with half a surrogate", file_bytes(wrap(entry("\\ud800")), two)
    yield "trailing comma", file_bytes(good[:-1] + ",}", two)
    yield "comment", file_bytes(good[:-1] + "/**/}", two)
    yield "shape of rank 17", file_bytes(wrap(entry(shape="[" + "1," * 16 + "2]")), two)


def verdict(data):
    try:
        safetensors.deserialize(data)
        return True
    except Exception as error:  # the package has one exception type per layer
        if "SafetensorError" not in type(error).__name__ and not isinstance(error, safetensors.SafetensorError):
            raise
        return False


def main():
    default = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "safetensors"
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    folder.mkdir(parents=True, exist_ok=True)
    made_by = {"maker": "python/golden/make_safetensors.py", "safetensors": safetensors.__version__,
               "torch": torch.__version__.split("+")[0]}
    originals, path = tensors(), folder / "all_dtypes.safetensors"
    path.write_bytes(safetensors.torch.save(originals, {"format": "pt"}))
    golden = {**made_by, "tensors": contents(path, originals)}
    (folder / "all_dtypes.json").write_text(json.dumps(golden, indent=1) + "\n")
    rows = [{"name": name, "hex": data.hex(), "accepted": verdict(data)} for name, data in cases()]
    (folder / "verdicts.json").write_text(json.dumps({**made_by, "files": rows}, indent=1) + "\n")
    print(f"{len(golden['tensors'])} tensors, {len(rows)} verdicts, {sum(r['accepted'] for r in rows)} accepted")


if __name__ == "__main__":
    main()
