"""The ranks of a run as a process group of torch: gloo between hosts' memories, nccl between GPUs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rl_lab.core.errors import PeerLost
from rl_lab.core.ranks import Ranks
from rl_lab.core.shards import Block, Shards

PATIENCE = timedelta(days=1)  # others wait while the first one evaluates; a process that dies is noticed at once


def num_started() -> int:
    """Return how many processes a launcher, such as torchrun, has started for this run; 1: none has."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_rank() -> int:
    """Return the number of this process on its machine, which is that of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def num_beside() -> int:
    """Return how many processes of this run share this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


@contextmanager
def process_group(device: torch.device) -> Iterator[Ranks]:
    """Meet the processes that were started for this run, and part from them at the end."""
    try:
        dist.init_process_group("gloo", timeout=PATIENCE)
    except (RuntimeError, ValueError) as error:
        raise PeerLost(f"the processes of this run do not find each other: {_one_line(error)}") from error
    try:
        yield GroupRanks(device)
    finally:
        dist.destroy_process_group()


class GroupRanks(Ranks):
    """A rank of the process group that this process has joined.

    Args:
        device: Where the tensors lie that are reduced.
    """

    def __init__(self, device: torch.device) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._of_devices = dist.new_group(backend="nccl") if device.type == "cuda" else None
        self._device = device

    def mean_(self, tensor: Tensor) -> Tensor:
        """Make a tensor the mean of all ranks' and return it; on a GPU nothing waits for it."""
        self._call(dist.all_reduce, tensor, group=self._of_devices)
        return tensor.div_(self.size)

    def means(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the means of all ranks' tensors, brought together in one message."""
        flat = self.mean_(torch.cat([tensor.flatten() for tensor in tensors]))
        parts = flat.split([tensor.numel() for tensor in tensors])
        return tuple(part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True))

    def cat(self, tensor: Tensor) -> Tensor:
        """Return all ranks' tensors after each other."""
        parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(self.size)]
        self._call(dist.all_gather, parts, tensor.contiguous(), group=self._of_devices)
        return torch.cat(parts)

    @torch.no_grad()
    def share_(self, tensors: list[Tensor]) -> None:
        """Make tensors those of the first one."""
        for tensor in tensors:
            sent = tensor.to(self._device).contiguous()  # nccl knows GPUs only
            self._call(dist.broadcast, sent, src=0, group=self._of_devices)
            tensor.copy_(sent)

    def shard(self, whole: Block, blocks: Iterable[Block]) -> Shards | None:
        """Leave each rank a part of a module's weights, which are the first one's."""
        from torch.distributed.device_mesh import DeviceMesh

        from rl_lab.distributed.shards import GroupShards  # FSDP takes a second to import

        self.share_(list(whole.module.state_dict().values()))
        group = self._of_devices or dist.group.WORLD
        assert group is not None, "this process has joined the group"
        return GroupShards(whole, blocks, DeviceMesh.from_group(group, self._device.type))

    def numbers(self, *own: int) -> list[tuple[int, ...]]:
        """Return the numbers that each rank says."""
        said = torch.tensor(own)
        parts = [torch.empty_like(said) for _ in range(self.size)]
        self._call(dist.all_gather, parts, said)
        return [tuple(part.tolist()) for part in parts]

    def gather(self, value: Any) -> list[Any]:
        """Return what each rank says: as JSON, for what comes from elsewhere must not run here."""
        said = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        longest = max(length for (length,) in self.numbers(len(said)))
        mine = torch.full((longest,), ord(" "), dtype=torch.uint8)  # JSON may end in blanks
        mine[: len(said)] = said
        parts = [torch.empty_like(mine) for _ in range(self.size)]
        self._call(dist.all_gather, parts, mine)
        return [json.loads(bytes(part.tolist())) for part in parts]

    def _call(self, collective: Callable[..., Any], *args: Any, **options: Any) -> None:
        try:
            collective(*args, **options)
        except RuntimeError as error:
            raise PeerLost(f"rank {self.rank} lost the other processes of this run: {_one_line(error)}") from error


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
