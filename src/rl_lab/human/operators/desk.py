"""What people at a robot want right now: who is in control, how hands are moved, pauses and words on the episode.

Devices and web sessions write to it from threads of their own; the control loop reads it once per step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Condition
from typing import Literal

from rl_lab.core import LabError

Ending = Literal["success", "failure", "abort"]
OnLoss = Literal["pause", "hand_back"]


class Refused(LabError):
    """What was asked for cannot be done now; the message is one line for the person."""


@dataclass(frozen=True)
class Wishes:
    """What is wanted at one moment.

    Attributes:
        controller: Who acts, by key; None: the policy.
        name: The controller's, for people and for records.
        paused: Why nothing is done; empty: the run goes on.
        hand: The one that is moved.
        motion: How, by axis, -1 to 1.
        closes: Whether the grippers of hands are to be closed; hands that nobody said so of are not in it.
        ending: What somebody said of the episode, which ends it.
        ended_by: The name of who said so.
    """

    controller: str | None = None
    name: str = ""
    paused: str = ""
    hand: str = ""
    motion: Mapping[str, float] = field(default_factory=dict)
    closes: Mapping[str, bool] = field(default_factory=dict)
    ending: Ending | None = None
    ended_by: str = ""

    @property
    def is_moving(self) -> bool:
        """Return whether a hand is moved or somebody has spoken: something is to be done."""
        return any(self.motion.values()) or self.ending is not None

    @property
    def is_led(self) -> bool:
        """Return whether the next step is a person's, whatever the policy would do."""
        return self.controller is not None or self.ending is not None


class Desk:
    """Takes wishes from any thread; only one person is in control at a time.

    Args:
        hands: Names of what can be jogged, the first one first, and their axes.
        on_loss: When whoever is in control is gone: pause (the robot holds) or hand_back (the policy acts).
    """

    def __init__(self, hands: Mapping[str, Sequence[str]], on_loss: OnLoss = "pause") -> None:
        self._hands, self._on_loss = {hand: frozenset(axes) for hand, axes in hands.items()}, on_loss
        self._now = Wishes(hand=next(iter(hands)))
        self._taps: dict[str, float] = {}  # moved since the last step, and perhaps let go again
        self._turned = False  # whether a gripper was turned since the last step
        self._changed = Condition()

    @property
    def hands(self) -> tuple[str, ...]:
        """Return the names of what can be jogged."""
        return tuple(self._hands)

    def look(self) -> Wishes:
        """Return what is wanted; a tap that no step has seen yet counts."""
        with self._changed:
            return self._seen()

    def take_step(self) -> Wishes:
        """Return what is wanted at this step; taps and endings are used up by it."""
        with self._changed:
            return self._take()

    def take_led_step(self) -> Wishes | None:
        """Return what is wanted at this step if it is a person's; else nothing is used up."""
        with self._changed:
            return self._take() if self._now.is_led else None

    @property
    def is_idle(self) -> bool:
        """Return whether somebody is in control and does nothing."""
        with self._changed:
            return self._now.controller is not None and not self._turned and not self._seen().is_moving

    def wait(self, seconds: float) -> None:
        """Return when something changes, or after so long."""
        with self._changed:
            self._changed.wait(seconds)

    def take_over(self, key: str, name: str) -> None:
        """Put somebody in control, which ends a pause."""
        with self._changed:
            self._refuse_other(key)
            self._set(controller=key, name=name, paused="", motion={}, closes={})

    def hand_back(self, key: str) -> None:
        """Let the policy act."""
        with self._changed:
            self._refuse_stranger(key)
            self._release()

    def move(self, key: str, motion: Mapping[str, float], *, is_tap: bool = False) -> None:
        """Move the hand so until told otherwise; a tap moves it for one step."""
        with self._changed:
            self._refuse_stranger(key)
            if unknown := sorted(motion.keys() - self._hands[self._now.hand]):
                raise Refused(f"hand {self._now.hand!r} has no axis {unknown[0]!r}")
            if self._now.paused:
                return
            clipped = {axis: max(-1.0, min(1.0, value)) for axis, value in motion.items()}
            self._taps |= {axis: value for axis, value in clipped.items() if value}
            if not is_tap and clipped != self._now.motion:
                self._set(motion=clipped)
            elif is_tap:
                self._changed.notify_all()

    def choose(self, key: str, hand: str | None = None) -> None:
        """Move another hand from now on; None: the next one."""
        with self._changed:
            self._refuse_stranger(key)
            names = self.hands
            if hand is not None and hand not in names:
                raise Refused(f"there is no hand {hand!r} (choices: {', '.join(names)})")
            following = names[(names.index(self._now.hand) + 1) % len(names)]
            self._taps = {}
            self._set(hand=hand or following, motion={})

    def grip(self, key: str, closed: bool) -> None:
        """Close or open the gripper of the hand."""
        with self._changed:
            self._refuse_stranger(key)
            self._turned = True
            self._set(closes={**self._now.closes, self._now.hand: closed})

    def pause(self, why: str) -> None:
        """Let nothing be done; anybody may."""
        with self._changed:
            self._set(paused=why or "paused", motion={})
            self._taps = {}

    def go_on(self) -> None:
        """End a pause."""
        with self._changed:
            self._set(paused="")

    def end(self, ending: Ending, name: str) -> None:
        """Say what the episode was, which ends it and any pause."""
        with self._changed:
            self._set(ending=ending, ended_by=name, paused="")

    def lose(self, key: str, why: str) -> bool:
        """Take note that somebody is gone; return whether they were in control."""
        with self._changed:
            if self._now.controller != key:
                return False
            self._release()
            if self._on_loss == "pause":
                self._set(paused=self._now.paused or why)  # somebody's pause stays theirs
            return True

    def _take(self) -> Wishes:
        seen = self._seen()
        self._taps, self._turned = {}, False
        self._now = replace(self._now, ending=None, ended_by="")
        return seen

    def _seen(self) -> Wishes:
        held = self._now.motion
        return replace(self._now, motion={**held, **{axis: v for axis, v in self._taps.items() if not held.get(axis)}})

    def _release(self) -> None:
        self._taps, self._turned = {}, False
        self._set(controller=None, name="", motion={}, closes={})

    def _set(self, **changes: object) -> None:
        self._now = replace(self._now, **changes)  # type: ignore[arg-type]
        self._changed.notify_all()

    def _refuse_other(self, key: str) -> None:
        if self._now.controller not in (None, key):
            raise Refused(f"{self._now.name} is in control")

    def _refuse_stranger(self, key: str) -> None:
        if self._now.controller != key:
            raise Refused(f"{self._now.name} is in control" if self._now.controller else "take over first")
