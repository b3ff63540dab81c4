"""libcarpool_routing.so as ctypes sees it: structs and prototypes of include/carpool/routing.h, and nothing else.

The library lies beside this file in an installed wheel; CARPOOL_ROUTING_LIBRARY names another one.
"""
from __future__ import annotations

import ctypes
import os
import pathlib
import struct
from ctypes import POINTER, c_char, c_char_p, c_float, c_int32, c_int64, c_size_t, c_void_p

ABI = 1
MOST_REASONS = 16


class Error(ctypes.Structure):
    _fields_ = [("status", c_int32), ("text", c_char * 508)]


class ModelStruct(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("n_experts", c_int32), ("top_k", c_int32), ("scoring", c_int32),
                ("renormalize", c_int32), ("n_group", c_int32), ("topk_group", c_int32), ("group_score", c_int32),
                ("routed_scaling_factor", c_float), ("n_shared", c_int32), ("shared_weight", c_float),
                ("filler", c_int32)]


# carpool_routing_batch as bytes, which are made faster than a ctypes.Structure: size, rows, logits_type, logits,
# logits_stride, bias, row_flags, row_groups, ids, weights, ids_stride, weights_stride, columns, in_place,
# layer, reasons.
BATCH = struct.Struct("@NiiPqPPPPPqqiiiP")


class Counters(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("calls", c_int64), ("distinct_experts", c_int64), ("distinct_plain", c_int64),
                ("slots", c_int64), ("rerouted_rows", c_int64), ("underfilled_rows", c_int64),
                ("plain_rows", c_int64 * MOST_REASONS), ("plain_calls", c_int64 * MOST_REASONS)]


def _load() -> ctypes.CDLL:
    here = pathlib.Path(__file__).parent / "libcarpool_routing.so"
    path = os.environ.get("CARPOOL_ROUTING_LIBRARY") or str(here)
    try:
        lib = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"cannot load carpool's routing library: {error}; install the wheel of carpool-routing, or "
                          "set CARPOOL_ROUTING_LIBRARY to a libcarpool_routing.so") from error
    prototypes = [
        ("abi", c_int32, []), ("version", c_char_p, []),
        ("policy_name", c_char_p, [c_int32]), ("policy_summary", c_char_p, [c_int32]),
        ("reason_name", c_char_p, [c_int32]),
        ("model_init", None, [POINTER(ModelStruct), c_size_t]),
        ("create", c_int32, [c_char_p, POINTER(ModelStruct), POINTER(c_void_p), POINTER(Error)]),
        ("destroy", None, [c_void_p]), ("spec", c_char_p, [c_void_p]), ("columns", c_int32, [c_void_p]),
        ("route", c_int32, [c_void_p, c_char_p, POINTER(Error)]),
        ("get_counters", c_int32, [c_void_p, POINTER(Counters), POINTER(Error)]), ("reset_counters", None, [c_void_p]),
    ]
    for name, result, arguments in prototypes:
        function = getattr(lib, "carpool_routing_" + name)
        function.restype, function.argtypes = result, arguments
    if lib.carpool_routing_abi() != ABI:
        raise ImportError(f"{path} has ABI {lib.carpool_routing_abi()}, this package needs {ABI}")
    return lib


lib = _load()
