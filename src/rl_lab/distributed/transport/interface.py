"""What an actor and a learner see of the transport, whatever carries it.

An actor's control loop calls `send` after each step and `newest_weights` between two steps. A learner's loop calls
`receive`, puts what it gets into its buffer, saves `get_state` with its checkpoint and calls `publish` now and then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

from torch import Tensor

from rl_lab.core.errors import LabError
from rl_lab.core.trees import Tree


class TransportError(LabError):
    """The transport refuses something, or cannot go on; the message is one line and says what to do."""


class NoRoom(TransportError):
    """A step was not recorded because there is no room for it; there may be later."""


class Received(NamedTuple):
    """A step as the learner gets it: for each (actor, run) `seq` counts up by one, without gaps."""

    actor: str
    run: str
    seq: int
    step: Tree


class Weights(NamedTuple):
    """A whole version of the published tensors."""

    version: int
    tensors: dict[str, Tensor]
    is_stored: bool = False  # an earlier process got it: what it tells beside the weights may be over


class SenderStatus(NamedTuple):
    """How far an actor's steps have come."""

    is_connected: bool
    next_seq: int  # of the next step
    acknowledged: int  # all steps before this one are durable at the learner
    error: str  # why it is not connected, if it is not


class ReceiverStatus(NamedTuple):
    """Who is there, and what waits."""

    num_connected: int  # actors
    num_unread: int  # steps that `receive` has not returned


class Question(Protocol):
    """What an actor asks: how to act. The one who answers does so once."""

    actor: str
    run: str
    payload: bytes

    def answer(self, payload: bytes) -> None:
        """Give the answer."""


class Answer(Protocol):
    """What will come of a question."""

    def done(self) -> bool:
        """Return whether it has come, or never will."""

    def payload(self) -> bytes | None:
        """Return it; None where none came."""


class Closing:
    """A `with` block that closes."""

    def close(self) -> None:
        """Stop all threads and let go of all files."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()


class Sender(Closing, ABC):
    """The actor's end."""

    @property
    @abstractmethod
    def run(self) -> str:
        """Return the name of the run of this actor, within which its steps are counted."""

    @abstractmethod
    def send(self, step: Tree, timeout_s: float | None = None, *, is_last: bool = False) -> int:
        """Record a step and return its number; waits while there is no room, at most `timeout_s`.

        Raises NoRoom when there is no room in time: this step was then not recorded, and all steps before it were.
        Raises TransportError when the learner will never take the steps, or none can be recorded; it says whether this
        one was. `is_last` records a step also beyond the size that was agreed, as long as the disk has room.
        """

    @abstractmethod
    def newest_weights(self) -> Weights | None:
        """Return the newest whole version if there is one that was not returned before. Does not wait."""

    @abstractmethod
    def flush(self, timeout_s: float) -> bool:
        """Return whether within `timeout_s` all recorded steps were durable at the learner."""

    def ask(self, payload: bytes, timeout_s: float) -> Answer | None:
        """Ask the learner how to act, without waiting; None when it cannot be asked now."""
        return None

    @abstractmethod
    def status(self) -> SenderStatus:
        """Return how far the steps have come."""


class Receiver(Closing, ABC):
    """The learner's end."""

    address = ""  # where actors find it, if it can be dialled

    @abstractmethod
    def receive(self, max_steps: int, timeout_s: float) -> list[Received]:
        """Return the next steps, at most `max_steps`, none when none came in time; those of an actor are in order."""

    @abstractmethod
    def publish(self, tensors: Mapping[str, Tensor]) -> int:
        """Offer new weights to all actors and return their version."""

    @abstractmethod
    def get_state(self) -> dict[str, Any]:
        """Return the cursor: which steps `receive` has returned."""

    @abstractmethod
    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on after the steps that had been returned when `state` was taken."""

    @abstractmethod
    def release(self, state: Mapping[str, Any]) -> None:
        """Delete what came before the cursor of the oldest checkpoint that somebody may still resume."""

    def serve(self, question_bytes: int) -> None:
        """Let actors ask how to act, with questions of this size."""

    def questions(self) -> Sequence[Question]:
        """Return the questions that wait for an answer."""
        return ()

    @abstractmethod
    def status(self) -> ReceiverStatus:
        """Return who is there now, and what waits."""
