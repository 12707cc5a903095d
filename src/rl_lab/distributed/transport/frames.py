"""Frames: how a record lies in a file and on the wire. One parser reads both, and it trusts nothing.

A frame is a checksum (CRC-32 of all that follows), the payload's length, the record's number and the payload.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

_CHECKSUM = struct.Struct("<I")
_REST = struct.Struct("<IQ")  # length, number
HEADER_BYTES = _CHECKSUM.size + _REST.size


class Frame(NamedTuple):
    """A record with its number."""

    number: int
    payload: memoryview


class FrameError(ValueError):
    """Bytes that are no frame."""


class Split(NamedTuple):
    """What the front of some bytes held."""

    frames: list[Frame]
    num_bytes: int  # of these frames
    fault: str  # what is wrong with the bytes after them; "" when they are whole, or may become so


def frame(number: int, payload: bytes | memoryview) -> bytes:
    """Return a record as bytes."""
    rest = _REST.pack(len(payload), number)
    return b"".join((_CHECKSUM.pack(zlib.crc32(payload, zlib.crc32(rest))), rest, payload))


def payload_length(data: bytes | memoryview) -> int:
    """Return how many bytes the payload of the frame at the front of `data` has, if its header is there."""
    return int(_REST.unpack_from(data, _CHECKSUM.size)[0]) if len(data) >= HEADER_BYTES else 0


def split(data: bytes | memoryview, max_payload: int) -> Split:
    """Return the whole frames at the front of `data`, up to the first that is wrong or cut off.

    The length is compared with `max_payload` before anything of that size is touched; payloads are views.
    """
    view, at = memoryview(data), 0
    frames: list[Frame] = []
    end = len(view)
    while at + HEADER_BYTES <= end:
        length, number = _REST.unpack_from(view, at + _CHECKSUM.size)
        if length > max_payload:
            return Split(frames, at, f"a frame says it has {length} bytes, at most {max_payload} are allowed")
        stop = at + HEADER_BYTES + length
        if stop > end:
            break
        if zlib.crc32(view[at + _CHECKSUM.size : stop]) != _CHECKSUM.unpack_from(view, at)[0]:
            return Split(frames, at, "a frame's checksum is wrong")
        frames.append(Frame(number, view[at + HEADER_BYTES : stop]))
        at = stop
    return Split(frames, at, "")


def split_all(data: bytes | memoryview, payload_bytes: int) -> Sequence[Frame]:
    """Return the frames that `data` consists of, each with a payload of exactly this size; raises FrameError."""
    frames, num_bytes, fault = split(data, payload_bytes)
    if fault or num_bytes != len(data):
        raise FrameError(fault or "the last frame is cut off")
    if any(len(payload) != payload_bytes for _, payload in frames):
        raise FrameError(f"a frame has not the {payload_bytes} bytes of the schema")
    return frames
