"""A named alert: a rule, who is told, and what is done about it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rl_lab.tracking.alert_rules import FINE, Response, Rule
from rl_lab.tracking.sinks import Row


@dataclass(frozen=True)
class Alert:
    """What is told."""

    rule: str
    kind: str
    text: str
    run: str
    step: int
    updates: int
    time: float  # seconds since 1970
    response: Response | None = None

    @property
    def message(self) -> str:
        """Return the line for people."""
        return f"{self.rule}: {self.text} (step {self.step:,})"

    def to_json(self) -> dict[str, Any]:
        """Return what files and webhooks get."""
        return {**asdict(self), "message": self.message}


class Alarm:
    """Tells of a rule when something becomes wrong, and again when it was right in between or the rule's patience ends.

    Args:
        name: In the config.
        kind: Of its rule.
        rule: What it looks for.
        channels: Where it is told.
        respond: What the run does about it; None: nothing.
        factor: That the learning rate is multiplied by: to lower it, or None for a roll back that keeps it.
        times: How often it responds at most.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        rule: Rule,
        *,
        channels: Sequence[str] = ("log",),
        respond: Response | None = None,
        factor: float | None = None,
        times: int = 3,
    ) -> None:
        self.name, self.kind, self.rule, self.channels = name, kind, rule, tuple(channels)
        self.respond, self.factor, self.times = respond, factor, times
        self.is_wrong, self._told_at = False, 0
        self.responded = 0
        self.fine: tuple[int, int] | None = None  # env steps and updates at the last row that was right

    def look(self, row: Row, run: str) -> Alert | None:
        """Return the alert when the row shows that something has become wrong."""
        found = self.rule.look(row)
        if found is None:
            return None
        was_wrong, self.is_wrong = self.is_wrong, found != FINE
        if not self.is_wrong:
            self.fine = (row["step"], row["updates"])
            return None
        patience = self.rule.patience
        is_due = not was_wrong or (patience is not None and row["step"] - self._told_at >= patience)
        return self.fire(found, row, run) if is_due else None

    def fire(self, text: str, position: Row, run: str) -> Alert:
        """Return the alert of what is wrong."""
        self._told_at = position["step"]
        return Alert(self.name, self.kind, text, run, position["step"], position["updates"], time.time(), self.respond)

    @property
    def may_respond(self) -> bool:
        """Return whether it has not yet responded as often as it may."""
        return self.respond is not None and self.responded < self.times

    def get_state(self) -> dict[str, Any]:
        """Return what it remembers."""
        fine = None if self.fine is None else list(self.fine)
        known = {"kind": self.kind, "wrong": self.is_wrong, "told_at": self._told_at, "fine": fine}
        return {**known, "responded": self.responded, "rule": self.rule.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self.is_wrong, self._told_at, self.responded = state["wrong"], state["told_at"], state["responded"]
        self.fine = None if state["fine"] is None else tuple(state["fine"])
        self.rule.set_state(state["rule"])
