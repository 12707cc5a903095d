"""A Slurm cluster: a batch script that checkpoints and queues itself again when its time is up or it is preempted."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from rl_lab.core.errors import UsageError
from rl_lab.launching.order import GRACE_S, SHARED_QUEUE, Order, Plan, choose_task, workers_of

SCRIPT = "job.sbatch"
PORTS = (20_000, 10_000)  # of torchrun's rendezvous on the first node: from, and how many; jobs may share a node
_TIME = re.compile(r"(\d+-)?\d+(:\d\d){0,2}")
_WORD = re.compile(r"[\w.,:+=@-]+")

# Slurm itself queues a preempted job again; one whose time is nearly up gets USR1 and does so itself. `wait` ends with
# every signal, hence the loop; what has ended already is waited for once more, which returns its code again.
ENDING = """
queue_again=0
was_told=1
"$@" &
child=$!
trap 'was_told=1; queue_again=1; kill -TERM "$child"' USR1
trap 'was_told=1; kill -TERM "$child"' TERM INT
while [ "$was_told" = 1 ]; do
  was_told=0
  wait "$child"
  code=$?
done
if [ "$queue_again" = 1 ] && [ "$code" != 0 ]; then
  scontrol requeue "$job"
fi
exit "$code"
"""


@dataclass(frozen=True)
class Slurm:
    """A Slurm cluster, from a machine that has `sbatch` and shares its files with the nodes.

    Attributes:
        partition: Of the cluster.
        python: Of an environment that has the lab, as on the nodes.
        nodes: That train one run together, by torchrun; or that share a sweep.
        gpus: Of a node.
        cpus: Of a node.
        memory: Of a node, e.g. 16G.
        time: Limit, e.g. 24:00:00; the job then goes on in another one.
        workers: Jobs at once that share a sweep.
        account: Who pays.
        setup: Lines before the command, such as `module load cuda`.
    """

    partition: str
    python: str
    nodes: int = 1
    gpus: int = 0
    cpus: int = 1
    memory: str | None = None
    time: str | None = None
    workers: int = 1
    account: str | None = None
    setup: tuple[str, ...] = ()

    shares_files = True

    def plan(self, order: Order) -> Plan:
        """Return the script and what is said to Slurm."""
        self._check(order)
        named = f"--name={order.name}"
        columns = "--format=%.18i %.9P %.10T %.12M %.6D %R"
        return Plan(
            files={SCRIPT: self._script(order)},
            commands={
                "start": [["sbatch", "--parsable", order.file(SCRIPT)]],
                "up": [["sbatch", "--parsable", order.file(SCRIPT)]],
                "status": [["squeue", "--me", named, columns]],
                "down": [["scancel", "--me", named]],
            },
        )

    def _check(self, order: Order) -> None:
        if self.time is not None and not _TIME.fullmatch(self.time):
            raise UsageError(f"--time {self.time!r} must be minutes, HH:MM:SS or D-HH:MM:SS")
        for option, value in (("partition", self.partition), ("account", self.account), ("memory", self.memory)):
            if value is not None and not _WORD.fullmatch(value):
                raise UsageError(f"--{option} {value!r} must be one word of letters, digits or any of . , : + = @ - _")
        if self.nodes > 1 and order.command in SHARED_QUEUE:
            raise UsageError(f"slurm --nodes {self.nodes}: a sweep is shared by jobs: --workers {self.nodes}")
        if self.nodes > 1 and len(order.tasks) > 1:
            count = len(order.tasks)
            raise UsageError(f"slurm --nodes {self.nodes}: several nodes train one run, but {count} seeds are given")

    def _script(self, order: Order) -> str:
        lines = ["#!/bin/bash", *(f"#SBATCH --{option}" for option in self._options(order)), ""]
        lines += ["set -u", *self.setup]
        lines += self._runner() if self.nodes > 1 else []
        lines += ['job="${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID:-}}"']
        lines += ['job="${job:-$SLURM_JOB_ID}"']
        runner = '"${ranks[@]}" -m rl_lab' if self.nodes > 1 else ""
        lines += choose_task(order, shlex.quote(self.python), "SLURM_ARRAY_TASK_ID", runner)
        return "\n".join(lines) + ENDING

    def _options(self, order: Order) -> list[str]:
        count = workers_of("slurm", order, self.workers)
        given = {
            "job-name": order.name,
            "partition": self.partition,
            "account": self.account,
            "nodes": self.nodes,
            "ntasks-per-node": 1,
            "cpus-per-task": self.cpus,
            "gpus-per-node": self.gpus or None,
            "mem": self.memory,
            "time": self.time,
            "array": f"0-{count - 1}" if count > 1 else None,
            "chdir": shlex.quote(str(order.project)),
            "output": shlex.quote(f"{order.directory}/{'%A_%a' if count > 1 else '%j'}.log"),
            "open-mode": "append",
            "signal": f"B:USR1@{GRACE_S}",
        }
        return ["requeue", *(f"{key}={value}" for key, value in given.items() if value is not None)]

    def _runner(self) -> list[str]:
        """Return the lines that start one torchrun per node; they meet on the first one."""
        torchrun = (
            f"ranks=(srun --kill-on-bad-exit=1 {shlex.quote(self.python)} -m torch.distributed.run "
            f'--nnodes="$SLURM_NNODES" --nproc-per-node={max(self.gpus, 1)} --rdzv-backend=c10d '
            f'--rdzv-id="$SLURM_JOB_ID.${{SLURM_RESTART_COUNT:-0}}" --rdzv-endpoint="$first:$port")'
        )
        first = 'first="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"'
        return [first, f"port=$(({PORTS[0]} + SLURM_JOB_ID % {PORTS[1]}))", torchrun]
