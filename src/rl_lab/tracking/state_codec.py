"""State trees to tensors and JSON, and back: nothing in between that could execute anything.

Scalars are written as themselves, everything else as a tagged list: ["dict", {...}], ["list", [...]], ["tuple", [...]],
["int", hex], ["float", text], ["tensor", name], ["bytes", name, dtype, shape] (a tensor of a type that safetensors does
not know), ["array", name, dtype, shape] (NumPy) and ["segment", key, dtype, shape] (its bytes are a file of their own).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl_lab.core.buffer import Segment

Tensors = dict[str, Tensor]
Segments = dict[str, Segment]  # by key
SEGMENT_KEY = re.compile(r"[0-9a-f]{16,64}")  # part of a file name: nothing that could lead elsewhere
NATIVE_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_EXACT_INT_BITS = 63  # larger ones as hex: other JSON readers would round them
_ARRAY_DTYPE = re.compile(r"[<>|=][biufcSUmM]\d+(\[\d*\w+\])?")  # plain data, never objects
_RESERVED_NAME = "__metadata__"  # of the safetensors header


class _Leaves(NamedTuple):
    """What is taken out of a tree while it is written down."""

    tensors: Tensors
    segments: Segments | None


def encode(tree: Any, segments: Segments | None = None) -> tuple[Tensors, Any]:
    """Return (named tensors on the CPU, what JSON can hold). Tensors that share memory are written once each.

    Segments are put into `segments` as they are, wherever they lie; without it a tree must hold none.
    """
    leaves = _Leaves({}, segments)
    return leaves.tensors, _encode(tree, "", leaves)


def decode(
    structure: Any, tensors: Mapping[str, Tensor], segments: Mapping[str, Segment] = MappingProxyType({})
) -> Any:
    """Return the tree; `segments` hold their raw bytes.

    Raises ValueError, KeyError or TypeError for what `encode` cannot have written.
    """
    if structure is None or isinstance(structure, bool | int | float | str):
        return structure
    tag, value, *rest = structure
    if tag == "dict":
        return {key: decode(part, tensors, segments) for key, part in value.items()}
    if tag == "list":
        return [decode(part, tensors, segments) for part in value]
    if tag == "tuple":
        return tuple(decode(part, tensors, segments) for part in value)
    if tag == "segment":
        raw = segments[value]
        return Segment(raw.key, _decode_bytes(raw.tensor, *rest))
    if tag == "tensor":
        return tensors[value]
    if tag in ("bytes", "array"):
        return (_decode_bytes if tag == "bytes" else _decode_array)(tensors[value], *rest)
    if tag in ("int", "float"):
        return int(value, 16) if tag == "int" else float(value)
    raise ValueError(f"unknown tag {tag!r}")


def _encode(tree: Any, path: str, leaves: _Leaves) -> Any:
    kind = type(tree)
    if tree is None or kind in (bool, str):
        return tree
    if kind is int:
        return tree if tree.bit_length() <= _EXACT_INT_BITS else ["int", hex(tree)]
    if kind is float:
        return tree if math.isfinite(tree) else ["float", repr(tree)]
    if isinstance(tree, Mapping):
        return ["dict", {_key(key, path): _encode(part, _join(path, key), leaves) for key, part in tree.items()}]
    if kind in (list, tuple):
        return [kind.__name__, [_encode(part, _join(path, i), leaves) for i, part in enumerate(tree)]]
    if isinstance(tree, Tensor):
        return _encode_tensor(tree, path, leaves.tensors)
    if isinstance(tree, np.ndarray):
        return _encode_array(tree, path, leaves.tensors)
    if kind is Segment:
        return _encode_segment(tree, path, leaves.segments)
    raise TypeError(f"state {path or 'root'!r} is a {kind.__module__}.{kind.__qualname__}; {_ALLOWED}")


_ALLOWED = "a checkpoint holds dict, list, tuple, tensor, Segment, numpy array, int, float, str, bool and None only"


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _key(key: object, path: str) -> str:
    if type(key) is not str:
        raise TypeError(f"state {path or 'root'!r} has the key {key!r} of type {type(key).__name__}; keys must be str")
    return key


def _encode_tensor(tensor: Tensor, path: str, tensors: Tensors) -> list[Any]:
    _require_dense(tensor, path)
    data = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if data.dtype in NATIVE_DTYPES:
        return ["tensor", _store(data, path, tensors)]
    raw = data.reshape(-1).view(torch.uint8)
    return ["bytes", _store(raw, path, tensors), _dtype_name(data), list(data.shape)]


def _encode_segment(segment: Segment, path: str, segments: Segments | None) -> list[Any]:
    if segments is None:
        raise TypeError(f"state {path or 'root'!r} is a Segment; only a checkpoint keeps files for those")
    if not SEGMENT_KEY.fullmatch(segment.key):
        raise TypeError(f"state {path or 'root'!r} has the segment key {segment.key!r}; expected the hex of a uuid4")
    if segment.key in segments:
        raise ValueError(f"state {path or 'root'!r} has the segment key {segment.key!r} of another part of the state")
    _require_dense(segment.tensor, path)
    segments[segment.key] = segment
    return ["segment", segment.key, _dtype_name(segment.tensor), list(segment.tensor.shape)]


def _require_dense(tensor: Tensor, path: str) -> None:
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        raise TypeError(f"state {path or 'root'!r} is a {tensor.layout} tensor on {tensor.device}; only dense ones fit")


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _encode_array(array: np.ndarray, path: str, tensors: Tensors) -> list[Any]:
    if not _ARRAY_DTYPE.fullmatch(array.dtype.str) or array.dtype.itemsize == 0:
        raise TypeError(f"state {path or 'root'!r} is a numpy array of {array.dtype}; only plain numbers and text fit")
    raw = torch.from_numpy(np.frombuffer(bytearray(array.tobytes()), np.uint8)) if array.size else _NO_BYTES
    return ["array", _store(raw, path, tensors), array.dtype.str, list(array.shape)]


_NO_BYTES = torch.empty(0, dtype=torch.uint8)


def _store(tensor: Tensor, path: str, tensors: Tensors) -> str:
    # Keys may hold dots, so that two places can have the same dotted path; lone surrogates are no valid file content.
    name = stem = (path or "root").encode("utf-8", "backslashreplace").decode()
    number = 1
    while name in tensors or name == _RESERVED_NAME:
        number += 1
        name = f"{stem}#{number}"
    tensors[name] = tensor
    return name


def _decode_bytes(raw: Tensor, dtype_name: str, shape: list[int]) -> Tensor:
    dtype = vars(torch).get(dtype_name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"unknown tensor type {dtype_name!r}")
    return raw.view(dtype).reshape(shape)


def _decode_array(raw: Tensor, dtype: str, shape: list[int]) -> np.ndarray:
    if not _ARRAY_DTYPE.fullmatch(dtype):
        raise ValueError(f"numpy type {dtype!r} is not plain data")
    array = np.ndarray(tuple(shape), np.dtype(dtype), buffer=raw.numpy())
    if array.nbytes != raw.numel():
        raise ValueError(f"{raw.numel()} bytes for an array of {array.nbytes}")
    return array.copy()
