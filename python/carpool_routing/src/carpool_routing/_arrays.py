"""Where the numbers of an array lie: numpy arrays, torch tensors and anything else with DLPack, on the CPU, not copied.

A View holds address, type, shape and the distance of rows in elements. torch is not imported here; its tensors are known by their
methods.
"""
from __future__ import annotations

import ctypes
from typing import Any, NamedTuple, Sequence

import numpy as np


class View(NamedTuple):
    address: int
    dtype: str  # "float32", "bfloat16", ...
    shape: tuple[int, ...]
    stride: int  # elements from row to row; 0 where there is no second row
    writable: bool
    keep: Any  # what owns the memory


NOTHING = View(0, "", (), 0, False, None)  # an argument that is left out: a null pointer


class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("index", ctypes.c_int32)]


class _Type(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):  # DLTensor, the first member of DLManagedTensor
    _fields_ = [("data", ctypes.c_void_p), ("device", _Device), ("ndim", ctypes.c_int32), ("dtype", _Type),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


_CPU = 1
_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "bool"}
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def is_torch(array: Any) -> bool:
    return type(array).__module__.partition(".")[0] == "torch" and hasattr(array, "data_ptr")


_NAMES = {np.dtype(name): name for name in ("float32", "float16", "int32", "uint8")}  # dtype.name takes a microsecond


def _unusual(dtype: Any) -> str:
    """The name of a type without one in _NAMES; numpy's own says nothing of the order of bytes."""
    return dtype.name if dtype.isnative else f"{dtype.name} with its bytes in the other order"


_byte_at, _address_of = ctypes.c_char.from_buffer, ctypes.addressof


def _of_numpy(array: np.ndarray, name: str) -> View:
    shape = array.shape
    dtype = _NAMES.get(array.dtype) or _unusual(array.dtype)
    try:  # takes a fifth of the time, of arrays that can be written, lie row after row and are not empty
        return View(_address_of(_byte_at(array)), dtype, shape, shape[-1] if len(shape) == 2 else 0, True, array)
    except (TypeError, ValueError, BufferError):
        pass
    address, read_only = array.__array_interface__["data"]
    if array.flags.c_contiguous:
        stride = shape[-1] if len(shape) == 2 else 0
    elif any(step % array.itemsize for step in array.strides):
        raise ValueError(f"{name}: its elements do not lie at multiples of their size")
    else:
        stride = _row_stride(name, shape, [step // array.itemsize for step in array.strides])
    return View(address, dtype, shape, stride, not read_only, array)


def _row_stride(name: str, shape: Sequence[int], strides: Sequence[int]) -> int:
    """The distance of rows; the elements of a row must lie side by side."""
    if 0 in shape or not shape:
        return 0
    if shape[-1] > 1 and strides[-1] != 1:
        raise ValueError(f"{name}: the elements of a row must lie side by side")
    return strides[0] if len(shape) == 2 and shape[0] > 1 else 0


def _of_torch(tensor: Any, name: str) -> View:
    if tensor.device.type != "cpu":
        raise TypeError(f"{name} is on {tensor.device}; Router works on the CPU, TensorRouter on any device")
    shape = tuple(tensor.shape)
    stride = _row_stride(name, shape, tensor.stride())
    return View(tensor.data_ptr(), str(tensor.dtype).rpartition(".")[2], shape, stride, True, tensor)


def _of_dlpack(array: Any, name: str) -> View:
    if array.__dlpack_device__()[0] != _CPU:
        raise TypeError(f"{name} is not on the CPU; TensorRouter works on any device")
    capsule = array.__dlpack__()
    tensor = ctypes.cast(_pointer_of(capsule, b"dltensor"), ctypes.POINTER(_Tensor)).contents
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    dense = not tensor.strides  # DLPack's way to say row after row
    stride = (shape[-1] if len(shape) == 2 else 0) if dense else _row_stride(name, shape, tensor.strides[: len(shape)])
    kind = _CODES.get(tensor.dtype.code, "unknown")
    dtype = kind if kind == "bool" else f"{kind}{tensor.dtype.bits}"
    if tensor.dtype.lanes != 1:
        dtype += f" in vectors of {tensor.dtype.lanes}"
    return View((tensor.data or 0) + tensor.byte_offset, dtype, shape, stride, True, capsule)


def _fits(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    if len(shape) != len(wanted):
        return False
    for n, want in zip(shape, wanted):
        if want is not None and n != want:
            return False
    return True


def view(array: Any, name: str, dtypes: tuple[str, ...], shape: tuple[int | None, ...]) -> View:
    """The memory of `array`, whose type must be one of `dtypes` and whose shape must match (None: any size).

    Raises TypeError or ValueError with one sentence that names the array.
    """
    if isinstance(array, np.ndarray):
        v = _of_numpy(array, name)
    elif is_torch(array):
        v = _of_torch(array, name)
    elif hasattr(array, "__dlpack__"):
        v = _of_dlpack(array, name)
    else:
        raise TypeError(f"{name} is a {type(array).__name__}, not a numpy array, torch tensor or DLPack object")
    if v.dtype not in dtypes:
        raise TypeError(f"{name} is {v.dtype}, it must be {' or '.join(dtypes)}")
    if not _fits(v.shape, shape):
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        raise ValueError(f"{name} has the shape {list(v.shape)}, it must be [{wanted}]")
    return v
