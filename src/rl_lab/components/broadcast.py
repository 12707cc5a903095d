"""What an actor gets of a policy of which only a part learns, and the proof that both have the same rest."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rl_lab.components.chunk_policy import ChunkPolicy
from rl_lab.core.errors import CheckpointError

BASE = "base"  # the sha256 of what does not learn, as bytes


class Broadcast:
    """Tensors of a policy for actors that were built from the same config.

    Args:
        policy: What learns.
        ranges: Modules whose buffers actors need as well, by name.
    """

    def __init__(self, policy: ChunkPolicy, ranges: Mapping[str, nn.Module]) -> None:
        self._policy, self._ranges = policy, ranges
        self._known: tuple[list[tuple[int, int]], Tensor] | None = None  # the state of the base, and its hash

    def tensors(self, acting: nn.Module) -> dict[str, Tensor]:
        """Return what learns of the policy as it acts, the ranges and, where there is a base, its hash."""
        learns = {name for name, parameter in self._policy.named_parameters() if parameter.requires_grad}
        policy = {f"policy.{name}": tensor for name, tensor in acting.named_parameters() if name in learns}
        ranges = {f"{owner}.{name}": b for owner, part in self._ranges.items() for name, b in part.named_buffers()}
        base = self._policy.base()
        return policy | ranges | ({BASE: self._hash_of(base)} if base else {})

    @torch.no_grad()
    def take(self, acting: nn.Module, given: Mapping[str, Tensor]) -> None:
        """Take what another one's `tensors` returned; raises CheckpointError where that one has another base."""
        own = self.tensors(acting)
        if BASE in own and not torch.equal(own.pop(BASE), given[BASE].cpu()):
            raise CheckpointError(
                "the learner's weights do not fit: those that do not learn are other ones there than here; "
                "start both from the same checkpoint (components), or where they are random the same experiment.seed"
            )
        for name, tensor in own.items():
            tensor.copy_(given[name])

    def _hash_of(self, base: Mapping[str, Tensor]) -> Tensor:
        state = [(tensor.data_ptr(), tensor._version) for tensor in base.values()]
        if self._known is None or self._known[0] != state:
            digest = hashlib.sha256()
            for name, tensor in base.items():
                digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
                digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
            self._known = state, torch.tensor(list(digest.digest()), dtype=torch.uint8)
        return self._known[1]
