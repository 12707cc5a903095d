"""A person with a device at this machine: what keyboards, gamepads and SpaceMice have in common."""

from __future__ import annotations

import time
from abc import abstractmethod

from rl_lab.core import ConfigError
from rl_lab.human.operators.desk import Refused
from rl_lab.human.operators.jogging import GRIPPER, Jogging
from rl_lab.human.operators.person import VERDICTS, Person, Rules

DEEDS = ("take_over", "pause", GRIPPER, "next_hand", *VERDICTS)  # of keys and buttons


class DevicePerson(Person):
    """A person with one device at this machine, which may be unplugged: the robot then holds until it is back.

    Args:
        name: Who sits there, for the records.
        jogging: What can be moved, and how.
        rules: How a person and a robot get along.
    """

    RETRY_S = 0.5

    def __init__(self, name: str, jogging: Jogging, rules: Rules | None = None) -> None:
        super().__init__(jogging, rules)
        if not name or len(name) > 64 or not name.isprintable():
            raise ConfigError(f"name must be 1 to 64 printable characters, not {name!r}")
        self.name = self._who = name
        self._is_lost, self._retry_at, self._was_acting = False, 0.0, False
        self._own_pause = ""  # that a loss has made, and what it says

    def _lose(self, why: str) -> None:
        """The device is gone: hold, say so once, and look for it from now on."""
        self._is_lost, self._retry_at = True, time.monotonic() + self.RETRY_S
        self._was_acting = self.desk.lose(self._who, why)
        is_held, self._own_pause = self._rules.on_loss == "pause", why
        if is_held and not self.desk.look().paused:
            self.desk.pause(why)
        self.tell(f"{why}: {'the robot holds' if is_held else 'the policy acts'} until it is back")

    def _is_back(self) -> bool:
        """Return whether a lost device may be used again; now and then it is looked for."""
        if not self._is_lost:
            return True
        if time.monotonic() < self._retry_at:
            return False
        self._retry_at = time.monotonic() + self.RETRY_S
        if not self._reopen():
            return False
        self._is_lost = False
        self._resume()
        return True

    def _resume(self) -> None:
        """Undo what the loss has done; a pause that somebody else made stays."""
        paused = self.desk.look().paused
        paused = "" if paused == self._own_pause else paused
        self.tell(f"the device is back: {paused or 'going on'}")
        if self._was_acting:
            self.press("take_over")  # which ends pauses; another may be in control by now
        if paused:
            self.desk.pause(paused)
        else:
            self.desk.go_on()

    @abstractmethod
    def _reopen(self) -> bool:
        """Try to open the device again; return whether it is there."""

    def press(self, deed: str) -> None:
        """Do what a key or button stands for; `take_over` and `pause` undo themselves. A refusal is told."""
        try:
            self._do(deed)
        except Refused as error:
            self.tell(f"{deed}: {error}")

    def _do(self, deed: str) -> None:
        desk, who, wishes = self.desk, self._who, self.desk.look()
        if deed == "take_over" and wishes.controller == who:
            desk.hand_back(who)
        elif deed == "take_over":
            desk.take_over(who, who)
        elif deed == "pause" and wishes.paused:
            desk.go_on()
        elif deed == "pause":
            desk.pause(f"paused by {who}")
        elif deed == GRIPPER:
            desk.grip(who, not self.is_closed(wishes.hand))
        elif deed == "next_hand":
            desk.choose(who)
        else:
            desk.end(next(ending for ending in VERDICTS if ending == deed), who)
