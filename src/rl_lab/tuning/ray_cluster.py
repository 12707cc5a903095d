"""Processes on a Ray cluster, this machine's own or another one: Ray finds the place, the process is a normal `lab`.

Directories must be the same on all nodes (a shared file system); state lies there and nowhere in Ray. Ray Tune is not
used: it forgets what its schedulers know when its driver dies (`TuneController.save_to_dir` has no word of them).
"""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_lab.core.errors import UsageError
from rl_lab.tuning.slots import Slot
from rl_lab.tuning.trial_process import start_process

try:
    import ray
except ModuleNotFoundError as error:
    raise UsageError(f"--on ray: {error.name} is not installed: pip install 'rl-lab[ray]'") from error

_POLL_S = 0.05
_KNOCK_S = 10.0
_SIGKILL = -9
_STOPPED = 128 + signal.SIGTERM
_LONG = 400  # letters of an explanation by Ray


class Host:
    """On some node: starts a process and waits for it."""

    def __init__(self, words: list[str], variables: dict[str, str], log: str, folder: str) -> None:
        os.chdir(folder)
        context = ray.get_runtime_context()
        _append(log, f"on Ray node {context.get_node_id()} ({ray.util.get_node_ip_address()})")
        self._process = start_process(words, variables, Path(log))

    def is_begun(self) -> bool:
        """Return that the process was started."""
        return True

    def wait(self) -> int:
        """Return the exit code once the process has ended."""
        while (code := self._process.poll()) is None:
            time.sleep(_POLL_S)
        return code

    def terminate(self) -> None:
        """Ask the process to stop."""
        self._process.terminate()

    def kill(self) -> None:
        """End the process."""
        self._process.kill()


class RayProcess:
    """A process somewhere in the cluster."""

    def __init__(self, host: Any, log: str) -> None:
        self._host, self._log = host, log
        self._begun, self._ended = host.is_begun.remote(), host.wait.remote()
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, None while it runs or waits for its turn; a lost node counts as a kill."""
        if self._code is None and ray.wait([self._ended], timeout=0)[0]:
            try:
                self._code = ray.get(self._ended)
            except ray.exceptions.RayActorError as error:
                _append(self._log, f"error: lost on Ray: {' '.join(str(error).split())[:_LONG]}")
                self._code = _SIGKILL
            ray.kill(self._host)
        return self._code

    def terminate(self) -> None:
        """Ask it to stop; one that still waits for room never begins."""
        if not self._never_begins():
            self._host.terminate.remote()

    def kill(self) -> None:
        """End it at once."""
        if not self._never_begins():
            self._host.kill.remote()

    def _never_begins(self) -> bool:
        """Return whether it still waited for room; then it does not any more."""
        if self._code is None and not ray.wait([self._begun], timeout=0)[0]:
            ray.kill(self._host)
            self._code = _STOPPED
        return self._code is not None

    def send_signal(self, number: int) -> None:
        """Ask it to stop, or end it."""
        (self.kill if number == signal.SIGKILL else self.terminate)()


def _append(log: str, line: str) -> None:
    with open(log, "a") as file:
        file.write(f"{line}\n")


@dataclass(frozen=True)
class RayCluster:
    """Starts processes where Ray has room for them."""

    cpus: float
    gpus: float

    def __call__(self, words: Sequence[str], variables: Mapping[str, str], log: Path) -> RayProcess:
        """Start `lab WORDS` on some node."""
        own = {name: value for name, value in os.environ.items() if name.startswith("LAB_")}
        place: Any = ray.remote(Host).options(num_cpus=self.cpus, num_gpus=self.gpus, max_concurrency=3)
        return RayProcess(place.remote(list(words), own | dict(variables), str(log), os.getcwd()), str(log))

    def slots(self, parallel_jobs: int | None) -> list[Slot]:
        """Return as many slots as the nodes of the cluster have room for now; Ray gives each trial its GPUs."""
        room = self.room()
        if room < 1:
            wanted = f"{self.cpus:g} CPUs and {self.gpus:g} GPUs"
            raise UsageError(f"--on ray: a trial needs {wanted}, which no node of the cluster has")
        return [Slot(number, None) for number in range(min(parallel_jobs or room, room))]

    def room(self) -> int:
        """Return how many processes fit on the nodes that there are, each on one."""
        wanted = {"CPU": self.cpus, "GPU": self.gpus}
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        return sum(min(int(has.get(name, 0) / need) for name, need in wanted.items() if need) for has in nodes)

    def is_here_alone(self) -> bool:
        """Return whether all nodes are on this machine."""
        addresses = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
        return addresses <= {ray.util.get_node_ip_address(), "127.0.0.1"}


def _knock(address: str) -> None:
    """Raise at once where nobody listens; Ray itself would try for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    socket.create_connection((host, int(port)), timeout=_KNOCK_S).close()


def _reason(address: str, error: Exception) -> str:
    """Return in one line why there is no cluster; of another version, which of them each side has."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if not lines[0].startswith("Version mismatch"):
        return f"no cluster at {address}: {lines[0]}"
    here, there = ray.__version__, re.findall(r"Ray: (\S+)", str(error))[:1]
    versions = (
        f"Ray {', '.join(there)} there, {here} here" if there not in ([], [here]) else " ".join(str(error).split())
    )
    return f"the cluster at {address} has another version: {versions}"


@contextmanager
def ray_cluster(address: str | None, cpus: float, gpus: float) -> Iterator[RayCluster]:
    """Join the cluster at `address`, or start one of this machine alone; leave it at the end."""
    quiet: dict[str, Any] = {"logging_level": "error", "log_to_driver": False}
    try:
        if address is not None and ":" in address:
            _knock(address)
        ray.init(address=address, **quiet) if address else ray.init(address="local", include_dashboard=False, **quiet)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise UsageError(f"--on ray: {_reason(address or 'this machine', error)}") from error
    try:
        yield RayCluster(cpus, gpus)
    finally:
        ray.shutdown()
