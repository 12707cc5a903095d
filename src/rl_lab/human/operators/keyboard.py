"""A person at the terminal: keys of the keyboard, without any package. Linux and macOS.

A terminal tells when keys are pressed and not when they are let go: a press moves for one step, a key that is held
repeats.
"""

from __future__ import annotations

import os
import re
import termios
import tty
from collections.abc import Mapping
from typing import Any

from rl_lab.core import ConfigError, unknown_name
from rl_lab.core.durable import reason
from rl_lab.human.operators.desk import Refused
from rl_lab.human.operators.device import DevicePerson
from rl_lab.human.operators.jogging import Jogging
from rl_lab.human.operators.person import Rules

KEYS = {  # what a key does -> its default
    **{"+x": "right", "-x": "left", "+y": "up", "-y": "down", "+z": "w", "-z": "s"},
    **{"+roll": "e", "-roll": "q", "+pitch": "i", "-pitch": "k", "+yaw": "j", "-yaw": "l"},
    **{"take_over": "t", "pause": "space", "gripper": "g", "next_hand": "tab"},
    **{"success": "1", "failure": "0", "abort": "x"},
}
NAMES = {b"\x1b[A": "up", b"\x1b[B": "down", b"\x1b[C": "right", b"\x1b[D": "left", b" ": "space", b"\t": "tab"}
_KEY = re.compile(rb"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Z]|.", re.DOTALL)


def split_keys(data: bytes) -> list[str]:
    """Return the keys in what a terminal sent, by name; arrows also as keypads in application mode send them."""
    found = (NAMES.get(key.replace(b"\x1bO", b"\x1b["), key.decode("latin-1")) for key in _KEY.findall(data))
    return [key for key in found if not key.startswith("\x1b")]


class KeyboardOperator(DevicePerson):
    """Keys of a terminal.

    Args:
        name: Who sits there, for the records.
        jogging: What can be moved, and how.
        keys: Other keys than t (take over and hand back), space (pause and go on), arrows (x, y), w s (z), q e (roll),
            i k (pitch), j l (yaw), g (gripper), tab (next hand), 1 (success), 0 (failure), x (abort): {+x: d, ...}.
        rules: How a person and a robot get along.
        device: The terminal.
    """

    def __init__(
        self,
        name: str,
        jogging: Jogging,
        *,
        keys: Mapping[str, str] | None = None,
        rules: Rules | None = None,
        device: str = "/dev/tty",
    ) -> None:
        super().__init__(name, jogging, rules)
        for deed in keys or {}:
            if deed not in KEYS:
                raise ConfigError(unknown_name("key in keys", deed, KEYS))
        chosen = {**KEYS, **(keys or {})}
        self._deeds = {key: deed for deed, key in chosen.items()}
        if len(self._deeds) < len(chosen):
            raise ConfigError(f"keys: one key does two things ({', '.join(sorted(chosen.values()))})")
        self._device, self._terminal = device, -1
        self._before: list[Any] = []

    def _open(self) -> None:
        try:
            self._connect()
        except (OSError, termios.error) as error:
            raise ConfigError(f"device {self._device} is no terminal to read keys from ({_said(error)})") from error
        keys = ", ".join(f"{deed} {key}" for key, deed in self._deeds.items() if deed[0] not in "+-")
        self.tell(f"{self._who} at the keyboard: {keys}; arrows, w s and others move")

    def _connect(self) -> None:
        terminal = os.open(self._device, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            self._before = termios.tcgetattr(terminal)
            tty.setcbreak(terminal, termios.TCSANOW)  # keys come one by one; Ctrl-C still is a signal
        except termios.error:
            os.close(terminal)
            raise
        self._terminal = terminal

    def _reopen(self) -> bool:
        try:
            self._connect()
        except (OSError, termios.error):
            return False
        return True

    def _poll(self) -> None:
        if not self._is_back():
            return
        try:
            data = os.read(self._terminal, 1024)
        except BlockingIOError:
            return
        except OSError as error:
            data, why = b"", reason(error)
        else:
            why = "it was closed"
        if not data:
            os.close(self._terminal)
            self._terminal = -1
            self._lose(f"the keyboard {self._device} is gone ({why})")
        for key in split_keys(data):
            deed = self._deeds.get(key, "")
            if deed[:1] in ("+", "-"):
                self._tap(deed)
            elif deed:
                self.press(deed)

    def _tap(self, deed: str) -> None:
        """Move one axis for one step; keys of axes that the hand has not do nothing."""
        if deed[1:] in self._jogger.hands[self.desk.look().hand]:
            try:
                self.desk.move(self._who, {deed[1:]: 1.0 if deed[0] == "+" else -1.0}, is_tap=True)
            except Refused as error:
                self.tell(f"key {deed}: {error}")

    def close(self) -> None:
        """Give the terminal back as it was."""
        if self._terminal >= 0:
            termios.tcsetattr(self._terminal, termios.TCSADRAIN, self._before)
            os.close(self._terminal)
            self._terminal = -1


def _said(error: OSError | termios.error) -> str:
    return reason(error) if isinstance(error, OSError) else str(error.args[-1])
