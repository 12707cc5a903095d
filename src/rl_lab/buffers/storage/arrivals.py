"""Steps as rows of arrival: an observation with the action and reward that led to it, and a row for each last one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rl_lab.core import State, Trajectory, Tree, tree_leaves, tree_map

LED_HERE = ("actions", "rewards", "infos")  # what a step did and brought: a matter of the row it led to
NOT_STORED = ("terminated", "truncated", "final_observations", "is_first", *LED_HERE, "observations")


class Arrivals(NamedTuple):
    """The rows of `T` vector steps, in two parts: one per step, and one per step that ended an episode."""

    rows: dict[str, Any]  # [T, N, ...]: where each step started from
    last: dict[str, Any]  # [T, N, ...]: where it led to; only rows where `ended` holds count
    ended: Tensor  # [T, N] bool


class ArrivalStream:
    """Turns trajectories into arrival rows, whatever the pieces they come in.

    A piece that does not go on where the last one stopped (steps in between went elsewhere) begins with `is_first`, so
    that nobody takes it for the same episode.
    """

    def __init__(self) -> None:
        self._before: dict[str, Any] | None = None  # the last step: what led on from it, and to which observation

    def take(self, trajectory: Trajectory) -> Arrivals:
        """Return the rows of the next steps."""
        led = {key: trajectory[key] for key in LED_HERE if key in trajectory}
        observations, finals = trajectory["observations"], trajectory["final_observations"]
        is_first = trajectory["is_first"].clone()
        is_first[0] |= ~goes_on(observations, self._before, is_first[0])
        before = self._before["led"] if self._before is not None else tree_map(lambda x: torch.zeros_like(x[0]), led)
        shifted = tree_map(lambda first, x: torch.cat([first[None], x[:-1]]), before, led)
        ended = trajectory["terminated"] | trajectory["truncated"]
        extras = {key: value for key, value in trajectory.items() if key not in NOT_STORED}
        no = torch.zeros_like(ended)
        rows = {
            "observations": observations,
            **tree_map(lambda x: _blank(x, is_first), shifted),
            **extras,
            "is_first": is_first,
            "is_last": no,
            "is_terminal": no,
        }
        last = {
            "observations": finals,
            **led,
            **tree_map(torch.zeros_like, extras),
            "is_first": no,
            "is_last": ended,
            "is_terminal": trajectory["terminated"],
        }
        self._before = tree_map(lambda x: x[-1].clone(), {"led": led, "finals": finals, "ended": ended})
        return Arrivals(rows, last, ended)

    def get_state(self) -> State:
        """Return the last step."""
        return {"before": self._before}

    def set_state(self, state: State, device: torch.device) -> None:
        """Go on after the last step of `state`."""
        self._before = tree_map(lambda x: x.to(device), state["before"])


def goes_on(observations: Tree, before: Mapping[str, Any] | None, is_first: Tensor) -> Tensor:
    """Return where the first of `observations` [T, N, ...] is the one that the step `before` led to, [N] bool."""
    if before is None:
        return torch.zeros_like(is_first)
    same = ~before["ended"]
    for (_, now), (_, then) in zip(tree_leaves(observations), tree_leaves(before["finals"]), strict=True):
        same = same & ((now[0] == then).flatten(1).all(1) if now.ndim > 2 else now[0] == then)
    return same


def _blank(values: Tensor, where: Tensor) -> Tensor:
    return values.masked_fill(where.view(*where.shape, *[1] * (values.ndim - 2)), 0)


def pieces(trajectory: Trajectory, steps: int) -> list[Trajectory]:
    """Return a trajectory in parts of at most so many vector steps."""
    count = trajectory["rewards"].shape[0]
    if count <= steps:
        return [trajectory]
    return [tree_map(lambda x, i=i: x[i : i + steps], trajectory) for i in range(0, count, steps)]
