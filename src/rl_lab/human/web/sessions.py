"""The people at the page: one of them may be in control, and is watched: who falls silent has let go."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any

from rl_lab.human.operators.desk import Desk, Refused
from rl_lab.human.web.access import MAX_COMMANDS_PER_S, MAX_SESSIONS, OPERATOR_SEATS, Denied, Role, check_name

PRESENT_S, FORGET_S = 5.0, 60.0  # of silence: somebody is not there any more; the session is over


@dataclass
class Session:
    """One browser."""

    key: str
    name: str
    role: Role
    heard: float  # monotonic seconds
    credit: float = MAX_COMMANDS_PER_S


class Sessions:
    """Turns commands of the page into wishes on the desk.

    Args:
        desk: Of the operator.
        dead_man_s: Seconds of silence after which whoever is in control has let go.
        is_closed: Tells whether a hand's gripper is closed.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        desk: Desk,
        dead_man_s: float,
        is_closed: Callable[[str], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._desk, self._dead_man_s, self._is_closed, self._clock = desk, dead_man_s, is_closed, clock
        self._sessions: dict[str, Session] = {}
        self._lock = Lock()

    @property
    def people(self) -> list[str]:
        """Return who is there."""
        with self._lock:
            return sorted({session.name for session in self._sessions.values() if self._is_near(session, PRESENT_S)})

    def join(self, name: object, role: Role) -> str:
        """Let somebody in and return the key of the session."""
        name = check_name(name)
        with self._lock:
            now = self._clock()
            self._sessions = {key: s for key, s in self._sessions.items() if now - s.heard < FORGET_S}
            seats = MAX_SESSIONS if role == "operator" else MAX_SESSIONS - OPERATOR_SEATS
            if len(self._sessions) >= seats:
                raise Denied(503, f"{len(self._sessions)} people are here already")
            key = secrets.token_urlsafe(16)
            self._sessions[key] = Session(key, name, role, now)
        return key

    def command(self, message: Mapping[str, Any]) -> None:
        """Do what a session asks for. Raises Denied or Refused."""
        session = self._heard(message.get("session"))
        deed = message.get("do")
        if deed in ("beat", "leave"):
            if deed == "leave":
                self._leave(session)
            return
        if session.role != "operator":
            raise Denied(403, "viewers only look")
        if deed not in DEEDS:
            raise Denied(400, f"do: one of {', '.join(('beat', 'leave', *DEEDS))}")
        DEEDS[deed](self, session, message)

    def check_silence(self) -> str | None:
        """Take control away from one who fell silent or has left, and return why; None: all is well."""
        wishes = self._desk.look()
        if wishes.controller is None:
            return None
        with self._lock:
            session = self._sessions.get(wishes.controller)  # None: forgotten, or left before a last command was done
            if session is not None and self._is_near(session, self._dead_man_s):
                return None
        why = f"{wishes.name} {'left' if session is None else 'fell silent'} while in control"
        return why if self._desk.lose(wishes.controller, why) else None

    def _is_near(self, session: Session, seconds: float) -> bool:
        return self._clock() - session.heard <= seconds

    def _heard(self, key: object) -> Session:
        """Return the session of a command, and keep those who send too many waiting."""
        with self._lock:
            session = self._sessions.get(key) if isinstance(key, str) else None
            if session is None:
                raise Denied(410, "the session is over: reload the page")
            now = self._clock()
            session.credit = min(MAX_COMMANDS_PER_S, session.credit + (now - session.heard) * MAX_COMMANDS_PER_S)
            session.heard = now
            if session.credit < 1.0:
                raise Denied(429, f"more than {MAX_COMMANDS_PER_S:g} commands per second")
            session.credit -= 1.0
            return session

    def _leave(self, session: Session) -> None:
        with self._lock:
            self._sessions.pop(session.key, None)
        self._desk.lose(session.key, f"{session.name} left while in control")

    def _take_over(self, session: Session, message: Mapping[str, Any]) -> None:
        self._desk.take_over(session.key, session.name)

    def _hand_back(self, session: Session, message: Mapping[str, Any]) -> None:
        self._desk.hand_back(session.key)

    def _jog(self, session: Session, message: Mapping[str, Any]) -> None:
        motion = message.get("motion")
        if not isinstance(motion, Mapping) or len(motion) > 8 or not all(_is_number(v) for v in motion.values()):
            raise Denied(400, "motion: a number from -1 to 1 for each axis")
        self._desk.move(session.key, {str(axis): float(value) for axis, value in motion.items()})

    def _hand(self, session: Session, message: Mapping[str, Any]) -> None:
        self._desk.choose(session.key, str(message.get("hand", ""))[:64])

    def _gripper(self, session: Session, message: Mapping[str, Any]) -> None:
        self._desk.grip(session.key, not self._is_closed(self._desk.look().hand))

    def _pause(self, session: Session, message: Mapping[str, Any]) -> None:
        self._desk.pause(f"paused by {session.name}")

    def _continue(self, session: Session, message: Mapping[str, Any]) -> None:
        self._desk.go_on()

    def _success(self, session: Session, message: Mapping[str, Any]) -> None:
        self._speak(session)
        self._desk.end("success", session.name)

    def _failure(self, session: Session, message: Mapping[str, Any]) -> None:
        self._speak(session)
        self._desk.end("failure", session.name)

    def _abort(self, session: Session, message: Mapping[str, Any]) -> None:
        self._speak(session)
        self._desk.end("abort", session.name)

    def _speak(self, session: Session) -> None:
        """Refuse words on the episode of one who is in control."""
        wishes = self._desk.look()
        if wishes.controller not in (None, session.key):
            raise Refused(f"{wishes.name} is in control")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


DEEDS: dict[str, Callable[[Sessions, Session, Mapping[str, Any]], None]] = {
    "take_over": Sessions._take_over,
    "hand_back": Sessions._hand_back,
    "jog": Sessions._jog,
    "hand": Sessions._hand,
    "gripper": Sessions._gripper,
    "pause": Sessions._pause,
    "continue": Sessions._continue,
    "success": Sessions._success,
    "failure": Sessions._failure,
    "abort": Sessions._abort,
}
