"""Where alerts are told beside a run's own log: a file, the desktop, a webhook. None of them ever stops a run."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import threading
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path

from rl_lab.core.durable import reason
from rl_lab.tracking.alarm import Alert

NOTIFY = "notify-send"
_MOST_WAITING = 100  # alerts; more are not told


class Channel(ABC):
    """Tells of alerts."""

    @abstractmethod
    def tell(self, alert: Alert) -> None:
        """Tell of one; raises OSError when that cannot be done, ValueError when it never can."""


class FileChannel(Channel):
    """Appends a line of JSON to a file, which several runs may share; nothing is ever cut off it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def tell(self, alert: Alert) -> None:
        """Append the alert, in one write."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            os.write(descriptor, json.dumps(alert.to_json()).encode() + b"\n")
        finally:
            os.close(descriptor)


class DesktopChannel(Channel):
    """Shows a notification, by `notify-send`."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    def tell(self, alert: Alert) -> None:
        """Show it."""
        program = shutil.which(NOTIFY)
        if program is None:
            raise OSError(f"{NOTIFY} is not installed")
        command = [program, "--app-name=lab", "--", f"lab: {alert.run}", alert.message]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=self._timeout_s)
        except subprocess.SubprocessError as error:
            raise OSError(f"{NOTIFY}: {error}") from error


class WebhookChannel(Channel):
    """Posts the alert as JSON, with the line for people also as `text`, which chat services show."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._url, self._timeout_s = url, timeout_s

    def tell(self, alert: Alert) -> None:
        """Post it and wait for the answer."""
        content = {**alert.to_json(), "detail": alert.text, "text": f"{alert.run}: {alert.message}"}
        request = urllib.request.Request(
            self._url, json.dumps(content).encode(), {"Content-Type": "application/json"}, method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s):  # refuses answers of 400 and above
                pass
        except HTTPException as error:
            raise OSError(f"{type(error).__name__}: {error}") from error


class Courier:
    """Tells alerts on a thread of its own, so that nobody waits for a slow channel.

    Attributes:
        failures: What could not be told, to be fetched and said elsewhere.
    """

    def __init__(self, channels: Mapping[str, Channel]) -> None:
        self._channels = dict(channels)
        self._waiting: queue.Queue[tuple[str, Alert] | None] = queue.Queue(_MOST_WAITING)
        self._thread: threading.Thread | None = None
        self.failures: queue.SimpleQueue[str] = queue.SimpleQueue()

    def send(self, name: str, alert: Alert) -> None:
        """Let an alert be told on a channel."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="alerts", daemon=True)
            self._thread.start()
        try:
            self._waiting.put_nowait((name, alert))
        except queue.Full:
            self.failures.put(f"{name}: {_MOST_WAITING} alerts are waiting already")

    def close(self, timeout_s: float) -> None:
        """Wait until all is told, or for so long; what is left then is lost."""
        if self._thread is None:
            return
        try:
            self._waiting.put(None, timeout=timeout_s)
            self._thread.join(timeout_s)
        except queue.Full:
            pass
        if self._thread.is_alive():
            self.failures.put(f"not all alerts could be told within {timeout_s:g} s")
        self._thread = None

    def _work(self) -> None:
        while (job := self._waiting.get()) is not None:
            name, alert = job
            if name not in self._channels:  # a webhook whose URL is in another process's environment
                self.failures.put(f"{name}: it is not known here where that is")
                continue
            try:
                self._channels[name].tell(alert)
            except OSError as error:
                self.failures.put(f"{name}: {reason(error)}")
            except ValueError as error:  # a URL that is none
                self.failures.put(f"{name}: {error}")
