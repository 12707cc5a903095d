"""Finds on a CPU what would make the host wait for a GPU, or could not be captured."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

LOOKS = {
    *("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal"),
    *("aten::unique", "aten::_unique2", "aten::repeat_interleave.Tensor"),
}


class NoLooks(TorchDispatchMode):
    """Refuses whatever waits for a device and, if it is to be captured, copies of the host's numbers.

    Args:
        is_captured: Whether all of it is to be part of a graph.
    """

    def __init__(self, *, is_captured=False):
        super().__init__()
        self.refused = LOOKS | ({"aten::lift_fresh"} if is_captured else set())

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert function.name() not in self.refused, function.name()
        if function.name() in ("aten::index.Tensor", "aten::index_put_", "aten::index_put"):
            assert all(index is None or index.dtype != torch.bool for index in args[1]), "a mask as an index"
        return function(*args, **(kwargs or {}))
