"""The alerts of a run: every row goes through the rules, and what is wrong is told and waits for a response."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from rl_lab.core.errors import unknown_name
from rl_lab.tracking.alarm import Alarm, Alert
from rl_lab.tracking.alert_channels import Channel, Courier
from rl_lab.tracking.sinks import Row, Sink, numbers
from rl_lab.tracking.tracker import Tracker

LOG = "log"
Machine = Callable[[], Mapping[str, float]]  # what the machine is short of, by the names of a row


class Alarms(Sink):
    """Looks at the rows of one run.

    Args:
        alarms: Named in the config.
        run: How the run is called in alerts.
        channels: By name; the log is the tracker's.
        machine: Asked with every row of `perf.jsonl` where a rule wants to know.
        patience_s: How long the end of a run waits for channels.
    """

    def __init__(
        self,
        alarms: Sequence[Alarm],
        run: str,
        channels: Mapping[str, Channel],
        machine: Machine,
        patience_s: float,
    ) -> None:
        self.alarms, self._run, self._patience_s = {alarm.name: alarm for alarm in alarms}, run, patience_s
        self._courier = Courier(channels)
        self._machine = machine if any(alarm.rule.needs_machine for alarm in alarms) else dict
        self._waiting: list[tuple[Alarm, Alert]] = []
        self._seen: set[str] = set()
        self._tracker: Tracker | None = None

    def attach(self, tracker: Tracker) -> None:
        """Tell alerts in this tracker's events, and let its rows say what the machine is short of."""
        self._tracker, watched = tracker, tracker.watched
        tracker.watched = lambda: {**watched(), **self._machine()}

    def row(self, row: Row) -> None:
        """Let every rule look at a row of metrics."""
        self._seen |= numbers(row).keys()
        for alarm in self.alarms.values():
            alert = alarm.look(row, self._run)
            if alert is not None:
                self.tell(alarm, alert)

    def perf(self, row: Row) -> None:
        """Let every rule look at what is no function of the run."""
        self.row(row)

    def tell(self, alarm: Alarm, alert: Alert) -> None:
        """Tell an alert on its channels, and keep it for a response."""
        if LOG in alarm.channels:
            self.log(alert)
        for name in alarm.channels:
            if name != LOG:
                self._courier.send(name, alert)
        if alarm.respond is not None:
            self._waiting.append((alarm, alert))

    def log(self, alert: Alert) -> None:
        """Note an alert in the run's events, which the terminal shows."""
        self.event_of("alert", **{key: value for key, value in alert.to_json().items() if key != "time"})

    def event_of(self, event: str, **fields: Any) -> None:
        """Note what has been done."""
        assert self._tracker is not None, "attach comes first"
        fields["rule_kind"] = fields.pop("kind", None)
        self._tracker.event(event, **{key: value for key, value in fields.items() if value is not None})

    def take(self) -> list[tuple[Alarm, Alert]]:
        """Return the alerts that wait for a response, and forget them; tell what could not be told."""
        while not self._courier.failures.empty():
            self.event_of("alert_failed", message=f"an alert was not told: {self._courier.failures.get()}")
        waiting, self._waiting = self._waiting, []
        return waiting

    def finish(self, *, is_whole: bool) -> None:
        """Wait for the channels; after a whole run, name metrics that no row had."""
        self._courier.close(self._patience_s)
        self.take()
        for alarm in self.alarms.values() if is_whole else ():
            metric = alarm.rule.metric
            if metric and not any(fnmatchcase(key, metric) for key in self._seen):
                text = unknown_name("metric", metric, self._seen)
                self.event_of("alert_idle", message=f"alert {alarm.name!r} never had anything to look at: {text}")

    def get_state(self) -> dict[str, Any]:
        """Return what the alarms remember."""
        return {name: alarm.get_state() for name, alarm in self.alarms.items()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore it; those that are new in the config begin anew, and so do those of another kind now."""
        for name, alarm in self.alarms.items():
            if name in state and state[name]["kind"] == alarm.kind:
                alarm.set_state(state[name])
