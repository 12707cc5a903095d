"""The smallest PNG writer: 8-bit RGB, no filter, one compressed chunk for a picture.

A film is an animated PNG, which browsers play and other readers take for its first picture.
"""

from __future__ import annotations

import struct
import zlib
from fractions import Fraction

import torch
import torch.nn.functional as F
from torch import Tensor

SIGNATURE = b"\x89PNG\r\n\x1a\n"
FRAMES_PER_SECOND = 8  # of a film, unless another number is asked for
_SIZE = slice(16, 24)  # width and height in the header chunk, which comes first


def encode_png(pixels: Tensor, fps: float = FRAMES_PER_SECOND) -> bytes:
    """Return the PNG file of pixels [H, W, 3] or [T, H, W, 3] uint8; the same pixels give the same bytes."""
    height, width = _checked(pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB, deflate, no interlacing
    frames = [_compressed(frame) for frame in pixels.cpu().reshape(-1, height, width, 3)]
    data = [(b"IDAT", frames[0])] if pixels.ndim == 3 else _film(frames, width, height, fps)
    chunks = [(b"IHDR", header), *data, (b"IEND", b"")]
    return SIGNATURE + b"".join(_chunk(kind, data) for kind, data in chunks)


def _compressed(frame: Tensor) -> bytes:
    """Return the rows of a picture [H, W, 3], each behind the number of its filter, which is none."""
    return zlib.compress(F.pad(frame.flatten(1), (1, 0)).numpy().tobytes(), 6)


def _film(frames: list[bytes], width: int, height: int, fps: float) -> list[tuple[bytes, bytes]]:
    """Return the chunks that show one frame after the other, for ever; all but the first are numbered with theirs."""
    rate = Fraction(fps).limit_denominator(1000)
    chunks, number = [(b"acTL", struct.pack(">II", len(frames), 0))], 0
    for frame in frames:
        control = struct.pack(">IIIIIHHBB", number, width, height, 0, 0, rate.denominator, rate.numerator, 0, 0)
        is_first = number == 0
        shown = (b"IDAT", frame) if is_first else (b"fdAT", struct.pack(">I", number + 1) + frame)
        chunks += [(b"fcTL", control), shown]
        number += 1 if is_first else 2
    return chunks


def png_size(png: bytes) -> tuple[int, int]:
    """Return width and height of a PNG file."""
    width, height = struct.unpack(">II", png[_SIZE])
    return width, height


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _checked(pixels: Tensor) -> tuple[int, int]:
    shape = tuple(pixels.shape)
    if pixels.dtype != torch.uint8 or len(shape) not in (3, 4) or shape[-1] != 3 or 0 in shape:
        raise ValueError(f"a picture is [H, W, 3] uint8, not {list(shape)} {pixels.dtype} (a film: [T, H, W, 3])")
    return shape[-3], shape[-2]
