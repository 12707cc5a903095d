"""What an onlooker needs of the configs of runs: their alert rules and where alerts are told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from rl_lab.config.alerts import AlertsConfig, check_rules, make_alarms
from rl_lab.config.machine import machine_numbers
from rl_lab.config.monitoring import open_channels
from rl_lab.config.resume import read_config
from rl_lab.config.typed_values import coerce_model
from rl_lab.core.durable import reason
from rl_lab.core.errors import ConfigError, RunDirectoryError
from rl_lab.orchestration.alarms import LOG
from rl_lab.tracking.alarm import Alarm, Alert
from rl_lab.tracking.alert_channels import Courier
from rl_lab.tracking.alert_rules import Heartbeat
from rl_lab.tracking.onlooker import Onlooker
from rl_lab.tracking.run_directory import RunDirectory

_LIVES = "heartbeat"


def read_rules(path: Path) -> dict[str, Any]:
    """Return the alerts block of a YAML file, checked; the file may also be the block itself."""
    try:
        tree = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"--rules {path}: {reason(error)}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"--rules {path}: {' '.join(str(error).split())}") from error
    if not isinstance(tree, Mapping):
        raise ConfigError(f"--rules {path}: expected a block `alerts` with `rules`")
    alerts = coerce_model("alerts", tree.get("alerts", tree), AlertsConfig)
    for name, node in alerts["rules"].items():
        if node is not None and node.get("respond") is not None:
            raise ConfigError(f"alerts.rules.{name}.respond: only the run itself can respond, an onlooker tells")
    return {**alerts, "rules": check_rules(alerts)}


class Watched:
    """A run that is looked at by its own rules, by those given and for signs of life.

    What the run tells itself is only returned here; on channels are told those that were given, and that it is dead.
    """

    def __init__(self, path: Path, rules: Mapping[str, Any] | None = None) -> None:
        self._run = RunDirectory.open(path)
        own = self._own_rules()
        self._onlooker = Onlooker(self._run, lambda: [*make_alarms(own), *_given(own, rules)])
        self._given = {alarm.name for alarm in _given(own, rules)}
        self._patience_s = 2 * (rules or own)["timeout_s"]
        self._courier = Courier(open_channels(own, path) if rules is None else open_channels(rules, path))
        self._own_courier = Courier(open_channels(own, path))

    def look(self, now: float) -> list[Alert]:
        """Return what has become wrong since the last look, and tell what is this one's to tell."""
        found = self._onlooker.look(machine_numbers(self._run.path), now)
        for alarm, alert in found:
            is_given = alarm.name in self._given
            for name in alarm.channels if is_given or isinstance(alarm.rule, Heartbeat) else ():
                if name != LOG:
                    (self._courier if is_given else self._own_courier).send(name, alert)
        return [alert for _, alert in found]

    def failures(self) -> list[str]:
        """Wait until all is told and return what could not be."""
        failed = []
        for courier in (self._courier, self._own_courier):
            courier.close(self._patience_s)
            while not courier.failures.empty():
                failed.append(courier.failures.get())
        return failed

    def count_wrong(self) -> int:
        """Return how many of its rules say that something is wrong now."""
        return sum(alarm.is_wrong for alarm in self._onlooker.alarms)

    def _own_rules(self) -> dict[str, Any]:
        """Return the alerts block of the run, which was checked when it began; of one that died before that, none."""
        alerts = AlertsConfig().model_dump()
        try:
            return alerts | dict(read_config(self._run).get("alerts", {}))
        except (RunDirectoryError, ConfigError):
            return alerts


def _given(own: Mapping[str, Any], rules: Mapping[str, Any] | None) -> list[Alarm]:
    """Return the alarms of the onlooker; that a run lives is always among all."""
    given = [] if rules is None else make_alarms(rules)
    is_watched = any(isinstance(alarm.rule, Heartbeat) for alarm in [*given, *make_alarms(own)])
    return given if is_watched else [*given, Alarm(_LIVES, _LIVES, Heartbeat(), channels=(rules or own)["channels"])]
