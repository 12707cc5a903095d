"""Joysticks and gamepads through pygame, for legged robots under command and for operators: an extra, `play`."""

from __future__ import annotations

import importlib
import os
import warnings
from typing import Any, NamedTuple

from rl_lab.core import UsageError


class Held(NamedTuple):
    """How a joystick is held."""

    axes: list[float]  # each -1 to 1; up and left are negative
    buttons: list[int]  # those that are down


class Stick:
    """One joystick that is connected. Make it with `open_stick`.

    Args:
        pygame: The package.
    """

    def __init__(self, pygame: Any) -> None:
        self._pygame, self._stick = pygame, pygame.joystick.Joystick(0)
        self.name, self.num_axes = self._stick.get_name(), self._stick.get_numaxes()

    def read(self) -> Held | None:
        """Return how it is held; None when it was unplugged."""
        removed = [event.instance_id for event in self._pygame.event.get(self._pygame.JOYDEVICEREMOVED)]
        self._pygame.event.pump()
        if self._stick.get_instance_id() in removed or self._pygame.joystick.get_count() == 0:
            return None
        buttons = [number for number in range(self._stick.get_numbuttons()) if self._stick.get_button(number)]
        return Held([self._stick.get_axis(axis) for axis in range(self.num_axes)], buttons)


def open_stick() -> Stick | None:
    """Return the first joystick that is connected, or None. Raises UsageError without pygame."""
    pygame = _pygame()
    pygame.event.pump()  # takes in what was plugged since
    return Stick(pygame) if pygame.joystick.get_count() else None


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
        raise UsageError(f"a joystick needs: pip install 'rl-lab[play]' ({error})") from error
    pygame.display.init()
    pygame.joystick.init()
    return pygame
