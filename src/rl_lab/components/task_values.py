"""Critics of several tasks, shared out from one batched network: what each task learns is its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from rl_lab.components.action_values import ActionValues
from rl_lab.components.ensemble import EnsembleMLP
from rl_lab.components.perception import Perception
from rl_lab.core import ConfigError, Space, WorkflowContext, unknown_name


class TaskValues(nn.Module):
    """The critics of each task, with parameters of their own: those of a task that waits stay, optimiser and all.

    Args:
        trunk: `components.critic`, with the critics of all tasks.
        space: Of the actions.
        num_tasks: How many share them out, in equal parts.
    """

    def __init__(self, trunk: nn.Module, space: Space, num_tasks: int) -> None:
        super().__init__()
        if not isinstance(trunk, EnsembleMLP):
            raise ConfigError("components.critic: needs an EnsembleMLP")
        if trunk.num_members % num_tasks:
            raise ConfigError(f"components.critic.num_members: {trunk.num_members} for {num_tasks} algorithm.tasks")
        self.tasks = nn.ModuleList(ActionValues(part, space) for part in shared_out(trunk, num_tasks))

    def __getitem__(self, task: int) -> ActionValues:
        critics = self.tasks[task]
        assert isinstance(critics, ActionValues)
        return critics

    def forward(self, features: Tensor, actions: Tensor) -> Tensor:
        """Return the lowest value of each task's critics [tasks, R, K] of actions [R, K, A] in [-1, 1]."""
        rows, flat = features.repeat_interleave(actions.shape[1], 0), actions.flatten(0, 1)
        values = torch.stack([critics(rows, flat).amin(0) for critics in self.tasks])
        return values.unflatten(1, actions.shape[:2])


def shared_out(trunk: EnsembleMLP, count: int) -> list[EnsembleMLP]:
    """Return `count` networks that have the members of `trunk` in equal parts."""
    if count == 1:
        return [trunk]
    size, parts = trunk.num_members // count, [deepcopy(trunk) for _ in range(count)]
    for index, part in enumerate(parts):
        part.num_members = size
        for parameter in part.parameters():  # [members, ...]
            parameter.data = parameter.data[index * size : (index + 1) * size].clone()
    return parts


def reject_tasks(context: WorkflowContext, perception: Perception, tasks: Sequence[str]) -> None:
    """Raise when a phase wants an unknown task, or tasks do not go with buffers or with what critics read."""
    shared: dict[str, Any] = {
        "components.encoder": perception.encoder,
        "components.memory": perception.memory,
        "algorithm.normalize_observations": perception.normalizer,
    }
    for key, part in shared.items():
        if len(tasks) > 1 and part is not None and part.state_dict():
            raise ConfigError(
                f"{key}: several algorithm.tasks would share it, and the phase of one would change what the critics "
                "of the others read (leave it out)"
            )
    if len(set(tasks)) < len(tasks):
        raise ConfigError(f"algorithm.tasks: {list(tasks)} names one of them twice")
    for phase in context.config.get("training", {}).get("phases", ()):
        task, buffers = phase.get("task"), context.config["buffers"]
        if tasks and task is not None and task not in tasks:
            raise ConfigError(unknown_name(f"task of phase {phase['name']!r}", task, tasks))
        if not tasks and task is None:
            continue  # the environment's reward, which buffers can sum
        read = {name: node for name, node in buffers.items() if phase.get("buffer") in (None, name)}
        if (summed := next(_summed_rewards("buffers", read), None)) is not None:
            raise ConfigError(f"{summed}: must be 1, because the reward of a task is an info of one step")


def _summed_rewards(path: str, node: Any) -> Iterator[str]:
    """Yield the keys that let a buffer, or one within it, sum the rewards of several steps."""
    for key, value in node.items() if isinstance(node, Mapping) else ():
        if key == "n_step" and value != 1:
            yield f"{path}.{key}"
        yield from _summed_rewards(f"{path}.{key}", value)
