import random
import struct
import zlib

import pytest

from rl_lab.distributed.transport.frames import FrameError, frame, split, split_all

RECORDS = [(7, b"first"), (8, b""), (9, bytes(range(64)))]
DATA = b"".join(frame(number, payload) for number, payload in RECORDS)


def content(frames):
    return [(number, bytes(payload)) for number, payload in frames]


def test_a_frame_is_a_checksum_a_length_a_number_and_the_payload():
    rest = struct.pack("<IQ", 5, 7) + b"first"
    assert frame(7, b"first") == struct.pack("<I", zlib.crc32(rest)) + rest
    assert content(split(DATA, 64).frames) == RECORDS


@pytest.mark.parametrize("end", range(len(DATA)))
def test_cut_anywhere_the_whole_frames_before_are_found(end):
    whole = [record for record, stop in zip(RECORDS, (21, 37, 117), strict=True) if stop <= end]
    found = split(DATA[:end], 64)
    assert content(found.frames) == whole
    assert not found.fault


def test_any_flipped_bit_is_noticed():
    for bit in range(8 * len(DATA)):
        broken = bytearray(DATA)
        broken[bit // 8] ^= 1 << bit % 8
        found = split(broken, 64)
        assert content(found.frames) == RECORDS[: len(found.frames)]
        assert len(found.frames) < len(RECORDS)


def test_a_length_is_refused_before_anything_of_that_size_is_touched():
    rest = struct.pack("<IQ", 2**32 - 1, 0)
    found = split(struct.pack("<I", zlib.crc32(rest)) + rest, 64)
    assert found.fault == "a frame says it has 4294967295 bytes, at most 64 are allowed"


def test_frames_of_the_wire_have_exactly_the_size_of_a_step():
    steps = b"".join(frame(number, bytes(8)) for number in range(3))
    assert [number for number, _ in split_all(steps, 8)] == [0, 1, 2]
    for wrong in (steps + b"x", steps[:-1], steps + frame(3, bytes(7)), steps + frame(3, bytes(9))):
        with pytest.raises(FrameError):
            split_all(wrong, 8)


def test_fuzzed_frames_give_a_frame_error_or_untouched_records():
    rng = random.Random(0)
    steps = [(number, rng.randbytes(24)) for number in range(4)]
    whole = b"".join(frame(*record) for record in steps)
    for _ in range(5000):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            kind, at = rng.randrange(4), rng.randrange(len(data))
            if kind == 0:
                data[at] = rng.randrange(256)
            elif kind == 1:
                del data[at : at + rng.randrange(1, 40)]
            elif kind == 2:
                data[at:at] = rng.randbytes(rng.randrange(1, 40))
            else:
                data[at : at + 4] = struct.pack("<I", rng.choice((0, 1, 2**31, 2**32 - 1)))
            data = data or bytearray(b"x")
        try:
            found = content(split_all(data, 24))
        except FrameError:
            continue
        assert all(record in steps for record in found)
