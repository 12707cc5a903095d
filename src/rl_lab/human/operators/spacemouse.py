"""A person with a 3Dconnexion SpaceMouse, read from Linux's hidraw without any package.

Reports (SpaceNavigator, Compact, Wireless): 1 is translation, 2 rotation, each three little-endian 16-bit numbers of
about -350 to 350; 3 is the buttons, a bit each. Newer ones send all six numbers in report 1. The device's y points at
the person and its z down; here y points away from the person and z up.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path

from rl_lab.core import ConfigError
from rl_lab.core.durable import reason
from rl_lab.human.operators.jogging import Jogging
from rl_lab.human.operators.person import Rules
from rl_lab.human.operators.sticks import Reading, StickPerson

FULL = 350.0  # a cap that is pushed all the way
TRANSLATION = (("x", 1.0), ("y", -1.0), ("z", -1.0))
ROTATION = (("pitch", -1.0), ("roll", -1.0), ("yaw", 1.0))
LOGITECH, CONNEXION = 0x046D, 0x256F  # who sold them
LOGITECH_MICE = frozenset({0xC603, 0xC605, 0xC606, *range(0xC621, 0xC62C)})  # among other things of theirs
REST = Reading(dict.fromkeys(("x", "y", "z", "roll", "pitch", "yaw"), 0.0), frozenset())


def parse_report(report: bytes, before: Reading = REST) -> Reading:
    """Return how the device is held after a report; what it does not speak of is as before."""
    kind, body = report[0] if report else 0, report[1:]
    if kind == 1 and len(body) >= 12:
        return before._replace(axes={**before.axes, **_axes(body, (*TRANSLATION, *ROTATION))})
    if kind in (1, 2) and len(body) >= 6:
        return before._replace(axes={**before.axes, **_axes(body, TRANSLATION if kind == 1 else ROTATION)})
    if kind == 3 and body:
        bits = int.from_bytes(body[:4], "little")
        return before._replace(buttons=frozenset(bit for bit in range(32) if bits >> bit & 1))
    return before  # a battery's, say


def _axes(body: bytes, names: tuple[tuple[str, float], ...]) -> dict[str, float]:
    numbers = struct.unpack_from(f"<{len(names)}h", body)
    return {
        name: max(-1.0, min(1.0, sign * number / FULL)) for (name, sign), number in zip(names, numbers, strict=True)
    }


def find_spacemouse(devices: Path = Path("/sys/class/hidraw")) -> str | None:
    """Return the path of the first SpaceMouse that is connected."""
    try:
        entries = sorted(devices.iterdir())
    except OSError:
        return None
    return next((f"/dev/{entry.name}" for entry in entries if _is_spacemouse(entry)), None)


def _is_spacemouse(entry: Path) -> bool:
    """Return whether a device is one; what is unplugged while it is looked at is none."""
    try:
        lines = (entry / "device" / "uevent").read_text().splitlines()
    except OSError:
        return False
    for line in lines:
        if line.startswith("HID_ID="):
            _, vendor, product = (int(part, 16) for part in line.removeprefix("HID_ID=").split(":"))
            return vendor == CONNEXION or (vendor == LOGITECH and product in LOGITECH_MICE)
    return False


class SpaceMouseOperator(StickPerson):
    """The cap moves and turns a hand; by default moving it takes over, and leaving it alone hands back.

    Args:
        name: Who sits there, for the records.
        jogging: What can be moved, and how.
        device: /dev/hidrawN; null: the first SpaceMouse that is connected.
        buttons: What the buttons do (0 is the left one): take_over, pause, gripper, next_hand, success, failure, abort.
        rules: How a person and a robot get along.
        dead_zone: Less than this of the way is not moved at all.
        release_s: Moving it takes over, and so many seconds of rest hand back; null: only a button takes over.
    """

    def __init__(
        self,
        name: str,
        jogging: Jogging,
        *,
        device: str | None = None,
        buttons: Mapping[str, int] | None = None,
        rules: Rules | None = None,
        dead_zone: float = 0.08,
        release_s: float | None = 0.5,
    ) -> None:
        buttons = {"gripper": 0, "success": 1} if buttons is None else buttons
        super().__init__(name, jogging, buttons=buttons, rules=rules, dead_zone=dead_zone, release_s=release_s)
        self._device, self._file, self._held = device, -1, REST

    @property
    def _what(self) -> str:
        return "the SpaceMouse" if self._device is None else f"the SpaceMouse {self._device}"

    def _open(self) -> None:
        path = self._device or find_spacemouse()
        if path is None:
            raise ConfigError("device: no SpaceMouse is connected (device: /dev/hidrawN names one)")
        try:
            self._connect(path)
        except OSError as error:
            hint = "; see docs/operators.md for the rule that lets people read it" if error.errno == 13 else ""
            raise ConfigError(f"device: {path} cannot be read ({reason(error)}){hint}") from error

    def _connect(self, path: str) -> None:
        self._file, self._held = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), REST

    def _reopen(self) -> bool:
        path = self._device or find_spacemouse()
        try:
            if path is not None:
                self._connect(path)
        except OSError:
            return False
        return path is not None

    def _read(self) -> Reading | None:
        """Take in all reports that have come; a read of hidraw is one report."""
        try:
            while report := os.read(self._file, 64):
                self._held = parse_report(report, self._held)
        except BlockingIOError:
            return self._held
        except OSError:
            pass  # unplugged, as an end of the file is
        self.close()
        return None

    def close(self) -> None:
        """Let go of the device."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
