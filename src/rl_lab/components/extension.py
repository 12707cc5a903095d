"""What can be switched on beside PPO: a component that PPO calls at the points of its update named here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rl_lab.components.actor_critic import ActorCritic, Inputs
from rl_lab.core import Batch, ConfigError, Metrics, Observation, WorkflowContext

Read = Callable[[Observation], Inputs]


class Extension(nn.Module):
    """Does nothing at any of these points; a subclass overrides those that it is about, in the order of an update."""

    def bind(self, context: WorkflowContext, policy: ActorCritic, read: Read) -> None:
        """Build networks and optimisers; refuse what does not fit. `read` gives what the policy's networks read."""

    def inputs(self, inputs: Inputs) -> Inputs:
        """Return what the networks read, given what they would read; called when acting, too."""
        return inputs

    def rewards(self, batch: Batch, rewards: Tensor, progress: float) -> Tensor:
        """Return the rewards [T, N] to learn from, given those so far; called once for every rollout."""
        return rewards

    def rows(self, obs: Observation) -> dict[str, Any]:
        """Return what minibatches shall also hold, by name, one row per observation [B, ...]."""
        return {}

    def loss(self, minibatch: Mapping[str, Any], policy: ActorCritic) -> Tensor | None:
        """Return another term of the loss whose gradient reaches the policy."""
        return None

    def widen(self, minibatch: dict[str, Any]) -> dict[str, Any]:
        """Return the minibatch with further rows after its own."""
        return minibatch

    def learn(self, batch: Batch, policy: ActorCritic) -> Metrics:
        """Learn from a rollout [T, N, ...] what is not the policy's; called after the policy has learned from it."""
        return {}

    def get_state(self) -> dict[str, Any]:
        """Return what is neither a parameter nor a buffer of the module nor an optimiser's state."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `get_state` returned."""


class Extensions(nn.ModuleDict):
    """Those of a workflow by name, as one."""

    def __init__(self, components: Mapping[str, nn.Module], names: Iterable[str]) -> None:
        super().__init__({name: components[name] for name in names if name in components})
        for name, extension in self.items():
            if not isinstance(extension, Extension):
                raise ConfigError(f"components.{name}: needs an extension of PPO, not {type(extension).__name__}")

    def bind(self, context: WorkflowContext, policy: ActorCritic, read: Read) -> None:
        """Bind every one."""
        for extension in self._each():
            extension.bind(context, policy, read)
        self.to(context.device)

    def inputs(self, inputs: Inputs) -> Inputs:
        """Return what the networks read."""
        for extension in self._each():
            inputs = extension.inputs(inputs)
        return inputs

    def rewards(self, batch: Batch, rewards: Tensor, progress: float) -> Tensor:
        """Return the rewards [T, N] to learn from."""
        for extension in self._each():
            rewards = extension.rewards(batch, rewards, progress)
        return rewards

    def rows(self, obs: Observation) -> dict[str, Any]:
        """Return what minibatches shall also hold."""
        return {name: value for extension in self._each() for name, value in extension.rows(obs).items()}

    def losses(self, minibatch: Mapping[str, Any], policy: ActorCritic) -> list[Tensor]:
        """Return the terms of the loss that there are."""
        losses = [extension.loss(minibatch, policy) for extension in self._each()]
        return [loss for loss in losses if loss is not None]

    def widen(self, minibatch: dict[str, Any]) -> dict[str, Any]:
        """Return the minibatch with all further rows."""
        for extension in self._each():
            minibatch = extension.widen(minibatch)
        return minibatch

    def learn(self, batch: Batch, policy: ActorCritic) -> dict[str, Any]:
        """Let every one learn from a rollout."""
        return {name: value for part in self._each() for name, value in part.learn(batch, policy).items()}

    def get_state(self) -> dict[str, Any]:
        """Return the states by name."""
        return {name: part.get_state() for name, part in zip(self, self._each(), strict=True)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `get_state` returned."""
        for name, part in zip(self, self._each(), strict=True):
            part.set_state(state[name])

    def _each(self) -> Iterable[Any]:
        return self._modules.values()


def shuffled_parts(num_rows: int, num_epochs: int, num_parts: int, device: torch.device) -> Iterator[Tensor]:
    """Yield the numbers of the rows of each minibatch, every row once per epoch."""
    for _ in range(num_epochs):
        yield from torch.randperm(num_rows, device=device).chunk(num_parts)
