"""The bits of tensors in a form that is quick to hash: bytes where they are few, else one mixed number per row.

A mixed number is a sum of words times odd weights, modulo 2**32: it changes with every single word, and when words
change places. It is computed where the tensor is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_FEW_BYTES = 4096  # of a row; larger ones are mixed sooner than hashed
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the bytes of a number
_ODD = 0x9E3779B1
_MAX_WORDS = 1 << 20  # whose products are there at once


def rows_of(tensor: Tensor) -> npt.NDArray[np.uint8]:
    """Return the rows along the first dimension as bytes [T, B] in the host's memory."""
    count = len(tensor)
    if not tensor.is_cpu or tensor.nbytes > _FEW_BYTES * count:
        tensor = mixed(_words(tensor).reshape(count, -1)).cpu()
    elif tensor.dtype is torch.bfloat16:  # which NumPy does not know
        tensor = _words(tensor)
    return np.ascontiguousarray(tensor.detach().numpy()).reshape(count, -1).view(np.uint8)


def mixed(words: Tensor, first: int = 0) -> Tensor:
    """Return a number for each row [T] of integers [T, K], which stand at places from `first` on."""
    if words.dtype is not torch.int32:
        is_whole = words.shape[1] * words.element_size() % 4 == 0
        words = words.contiguous().view(torch.int32) if is_whole else words.to(torch.int32)
    end = first + words.shape[1]
    weights = _weights(1 << end.bit_length(), words.device)[first:end]
    few = words.split(max(1, _MAX_WORDS // max(1, words.shape[1])))  # products of a large rollout would double it
    return torch.cat([(rows * weights).sum(1, dtype=torch.int32) for rows in few])


class Windows:
    """The numbers of some tensors, of which each turn looks at the next few.

    Args:
        tensors: Whose values may be changed in place, or exchanged by their `data`.
        size: Numbers of a turn.
    """

    def __init__(self, tensors: Sequence[Tensor], size: int) -> None:
        self._tensors, self._size = tensors, size
        self._ends = list(accumulate(tensor.numel() for tensor in tensors))
        self._count = -(-self._ends[-1] // size) if tensors else 0  # of turns, until they begin again

    def turn(self, number: int) -> Tensor:
        """Return the mixed number [1] of a turn."""
        start = begin = number % self._count * self._size if self._count else 0
        place, stop, here, there = bisect_right(self._ends, start), start + self._size, 0, list[Tensor]()
        while start < stop and place < len(self._tensors):
            tensor, end = self._tensors[place], self._ends[place]
            shown = slice(start - end + tensor.numel(), stop - end + tensor.numel())
            if tensor.is_cpu and tensor.dtype is torch.float32:  # almost always, and four times as fast
                here += _mixed_array(tensor.detach().numpy().reshape(-1)[shown], start - begin)
            else:
                there.append(mixed(_words(tensor).reshape(1, -1)[:, shown], start - begin))
            start, place = end, place + 1
        total = torch.tensor([here % 2**32]).to(torch.int32)
        return sum(there[1:], there[0] + total.to(there[0].device)) if there else total


def _mixed_array(array: npt.NDArray[np.float32], first: int) -> int:
    end = first + len(array)
    weights = _weights(1 << end.bit_length(), torch.device("cpu")).numpy()[first:end]
    return int((array.view(np.int32) * weights).sum(dtype=np.int32))


def _words(tensor: Tensor) -> Tensor:
    return tensor.detach().view(_WORDS[tensor.element_size()])


@lru_cache
def _weights(count: int, device: torch.device) -> Tensor:
    """Return odd numbers, so that no word is lost whatever the others are, and no two alike below 2**31 places."""
    odd = (torch.arange(1, count + 1, dtype=torch.int64) * (2 * _ODD) + 1) & 0xFFFFFFFF
    return (odd - (odd >> 31 << 32)).to(torch.int32).to(device)
