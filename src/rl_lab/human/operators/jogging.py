"""From how a hand is moved to an action of the robot: which axis is which entry, and whether it pushes or places."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from rl_lab.core import Box, ConfigError, EnvSpec, Observation, VectorEnv, unknown_name
from rl_lab.human.operators.desk import Wishes

AXES = ("x", "y", "z", "roll", "pitch", "yaw")
GRIPPER = "gripper"


@dataclass(frozen=True)
class Jogging:
    """What can be moved by hand.

    Attributes:
        hands: For each hand, which entry of the action each axis (x, y, z, roll, pitch, yaw, gripper) moves: a number,
            or a name as the robot calls it; with a minus sign the other way round.
        mode: velocity (an entry is how fast, and 0 is still) or position (an entry is where to).
        speed: The entry of an axis that is pushed all the way; of positions, by how much it changes in a step.
    """

    hands: Mapping[str, Mapping[str, int | str]]
    mode: Literal["velocity", "position"] = "velocity"
    speed: float = 1.0


class Jogger:
    """Makes actions of wishes. Positions begin at what is measured, or at what was done last where nothing tells.

    Args:
        jogging: Which axis is which entry.
        env: The robot; its actions are one row of numbers.
    """

    def __init__(self, jogging: Jogging, env: VectorEnv) -> None:
        space = env.spec.action
        if not isinstance(space, Box) or len(space.shape) != 1:
            raise ConfigError(f"jogging moves a row of numbers, which actions of {env.spec.id!r} are not")
        if jogging.mode not in ("velocity", "position") or not jogging.speed > 0.0:
            raise ConfigError(f"jogging.mode is velocity or position and jogging.speed more than 0, not {jogging}")
        facts = env.describe()
        self._width, self._low, self._high = space.shape[0], max(space.low, -1e6), min(space.high, 1e6)
        self._names: list[str] = list(facts.get("actions", []))
        self.hands = {hand: self._entries(hand, axes) for hand, axes in jogging.hands.items()}
        if not self.hands:
            raise ConfigError("jogging.hands: name one at least, e.g. {arm: {x: 0, y: 1, z: 2}}")
        self._is_position, self._speed = jogging.mode == "position", jogging.speed
        self._measured = _Measured(facts, self._names, env.spec) if self._is_position and self._low == -1.0 else None
        self._target: Tensor | None = None  # [D], while somebody acts
        self._last: Tensor | None = None  # what was done last

    def act(self, wishes: Wishes, obs: Observation) -> Tensor:
        """Return the action [D] of one step by hand."""
        if self._target is None:
            self._target = self._start(obs)
        action = self._target.clone() if self._is_position else torch.zeros(self._width)
        for hand, closed in wishes.closes.items():
            if GRIPPER in self.hands[hand]:
                entry, sign = self.hands[hand][GRIPPER]
                self._target[entry] = self._low if closed == (sign > 0) else self._high
        for entries in self.hands.values():  # grippers stay as they are
            if GRIPPER in entries:
                action[entries[GRIPPER][0]] = self._target[entries[GRIPPER][0]]
        for axis, value in wishes.motion.items():
            entry, sign = self.hands[wishes.hand][axis]
            action[entry] += sign * value * self._speed
        action = action.clamp(self._low, self._high)
        self._target = self._last = action.clone()
        return action

    def is_closed(self, hand: str) -> bool:
        """Return whether a gripper is rather closed than open, as far as was seen."""
        seen = self._last if self._target is None else self._target
        if seen is None or GRIPPER not in self.hands[hand]:
            return False
        entry, sign = self.hands[hand][GRIPPER]
        return bool(sign * (seen[entry] - (self._low + self._high) / 2.0) < 0.0)

    def watch(self, done: Tensor) -> None:
        """Take note of what another has done."""
        self._last, self._target = done.detach().cpu().float().clone(), None

    def _start(self, obs: Observation) -> Tensor:
        if self._measured is not None and self._measured.entries:
            return self._measured.read(obs)
        return torch.zeros(self._width) if self._last is None else self._last.clone()

    def _entries(self, hand: str, axes: Mapping[str, int | str]) -> dict[str, tuple[int, float]]:
        for axis in axes:
            if axis not in (*AXES, GRIPPER):
                raise ConfigError(unknown_name(f"axis in jogging.hands.{hand}", axis, (*AXES, GRIPPER)))
        return {axis: self._entry(f"jogging.hands.{hand}.{axis}", given) for axis, given in axes.items()}

    def _entry(self, path: str, given: int | str) -> tuple[int, float]:
        text = str(given)
        sign, name = (-1.0, text[1:]) if text.startswith("-") else (1.0, text)
        if name in self._names:
            return self._names.index(name), sign
        if name.isdigit() and int(name) < self._width:
            return int(name), sign
        raise ConfigError(unknown_name(path, name, self._names or range(self._width)))


class _Measured:
    """Where the entries of an action are among the observations of a robot that says so, in [-1, 1]."""

    def __init__(self, facts: Mapping[str, Any], names: list[str], spec: EnvSpec) -> None:
        numbers: Mapping[str, list[str]] = facts.get("observations", {})
        states = numbers.get("state", [])
        is_told = bool(names) and set(names) <= set(states)
        before, space = 0, spec.observation
        if isinstance(space, Mapping):
            is_told &= "state" in space
        else:  # one row, in which `state` lies among the other numbers
            before = sum(len(numbers[name]) for name in itertools.takewhile(lambda name: name != "state", numbers))
            is_told &= isinstance(space, Box) and space.shape == (sum(map(len, numbers.values())),)
        self.entries = [before + states.index(name) for name in names] if is_told else []
        low, high = (torch.tensor(facts.get(key, []), dtype=torch.float32) for key in ("action_low", "action_high"))
        self._low, self._high = low, high

    def read(self, obs: Observation) -> Tensor:
        state = obs["state"] if isinstance(obs, dict) else obs
        places = state[0].detach().cpu().float()[self.entries]
        return ((places - self._low) / (self._high - self._low) * 2.0 - 1.0).clamp(-1.0, 1.0)
