"""Which session speaks for an actor: the newest, and one that was replaced does not come back."""

from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass, field
from typing import Protocol

from rl_lab.distributed.transport.interface import TransportError
from rl_lab.distributed.transport.limits import Bucket, Limits
from rl_lab.distributed.transport.step_log import Stream

_REMEMBERED = 64  # processes of an actor that were replaced


class Call(Protocol):
    """A running call that can be ended."""

    def cancel(self) -> bool:
        """End it."""


class Replaced(TransportError):
    """Another process speaks for this actor now."""


@dataclass
class Session:
    """What an actor's Hello opened; its calls name it by its token."""

    token: str
    process: str
    stream: Stream
    steps: Bucket  # how fast it may send them
    questions: Bucket  # how fast it may ask
    calls: dict[str, Call] = field(default_factory=dict)


class Sessions:
    """The current session of every actor."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._guard = threading.Lock()
        self._current: dict[str, Session] = {}
        self._replaced: dict[str, list[str]] = {}
        self._hellos: dict[str, Bucket] = {}

    def admit(self, actor: str, process: str) -> None:
        """Raise Replaced for a process that another one has replaced, TransportError for one too many or too often."""
        with self._guard:
            self._reject_one_too_many(actor)
            if process in self._replaced.get(actor, ()):
                raise Replaced(f"another process speaks for {actor} now; this one is not taken back")
            if self._hellos.setdefault(actor, Bucket(self._limits.hellos_per_s)).take(1) > 0:
                raise TransportError(f"{actor} says hello more than {self._limits.hellos_per_s:g} times a second")

    def open(self, process: str, stream: Stream) -> Session:
        """Begin a session, and end the one that the actor had."""
        rate = self._limits.steps_per_s
        session = Session(secrets.token_hex(16), process, stream, Bucket(rate), Bucket(rate))
        with self._guard:
            old = self._current.get(stream.actor)
            self._current[stream.actor] = session
            if old is not None and old.process != process:
                known = self._replaced.setdefault(stream.actor, [])
                known.append(old.process)
                del known[:-_REMEMBERED]
        if old is not None:
            self.end(old)
        return session

    def find(self, token: str) -> Session:
        """Return the session of a token."""
        given = token.encode()
        with self._guard:
            for session in self._current.values():
                if secrets.compare_digest(session.token.encode(), given):
                    return session
        raise TransportError("the session is not known; say hello first")

    def enter(self, session: Session, name: str, call: Call) -> None:
        """Know a call of a session, and end an older one of the same name; raises TransportError for one too many."""
        with self._guard:
            if name == "Push":  # several may have said hello before the first of them did this
                self._reject_one_too_many(session.stream.actor)
            old = session.calls.get(name)
            session.calls[name] = call
        if old is not None:
            old.cancel()

    def end(self, session: Session) -> None:
        """End the calls of a session."""
        with self._guard:
            calls = list(session.calls.values())
        for call in calls:
            call.cancel()

    def leave(self, session: Session, name: str, call: Call) -> None:
        """Forget a call that has ended."""
        with self._guard:
            if session.calls.get(name) is call:
                del session.calls[name]

    def _reject_one_too_many(self, actor: str) -> None:
        others = sum("Push" in known.calls for name, known in self._current.items() if name != actor)
        if others >= self._limits.actors:
            raise TransportError(f"{actor} is one too many: {others} actors are here (transport.limits.actors)")

    def is_current(self, session: Session) -> bool:
        """Return whether no newer session has taken its place."""
        return self._current.get(session.stream.actor) is session

    def connected(self) -> set[Stream]:
        """Return the streams that are being sent now."""
        with self._guard:
            return {session.stream for session in self._current.values() if "Push" in session.calls}
