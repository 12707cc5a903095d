import numpy as np
import pytest
import torch

from rl_lab.tracking.bits import Windows, mixed, rows_of


def bytes_of(tensor):
    return rows_of(tensor).tobytes()


def test_small_rows_are_their_bytes():
    x = torch.tensor([[1.5, -0.0], [float("nan"), 2.0]])
    assert bytes_of(x) == x.numpy().tobytes()
    assert rows_of(x).shape == (2, 8)
    flags = torch.tensor([[True, False, True], [False, False, True]])
    assert bytes_of(flags) == b"\x01\x00\x01\x00\x00\x01"
    assert bytes_of(torch.tensor([7, 8])) == (7).to_bytes(8, "little") + (8).to_bytes(8, "little")
    assert bytes_of(torch.ones(2, 1, dtype=torch.bfloat16)) == b"\x80\x3f" * 2
    turned = torch.arange(6, dtype=torch.int32).reshape(3, 2).T  # not contiguous
    assert bytes_of(turned) == np.array([0, 2, 4, 1, 3, 5], np.int32).tobytes()


def test_mixed_numbers_by_hand():
    words = torch.tensor([[1, 2, -3], [4, 0, 2**31 - 1]], dtype=torch.int32)
    weights = [(2 * place * 0x9E3779B1 + 1) % 2**32 for place in (1, 2, 3)]
    expected = [sum(word * weight for word, weight in zip(row, weights, strict=True)) % 2**32 for row in words.tolist()]
    assert [number % 2**32 for number in mixed(words).tolist()] == expected


@pytest.mark.parametrize(("dtype", "width"), [(torch.float32, 3000), (torch.uint8, 12_288), (torch.uint8, 9_999)])
def test_every_bit_of_a_large_row_counts(dtype, width):
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 255, (2, width), generator=generator).to(dtype)
    before = bytes_of(x)
    assert len(before) == 2 * 4
    assert mixed(x.view(torch.int32 if dtype is torch.float32 else dtype)).numpy().tobytes() == before
    bits = x.numel() * x.element_size() * 8
    for bit in range(0, bits, bits // 97):
        changed = x.clone()
        changed.view(-1).view(torch.uint8)[bit // 8] ^= 1 << bit % 8
        row = 0 if bit < bits // 2 else 1
        after = bytes_of(changed)
        assert [after[:4] != before[:4], after[4:] != before[4:]] == [row == 0, row == 1], bit


def test_words_that_change_places_count():
    x = torch.arange(2000, dtype=torch.float32).reshape(1, -1)
    swapped = x.clone()
    swapped[0, [3, 1700]] = x[0, [1700, 3]]
    assert bytes_of(swapped) != bytes_of(x)


def number_of(values):
    """The mixed number of float32 values, in whole numbers of Python."""
    words = np.asarray(values, np.float32).view(np.uint32).tolist()
    weights = [(2 * place * 0x9E3779B1 + 1) % 2**32 for place in range(1, len(words) + 1)]
    return sum(word * weight for word, weight in zip(words, weights, strict=True)) % 2**32


def shown(windows, turn):
    (number,) = windows.turn(turn).tolist()
    return number % 2**32


def test_windows_show_everything_in_turn():
    tensors = [torch.randn(3, 4), torch.randn(()), torch.randn(5), torch.randn(2, 2)]
    whole = np.concatenate([tensor.numpy().reshape(-1) for tensor in tensors])  # 22 numbers
    windows = Windows(tensors, 8)
    expected = [number_of(whole[start : start + 8]) for start in (0, 8, 16)]
    assert [shown(windows, turn) for turn in range(3)] == expected
    assert shown(windows, 7) == expected[1]
    assert shown(Windows(tensors, 100), 5) == number_of(whole)
    bits = [torch.nn.Parameter(tensor.view(torch.int32), requires_grad=False) for tensor in tensors]
    assert [shown(Windows(bits, 8), turn) for turn in range(3)] == expected  # as tensors of any other kind, or on a GPU
    assert [shown(Windows([*tensors[:2], *bits[2:]], 8), turn) for turn in range(3)] == expected


def test_windows_see_what_changes():
    weight = torch.nn.Parameter(torch.zeros(4))
    windows = Windows([weight], 4)
    with torch.no_grad():
        weight[1] = 1.0
    assert shown(windows, 0) == number_of([0, 1, 0, 0])
    weight.data = torch.full((4,), 2.0)
    assert shown(windows, 0) == number_of([2, 2, 2, 2])
    assert shown(Windows([], 4), 3) == shown(Windows([torch.zeros(0)], 4), 3) == 0
