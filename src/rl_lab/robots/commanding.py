"""Velocity commands from a person: a joystick, or keys of the viewer's window."""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rl_lab.core import UsageError

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
    """The first joystick that is connected.

    Args:
        scale: Largest vx, vy (m/s) and yaw rate (rad/s).
    """

    def __init__(self, scale: Sequence[float]) -> None:
        self._scale = torch.tensor(scale)
        self._pygame = _pygame()
        if self._pygame.joystick.get_count() == 0:
            raise UsageError("--joystick: none is connected (--keyboard takes keys of the viewer's window)")
        self._stick = self._pygame.joystick.Joystick(0)
        if self._stick.get_numaxes() <= max(AXES):
            found = f"{self._stick.get_name()!r} has {self._stick.get_numaxes()} axes"
            raise UsageError(f"--joystick: {found}, {max(AXES) + 1} are needed")

    def read(self) -> Tensor:
        """Return the command [3] of how the sticks are held."""
        self._pygame.event.pump()
        return -torch.tensor([self._stick.get_axis(axis) for axis in AXES]) * self._scale


def _pygame() -> Any:
    """Return pygame with joysticks that are read without a window of its own."""
    for name, value in (
        ("PYGAME_HIDE_SUPPORT_PROMPT", "1"),
        ("SDL_VIDEODRIVER", "dummy"),
        ("SDL_JOYSTICK_ALLOW_BACKGROUND_EVENTS", "1"),
    ):
        os.environ.setdefault(name, value)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # pygame's own, while it is imported
            pygame = importlib.import_module("pygame")
    except ImportError as error:
        raise UsageError(f"--joystick needs: pip install 'rl-lab[play]' ({error})") from error
    pygame.display.init()
    pygame.joystick.init()
    return pygame
