"""What a run does about its alerts: stop, lower its learning rates, or go back to a good checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rl_lab.core.errors import NotFiniteError
from rl_lab.orchestration.alarms import Alarms
from rl_lab.orchestration.attendant import Attendant, WayBack
from rl_lab.orchestration.signals import Interrupted
from rl_lab.tracking.alarm import Alarm, Alert
from rl_lab.tracking.alert_rules import Nan
from rl_lab.tracking.atomic import remove_directory

if TYPE_CHECKING:
    from rl_lab.orchestration.orchestrator import Orchestrator

STATE = "alerts"  # in a checkpoint


class StoppedByAlert(Interrupted):
    """The run stopped because an alert asks for it, after a checkpoint."""

    def __init__(self, message: str) -> None:
        Exception.__init__(self, message)
        self.exit_code = 1


class RollBack(Interrupted):
    """An alert asks to go on from an earlier checkpoint, with everything made anew from it."""

    def __init__(self, way: WayBack) -> None:
        Exception.__init__(self, f"goes back to checkpoint {way.checkpoint.name} for alert {way.alert.message}")
        self.exit_code, self.way = 1, way


class Monitor(Attendant):
    """Responds to the alerts of a run, between two actions or when the run fails.

    Attributes:
        granted: Updates that roll backs have passed over since the run began.
        left: How many of those are still to come.
    """

    def __init__(self, orchestrator: Orchestrator, alarms: Alarms) -> None:
        self._run, self._alarms = orchestrator, alarms
        self.granted = self.left = 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, NotFiniteError):
                self._fail(error)
        finally:
            self._alarms.finish(is_whole=error is None)

    def settle(self) -> None:
        """Respond to what was told in the last action."""
        for alarm, alert in self._alarms.take():
            if alarm.respond == "stop":
                self._stop(alert)
            elif alarm.respond == "lower_rate" and alarm.may_respond:
                alarm.responded += 1
                self._lower(alarm, 1)
            elif alarm.respond == "roll_back":
                way = self._way_back(alarm, alert)
                if way is None:
                    why = f"it was rolled back {alarm.times} times" if not alarm.may_respond else "no good checkpoint"
                    self._stop(alert, f"; {why}")
                else:
                    raise RollBack(way)

    def passes_over(self) -> bool:
        """Return whether the next update is passed over, and count it."""
        if self.left == 0:
            return False
        self.left -= 1
        return True

    def begin_again(self, way: WayBack) -> None:
        """Take note of what the checkpoint does not know: why the run is there again."""
        for name, count in way.responded.items():
            alarm = self._alarms.alarms[name]
            more, alarm.responded = count - alarm.responded, count
            if alarm.factor is not None and more:
                self._lower(alarm, more)
        self.left += way.granted - self.granted
        self.granted = way.granted
        self._alarms.log(way.alert)
        alarm, name = self._alarms.alarms[way.alert.rule], way.checkpoint.name
        times = f"({alarm.responded} of {alarm.times} times)"
        text = f"{alarm.name}: goes on from checkpoint {name}, without the next {self.left} updates {times}"
        self._alarms.event_of(
            "rolled_back",
            message=text,
            checkpoint=name,
            skips=self.left,
            times=alarm.responded,
            step=self._run.counters.env_steps,
            updates=self._run.counters.updates,
        )

    def get_state(self) -> dict[str, Any]:
        """Return what alarms remember and how many updates are passed over."""
        return {STATE: {"alarms": self._alarms.get_state(), "granted": self.granted, "left": self.left}}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore it."""
        if STATE in state:
            self._alarms.set_state(state[STATE]["alarms"])
            self.granted, self.left = state[STATE]["granted"], state[STATE]["left"]

    def _fail(self, error: NotFiniteError) -> None:
        """Tell that the run fails because of NaN or infinity, and go back where an alarm asks for it."""
        position = {"step": self._run.counters.env_steps, "updates": self._run.counters.updates}
        ways: list[WayBack] = []
        for alarm in self._alarms.alarms.values():
            if not isinstance(alarm.rule, Nan):
                continue
            alert = alarm.fire(str(error), position, self._run.tracker.run.path.name)
            if not alarm.is_wrong:
                self._alarms.tell(alarm, alert)
            way = self._way_back(alarm, alert) if alarm.respond == "roll_back" else None
            ways += [] if way is None else [way]
        if ways:
            raise RollBack(ways[0]) from error

    def _stop(self, alert: Alert, why: str = "") -> None:
        self._run.save(is_final=True)
        message = f"by alert {alert.message}{why}"
        self._alarms.event_of("stopped", message=message, step=alert.step, rule=alert.rule)
        raise StoppedByAlert(f"stopped {message}")

    def _lower(self, alarm: Alarm, times: int) -> None:
        assert alarm.factor is not None, "checked at start"
        rates = self._run.context.optimizers.lower_rates(alarm.factor**times)
        self._run.static.renew()
        listed = ", ".join(f"{name} {old:.4g} -> {new:.4g}" for name, (old, new) in rates.items())
        text = f"{alarm.name}: learning rates {listed}"
        self._alarms.event_of("lowered_rate", message=text, step=self._run.counters.env_steps, rule=alarm.name)

    def _way_back(self, alarm: Alarm, alert: Alert) -> WayBack | None:
        """Return the newest checkpoint from when all was well, if one is left; newer ones are dropped."""
        if not alarm.may_respond:
            return None
        saved = self._run.checkpoints.entries()
        good = [entry for entry in saved if isinstance(alarm.rule, Nan) or _is_before(entry.counters, alarm.fine)]
        if not good:
            return None
        for entry in saved[saved.index(good[-1]) + 1 :]:
            remove_directory(entry.path)
        responded = {
            each.name: each.responded + (each is alarm)
            for each in self._alarms.alarms.values()
            if each.respond == "roll_back"
        }
        undone = self._run.counters.updates - good[-1].counters["updates"]
        return WayBack(good[-1].path, alert, responded, self.granted + max(1, undone))


def _is_before(counters: Mapping[str, int], fine: tuple[int, int] | None) -> bool:
    return fine is not None and counters["env_steps"] <= fine[0] and counters["updates"] <= fine[1]
