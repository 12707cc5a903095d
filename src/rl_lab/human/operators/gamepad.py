"""A person with a gamepad or joystick, read by pygame: `pip install 'rl-lab[play]'`."""

from __future__ import annotations

from collections.abc import Mapping

from rl_lab.core import ConfigError, UsageError, unknown_name
from rl_lab.environments.joystick import Stick, open_stick
from rl_lab.human.operators.jogging import AXES, Jogging
from rl_lab.human.operators.person import Rules
from rl_lab.human.operators.sticks import Reading, StickPerson

STICKS = {"x": "0", "y": "-1", "z": "-4", "yaw": "-3"}  # of an Xbox pad; up and left are negative
BUTTONS = {"take_over": 0, "failure": 1, "gripper": 2, "success": 3, "next_hand": 4, "pause": 5, "abort": 6}


def read_sticks(values: list[float], sticks: Mapping[str, tuple[int, float]]) -> dict[str, float]:
    """Return the axes of a hand from those of a gamepad; one that it has not stays at rest."""
    return {axis: sign * values[index] for axis, (index, sign) in sticks.items() if index < len(values)}


class GamepadOperator(StickPerson):
    """Sticks move a hand, buttons do the rest.

    Args:
        name: Who sits there, for the records.
        jogging: What can be moved, and how.
        sticks: Which of the gamepad's axes moves which axis of the hand, with a minus sign the other way round.
        buttons: What its buttons do: take_over, pause, gripper, next_hand, success, failure, abort.
        rules: How a person and a robot get along.
        dead_zone: Less than this of the way is not moved at all.
        release_s: Moving a stick takes over, and so many seconds of rest hand back; null: only a button takes over.
    """

    def __init__(
        self,
        name: str,
        jogging: Jogging,
        *,
        sticks: Mapping[str, int | str] | None = None,
        buttons: Mapping[str, int] | None = None,
        rules: Rules | None = None,
        dead_zone: float = 0.12,
        release_s: float | None = None,
    ) -> None:
        buttons = BUTTONS if buttons is None else buttons
        super().__init__(name, jogging, buttons=buttons, rules=rules, dead_zone=dead_zone, release_s=release_s)
        self._sticks = {axis: _numbered(axis, given) for axis, given in (sticks or STICKS).items()}
        self._stick: Stick | None = None

    @property
    def _what(self) -> str:
        return "the gamepad"

    def _open(self) -> None:
        try:
            self._stick = open_stick()
        except UsageError as error:
            raise ConfigError(str(error)) from error
        if self._stick is None:
            raise ConfigError("no gamepad is connected")

    def _reopen(self) -> bool:
        self._stick = open_stick()
        return self._stick is not None

    def _read(self) -> Reading | None:
        held = None if self._stick is None else self._stick.read()
        return None if held is None else Reading(read_sticks(held.axes, self._sticks), frozenset(held.buttons))


def _numbered(axis: str, given: int | str) -> tuple[int, float]:
    if axis not in AXES:
        raise ConfigError(unknown_name("axis in sticks", axis, AXES))
    text = str(given)
    sign, number = (-1.0, text[1:]) if text.startswith("-") else (1.0, text)
    if not number.isdigit():
        raise ConfigError(f"sticks.{axis}: a number of the gamepad's axes, or one with a minus sign, not {given!r}")
    return int(number), sign
