"""Weights that are sharded over the ranks of a run by torch's FSDP (`fully_shard`; arXiv 2304.11277)."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from rl_lab.core.shards import Block


class GroupShards:
    """This rank's part of a module's weights.

    A block's weights are brought together when it computes, forwards and backwards, and let go afterwards. State dicts
    hold this rank's parts, whole tensors in `whole`; what is loaded is whole.

    Args:
        whole: The module and the methods by which it is called; all ranks have the same weights.
        blocks: Parts of it.
        mesh: The ranks.
    """

    def __init__(self, whole: Block, blocks: Iterable[Block], mesh: DeviceMesh) -> None:
        self._module, self._mesh, self._puts_out_whole = whole.module, mesh, False
        warnings.filterwarnings(
            "ignore", "FSDP2-wrapped module", UserWarning
        )  # nobody writes into what a block returns
        for block in (*blocks, whole):  # the outermost last: it gets what is left
            fully_shard(block.module, mesh=mesh)
            for method in block.methods:
                register_fsdp_forward_method(block.module, method)
        self._parts = [part for part in whole.module.modules() if isinstance(part, FSDPModule)]
        self._learns = [p for p in whole.module.parameters() if p.requires_grad]
        self.parameters = [nn.Parameter(_own(parameter.detach())) for parameter in self._learns]
        whole.module.register_state_dict_post_hook(partial(self._put_out))  # torch marks what it is given
        whole.module.register_load_state_dict_pre_hook(partial(self._take_in))

    def gradients(self, loss: Tensor) -> tuple[Tensor, ...]:
        """Return this rank's part of the gradients of the mean of all ranks' losses."""
        loss.backward()
        found = []
        for parameter in self._learns:
            assert parameter.grad is not None, "what learns is a part of the loss"
            found.append(_own(parameter.grad))
            parameter.grad = None
        return tuple(found)

    def joined(self, norm: Tensor) -> Tensor:
        """Return the length of what all ranks hold, of the length of this one's part."""
        squared = norm.square()
        torch.distributed.all_reduce(squared, group=self._mesh.get_group())
        return squared.sqrt()

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Let all ranks hold all weights, so that one can act while the others wait, and put out whole state dicts."""
        for part in self._parts:
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()
        self._puts_out_whole = True
        try:
            yield
        finally:
            self._puts_out_whole = False
            for part in self._parts:
                part.reshard()
                part.set_reshard_after_forward(True, recurse=False)

    def _put_out(self, module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        """Put tensors that anybody can read into a state dict."""
        for name, tensor in state.items():
            if name.startswith(prefix) and isinstance(tensor, DTensor):
                state[name] = tensor.full_tensor().cpu() if self._puts_out_whole else _own(tensor)

    def _take_in(self, module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Take this rank's parts of whole tensors."""
        for part in self._parts:
            part.reshard()
        for name, parameter in module.named_parameters():
            given = state.get(prefix + name)
            if isinstance(parameter, DTensor) and given is not None:
                placed = given.to(self._mesh.device_type)
                state[prefix + name] = distribute_tensor(placed, self._mesh, parameter.placements, src_data_rank=None)


def _own(tensor: Tensor) -> Tensor:
    """Return this rank's part, in the same memory."""
    assert isinstance(tensor, DTensor)
    own: Tensor = tensor.to_local()
    return own
