"""A person with a device that has sticks or a cap: how far they are pushed moves a hand, buttons do the rest."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

from rl_lab.core import ConfigError, unknown_name
from rl_lab.human.operators.device import DEEDS, DevicePerson
from rl_lab.human.operators.jogging import AXES, Jogging
from rl_lab.human.operators.person import Rules


class Reading(NamedTuple):
    """How a device is held."""

    axes: Mapping[str, float]  # x, y, z, roll, pitch, yaw, each -1 to 1
    buttons: frozenset[int]  # those that are down


class StickPerson(DevicePerson):
    """Sticks and buttons; `take_over` hands back when pressed again.

    Args:
        name: Who sits there, for the records.
        jogging: What can be moved, and how.
        buttons: What each button does: take_over, pause, gripper, next_hand, success, failure, abort.
        rules: How a person and a robot get along.
        dead_zone: Less than this of the way is not moved at all.
        release_s: Moving it takes over, and so many seconds of rest hand back; null: only a button takes over.
    """

    def __init__(
        self,
        name: str,
        jogging: Jogging,
        *,
        buttons: Mapping[str, int],
        rules: Rules | None,
        dead_zone: float,
        release_s: float | None,
    ) -> None:
        super().__init__(name, jogging, rules)
        for deed in buttons:
            if deed not in DEEDS:
                raise ConfigError(unknown_name("deed in buttons", deed, DEEDS))
        if not 0.0 <= dead_zone < 1.0 or (release_s is not None and not release_s >= 0.0):
            raise ConfigError(f"dead_zone is 0 to 1 and release_s 0 or more, not {dead_zone} and {release_s}")
        self._buttons, self._dead_zone, self._release_s = dict(buttons), dead_zone, release_s
        self._down: frozenset[int] = frozenset()
        self._moved_at: float | None = None  # when it took over by being moved, and last was

    @abstractmethod
    def _read(self) -> Reading | None:
        """Return how the device is held; None: it is gone."""

    @property
    @abstractmethod
    def _what(self) -> str:
        """Return what the device is, for people."""

    def _poll(self) -> None:
        if not self._is_back():
            return
        reading = self._read()
        if reading is None:
            self._down, self._moved_at = frozenset(), None
            self._lose(f"{self._what} is gone")
            return
        pressed, self._down = reading.buttons - self._down, reading.buttons
        for deed, number in self._buttons.items():
            if number in pressed:
                self._moved_at = None if deed == "take_over" else self._moved_at  # by button: stays until the button
                self.press(deed)
        self._move(reading)

    def _move(self, reading: Reading) -> None:
        """Move the hand, where somebody is in control or takes over by it."""
        wishes = self.desk.look()
        axes = self._jogger.hands[wishes.hand]
        motion = {axis: self._cut(reading.axes.get(axis, 0.0)) for axis in AXES if axis in axes}
        is_moved, now = any(motion.values()), time.monotonic()
        if self._release_s is not None and not wishes.paused:
            if is_moved and wishes.controller is None:
                self.desk.take_over(self._who, self._who)
                self._moved_at = now
            elif is_moved and self._moved_at is not None:
                self._moved_at = now
            elif self._moved_at is not None and now - self._moved_at >= self._release_s:
                self._moved_at = None
                if wishes.controller == self._who:
                    self.desk.hand_back(self._who)
        if self.desk.look().controller == self._who:
            self.desk.move(self._who, motion)

    def _cut(self, value: float) -> float:
        """Return the value without the dead zone, still up to 1."""
        beyond = max(0.0, abs(value) - self._dead_zone) / (1.0 - self._dead_zone)
        return min(1.0, beyond) * (1.0 if value > 0.0 else -1.0)
