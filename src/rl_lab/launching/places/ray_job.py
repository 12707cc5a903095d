"""A Ray cluster that runs already: one job per command, which lies on a file system that all nodes see."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass

from rl_lab.core.errors import UsageError
from rl_lab.launching.order import GRACE_S, Command, Order, Plan, choose_task, on_ray

SCRIPT = "job.sh"
PAUSE_S = 5  # Ray looks after a job once a second; forgotten before it saw the end, the job would come back as failed
_ADDRESS = re.compile(r"(https?://)?[\w.-]+(:\d+)?/?")
# Ray would kill a job three seconds after it was asked to stop.
ENVIRONMENT = json.dumps({"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(GRACE_S)}})


@dataclass(frozen=True)
class RayJob:
    """A Ray cluster with its dashboard.

    Attributes:
        address: Of the dashboard, through which jobs are submitted; a tunnel's end where it is not this machine's.
        python: On the nodes, of an environment that has the lab.
        gpus: Of a command that is no sweep; trials have what their file says.
        cpus: Likewise.
    """

    address: str
    python: str
    gpus: int = 0
    cpus: int = 1

    shares_files = True

    def plan(self, order: Order) -> Plan:
        """Return a script and what is said to Ray; the words of a job are in the script, because Ray quotes badly."""
        if not _ADDRESS.fullmatch(self.address):
            raise UsageError(f"--address {self.address!r} must be that of a dashboard, such as http://127.0.0.1:8265")
        order = on_ray(order)
        numbers = range(len(order.tasks))
        submit = [self._submit(order, number) for number in numbers]
        return Plan(
            files={SCRIPT: self._script(order)},
            commands={
                "start": submit,
                "up": [["sleep", str(PAUSE_S)], *(self._forget(order, number) for number in numbers), *submit],
                "status": [self._job("status", order, number) for number in numbers],
                "logs": [self._job("logs", order, number) for number in numbers],
                "follow": [self._job("logs", order, number, "--follow") for number in numbers],
                "down": [self._job("stop", order, number) for number in numbers],
            },
        )

    def _submit(self, order: Order, number: int) -> Command:
        cpus, gpus = (0, 0) if "--on" in order.words else (self.cpus, self.gpus)  # trials are counted by themselves
        room = ["--entrypoint-num-cpus", str(cpus), "--entrypoint-num-gpus", str(gpus)]
        script = str(order.directory / SCRIPT)
        words = ["--submission-id", _id(order, number), "--no-wait", *room, "--runtime-env-json", ENVIRONMENT]
        return ["ray", "job", "submit", "--address", self.address, *words, "--", "bash", script, str(number)]

    def _job(self, verb: str, order: Order, number: int, *options: str) -> Command:
        return ["ray", "job", verb, "--address", self.address, *options, _id(order, number)]

    def _forget(self, order: Order, number: int) -> Command:
        """Return the command that lets a job of the same name be submitted again; a new cluster knows none."""
        return ["sh", "-c", f"{shlex.join(self._job('delete', order, number))} || true"]

    def _script(self, order: Order) -> str:
        lines = ["#!/bin/bash", "set -eu", f"cd {shlex.quote(str(order.project))}", 'task="$1"']
        return "\n".join([*lines, *choose_task(order, shlex.quote(self.python), "task"), 'exec "$@"', ""])


def _id(order: Order, number: int) -> str:
    return order.name if len(order.tasks) == 1 else f"{order.name}-{number}"
