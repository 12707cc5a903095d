"""Velocity commands from a person: a joystick, or keys of the viewer's window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rl_lab.core import UsageError
from rl_lab.environments.joystick import open_stick

AXES = (1, 0, 3)  # of the joystick: forward, left, turn left; each is negative in that direction
KEYS = {  # of GLFW: the axis of the command, and the sign
    **{265: (0, 1.0), 264: (0, -1.0)},  # up, down: forward and backward
    **{44: (1, 1.0), 46: (1, -1.0)},  # comma, full stop: left and right
    **{263: (2, 1.0), 262: (2, -1.0)},  # left, right: turn
}
STOP = 32  # space
STRIDE = 0.1  # of the width of a range, by each press of a key


class Keyboard:
    """Holds a command that keys change step by step, within the ranges of the task.

    Args:
        ranges: Lowest and highest vx, vy and yaw rate.
    """

    def __init__(self, ranges: Mapping[str, tuple[float, float]]) -> None:
        self._low, self._high = torch.tensor(list(ranges.values())).T
        self._command = torch.zeros(3)

    def press(self, key: int) -> None:
        """Take in a key by GLFW's number."""
        if key == STOP:
            self._command = torch.zeros(3)
        elif key in KEYS:
            axis, sign = KEYS[key]
            change = torch.zeros(3)
            change[axis] = sign * STRIDE * (self._high - self._low)[axis]
            self._command = (self._command + change).clamp(self._low, self._high)

    def read(self) -> Tensor:
        """Return the command [3]."""
        return self._command


class Joystick:
    """The first joystick that is connected; commands stay within the ranges of the task.

    Args:
        scale: vx, vy (m/s) and yaw rate (rad/s) of a stick that is pushed all the way.
        ranges: Lowest and highest vx, vy and yaw rate.
    """

    def __init__(self, scale: Sequence[float], ranges: Mapping[str, tuple[float, float]]) -> None:
        self._scale = torch.tensor(scale)
        self._low, self._high = torch.tensor(list(ranges.values())).T
        stick = open_stick()
        if stick is None:
            raise UsageError("--joystick: none is connected (--keyboard takes keys of the viewer's window)")
        if stick.num_axes <= max(AXES):
            raise UsageError(f"--joystick: {stick.name!r} has {stick.num_axes} axes, {max(AXES) + 1} are needed")
        self._stick = stick

    def read(self) -> Tensor:
        """Return the command [3] of how the sticks are held."""
        held = self._stick.read()
        if held is None:  # unplugged: stand
            return torch.zeros(3).clamp(self._low, self._high)
        return (-torch.tensor([held.axes[axis] for axis in AXES]) * self._scale).clamp(self._low, self._high)
