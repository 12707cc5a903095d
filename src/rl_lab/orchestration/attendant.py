"""Who stands beside the training loop and may look, or ask for something between two actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from rl_lab.tracking.alarm import Alert


@dataclass(frozen=True)
class WayBack:
    """From which checkpoint a run goes on, and what it must not forget by that."""

    checkpoint: Path
    alert: Alert
    responded: dict[str, int]  # by alarm: how often each has rolled back
    granted: int  # updates passed over in all, these included


class Attendant:
    """One who does nothing. As a context it goes around the whole run."""

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def closely(self) -> AbstractContextManager[Any]:
        """Return what goes around the loop itself; errors that leave it are still to be explained and reported."""
        return nullcontext()

    def settle(self) -> None:
        """Do what is asked for, between two actions; raises Interrupted where the run ends here."""

    def passes_over(self) -> bool:
        """Return whether the next update is passed over with its batch, as it is after a roll back."""
        return False

    def inspect(self) -> None:
        """Look at what an update has done."""

    def begin_again(self, way: WayBack) -> None:
        """Learn why the run goes on from an earlier checkpoint, which has been restored."""

    def get_state(self) -> dict[str, Any]:
        """Return what goes into a checkpoint, by its name there."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `get_state` returned from a whole checkpoint, which may know nothing of it."""


class Attendants(Attendant):
    """Several as one; the first is the outermost."""

    def __init__(self, members: Sequence[Attendant]) -> None:
        self._members, self._entered = list(members), ExitStack()

    def __enter__(self) -> None:
        for member in self._members:
            self._entered.enter_context(member)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered.__exit__(kind, error, trace)

    def closely(self) -> AbstractContextManager[Any]:
        """Return all that go around the loop."""
        stack = ExitStack()
        for member in self._members:
            stack.enter_context(member.closely())
        return stack

    def settle(self) -> None:
        """Ask each."""
        for member in self._members:
            member.settle()

    def passes_over(self) -> bool:
        """Return whether any wants it."""
        return any(member.passes_over() for member in self._members)

    def inspect(self) -> None:
        """Let each look."""
        for member in self._members:
            member.inspect()

    def begin_again(self, way: WayBack) -> None:
        """Tell each."""
        for member in self._members:
            member.begin_again(way)

    def get_state(self) -> dict[str, Any]:
        """Return what all have to say."""
        return {key: value for member in self._members for key, value in member.get_state().items()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore each."""
        for member in self._members:
            member.set_state(state)
