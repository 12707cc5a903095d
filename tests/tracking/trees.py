"""Equality of state trees, written independently of the codec: types, shapes, bits."""

import numpy as np
import torch

from rl_lab.core import Segment


def assert_same(a, b, path="root"):
    assert type(a) is type(b), (path, type(a), type(b))
    if isinstance(a, dict):
        assert list(a) == list(b), path
        for key in a:
            assert_same(a[key], b[key], f"{path}.{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), path
        for index, (left, right) in enumerate(zip(a, b, strict=True)):
            assert_same(left, right, f"{path}.{index}")
    elif isinstance(a, torch.Tensor):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), path
        assert bytes(a.detach().resolve_conj().reshape(-1).contiguous().view(torch.uint8).tolist()) == bytes(
            b.reshape(-1).contiguous().view(torch.uint8).tolist()
        ), path
    elif isinstance(a, Segment):
        assert a.key == b.key, path
        assert_same(a.tensor, b.tensor, path)
    elif isinstance(a, np.ndarray):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()), path
    elif isinstance(a, float):
        assert repr(a) == repr(b), path
    else:
        assert a == b, path
