"""Questions of actors that wait for the learner, which answers when it can: between two of its own actions."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rl_lab.distributed.transport.interface import TransportError
from rl_lab.distributed.transport.step_log import Stream

_LOOK_S = 0.05  # between two looks whether a question is still wanted


class WaitingQuestion:
    """A question whose call waits."""

    def __init__(self, stream: Stream, payload: bytes) -> None:
        self.actor, self.run = stream
        self.payload = payload
        self._answered = threading.Event()
        self._answer = b""

    def answer(self, payload: bytes) -> None:
        """Let the call return."""
        self._answer = payload
        self._answered.set()

    def wait(self, is_wanted: Callable[[], bool]) -> bytes | None:
        """Return the answer, or None when nobody wants it any more."""
        while not self._answered.wait(_LOOK_S):
            if not is_wanted():
                return None
        return self._answer


class Questions:
    """One question of each actor at a time: a newer one takes the place of an older."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: dict[str, WaitingQuestion] = {}
        self.num_bytes: int | None = None  # of a question; None: nobody answers

    def put(self, stream: Stream, payload: bytes) -> WaitingQuestion:
        """Let a question wait; one of another size is refused."""
        if self.num_bytes is None:
            raise TransportError("this learner does not act for actors (transport.inference is actor)")
        if len(payload) != self.num_bytes:
            raise TransportError(f"a question has {len(payload)} bytes instead of {self.num_bytes}")
        question = WaitingQuestion(stream, payload)
        with self._guard:
            self._waiting[stream.actor] = question
        return question

    def take(self) -> list[WaitingQuestion]:
        """Return those that wait."""
        with self._guard:
            taken = list(self._waiting.values())
            self._waiting.clear()
        return taken

    def forget(self, question: WaitingQuestion) -> None:
        """Forget a question that nobody waits for any more."""
        with self._guard:
            if self._waiting.get(question.actor) is question:
                del self._waiting[question.actor]
