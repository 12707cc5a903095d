"""From the `alerts` block to what looks after a run."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rl_lab.config.alerts import make_alarms, webhook_url
from rl_lab.config.machine import machine_numbers
from rl_lab.orchestration.alarms import Alarms
from rl_lab.orchestration.attendant import Attendant, Attendants
from rl_lab.orchestration.debugger import Debugger
from rl_lab.orchestration.monitor import Monitor
from rl_lab.orchestration.orchestrator import Orchestrator
from rl_lab.tracking.alert_channels import Channel, DesktopChannel, FileChannel, WebhookChannel
from rl_lab.tracking.run_directory import RunDirectory

ALERTS_FILE = "alerts.jsonl"


def open_alarms(config: Mapping[str, Any], run: RunDirectory) -> Alarms | None:
    """Return the alarms of a run, or None where its config has no rules."""
    alerts = config["alerts"]
    alarms = make_alarms(alerts)
    if not alarms:
        return None
    machine = partial(machine_numbers, run.path)
    return Alarms(alarms, run.path.name, open_channels(alerts, run.path), machine, 2 * alerts["timeout_s"])


def attend(orchestrator: Orchestrator, alarms: Alarms | None, *, debug: bool) -> Orchestrator:
    """Let a run respond to its alerts, and look at itself where it is to be debugged."""
    members: list[Attendant] = []
    if alarms is not None:
        alarms.attach(orchestrator.tracker)
        members.append(Monitor(orchestrator, alarms))
    if debug:
        members.append(Debugger(orchestrator))
    if members:
        orchestrator.attendant = Attendants(members)
    return orchestrator


def open_channels(alerts: Mapping[str, Any], directory: Path) -> dict[str, Channel]:
    """Return the channels beside the log; nothing is opened before the first alert."""
    timeout_s, url = alerts["timeout_s"], webhook_url(alerts)
    file = directory / ALERTS_FILE if alerts["file"] is None else Path(alerts["file"]).expanduser()
    channels: dict[str, Channel] = {"file": FileChannel(file), "desktop": DesktopChannel(timeout_s)}
    return channels if url is None else {**channels, "webhook": WebhookChannel(url, timeout_s)}
