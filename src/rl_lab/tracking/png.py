"""The smallest PNG writer: 8-bit RGB, no filter, one compressed chunk."""

from __future__ import annotations

import struct
import zlib

import torch
from torch import Tensor

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_SIZE = slice(16, 24)  # width and height in the header chunk, which comes first


def encode_png(pixels: Tensor) -> bytes:
    """Return the PNG file of pixels [H, W, 3] uint8; the same pixels give the same bytes."""
    height, width = _checked(pixels)
    rows = pixels.cpu().contiguous().numpy().tobytes()
    stride = 3 * width
    filtered = b"".join(b"\x00" + rows[start : start + stride] for start in range(0, height * stride, stride))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB, deflate, no interlacing
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(filtered, 6)), (b"IEND", b""))
    return SIGNATURE + b"".join(_chunk(kind, data) for kind, data in chunks)


def png_size(png: bytes) -> tuple[int, int]:
    """Return width and height of a PNG file."""
    width, height = struct.unpack(">II", png[_SIZE])
    return width, height


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _checked(pixels: Tensor) -> tuple[int, int]:
    shape = tuple(pixels.shape)
    if pixels.dtype != torch.uint8 or len(shape) != 3 or shape[2] != 3 or 0 in shape:
        raise ValueError(f"a picture is [H, W, 3] uint8, not {list(shape)} {pixels.dtype}")
    return shape[0], shape[1]
