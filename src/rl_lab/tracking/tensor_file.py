"""Tensors in files, written as a stream: the hash is of the bytes as they go out, and memory is not doubled."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import safetensors
import torch
from torch import Tensor

from rl_lab.tracking.state_codec import NATIVE_DTYPES

_ALIGNMENT = 8  # bytes; the header is padded to it, so that readers may map the file
BLOCK = 1 << 24  # bytes hashed and written at a time


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> tuple[str, int]:
    """Write contiguous CPU tensors durably as safetensors and return (sha256, size in bytes)."""
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # widest first keeps all aligned
    return write_blocks(path, [_header(names, tensors), *(raw_bytes(tensors[name]) for name in names)])


def write_blocks(path: Path, blocks: Iterable[memoryview]) -> tuple[str, int]:
    """Write bytes one after another durably and return (sha256, size in bytes)."""
    digest, size = hashlib.sha256(), 0
    with open(path, "wb", buffering=0) as file:
        for block in blocks:
            for start in range(0, len(block), BLOCK):
                piece = block[start : start + BLOCK]
                digest.update(piece)
                _write_all(file.fileno(), piece)
            size += len(block)
        os.fsync(file.fileno())
    return digest.hexdigest(), size


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read every tensor into memory of its own. Raises ValueError when this is no safetensors file."""
    try:
        with safetensors.safe_open(path, framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118  (not a dict)
    except safetensors.SafetensorError as error:
        raise ValueError(f"not a safetensors file ({error})") from error


def _header(names: list[str], tensors: Mapping[str, Tensor]) -> memoryview:
    entries, offset = {}, 0
    for name in names:
        tensor = tensors[name]
        end = offset + tensor.numel() * tensor.element_size()
        entries[name] = {
            "dtype": NATIVE_DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return memoryview(len(text).to_bytes(8, "little") + text)


def raw_bytes(tensor: Tensor) -> memoryview:
    """Return the memory of a contiguous CPU tensor."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _write_all(descriptor: int, data: memoryview) -> None:
    while len(data):
        data = data[os.write(descriptor, data) :]
