"""The batch script, run by bash as Slurm would: signals, exit codes, queueing again. Slurm's tools are stand-ins."""

import signal
import subprocess
import time

import pytest

from rl_lab.launching.places.slurm import Slurm
from tests.launching.orders import order, seeds

LONG_S = 60.0
# Stands in for the lab's Python: says its words, then waits for SIGTERM and leaves as a run that made a checkpoint.
COMMAND = """#!/bin/bash
trap 'echo asked; exit 143' TERM
echo "$@"
[ -e {stay} ] || exit {code}
while :; do sleep 0.05; done
"""


class Cluster:
    """A directory of stand-ins, and the script of an order that runs in it."""

    def __init__(self, path):
        self.path, self.asked = path, path / "asked"
        self.tool("scontrol", f'if [ "$1" = show ]; then printf "n1\\nn2\\n"; else echo "$@" >> {self.asked}; fi\n')
        self.tool("srun", 'echo "srun $*"\n')

    def tool(self, name, text):
        (self.path / name).write_text(text if text.startswith("#!") else f"#!/bin/bash\n{text}")
        (self.path / name).chmod(0o755)

    def submit(self, what, *, stay, code=0, **variables):
        (self.path / "stay").touch() if stay else None
        self.tool("python", COMMAND.format(stay=self.path / "stay", code=code))
        nodes = {"nodes": 2, "gpus": 4} if variables.get("SLURM_NNODES") == "2" else {}
        script = self.path / "job.sbatch"
        script.write_text(Slurm("cpu", str(self.path / "python"), **nodes).plan(what).files["job.sbatch"])
        environment = {"PATH": f"{self.path}:/usr/bin:/bin", "SLURM_JOB_ID": "70", **variables}
        return subprocess.Popen(["bash", script], env=environment, stdout=subprocess.PIPE, text=True)

    def requeued(self):
        return self.asked.read_text().splitlines() if self.asked.exists() else []


@pytest.fixture
def cluster(tmp_path):
    return Cluster(tmp_path)


@pytest.mark.parametrize(
    ("number", "variables", "requeued"),
    [
        (signal.SIGUSR1, {}, ["requeue 70"]),  # the time is nearly up
        (signal.SIGUSR1, {"SLURM_ARRAY_JOB_ID": "69", "SLURM_ARRAY_TASK_ID": "0"}, ["requeue 69_0"]),
        (signal.SIGTERM, {}, []),  # scancel, or a preemption, after which Slurm queues it again by itself
    ],
)
def test_a_signal_lets_the_command_leave_with_a_checkpoint(cluster, number, variables, requeued):
    with cluster.submit(order(), stay=True, **variables) as job:
        assert job.stdout.readline().startswith("-m rl_lab train")  # it is there, and so are the traps soon
        wait_for_traps(job)
        job.send_signal(number)
        assert job.stdout.read() == "asked\n"
    assert job.returncode == 143
    assert cluster.requeued() == requeued


def wait_for_traps(job):
    """Wait until bash has set its traps: /proc says which signals it catches."""
    wanted = 1 << (signal.SIGTERM - 1) | 1 << (signal.SIGUSR1 - 1)
    end = time.monotonic() + LONG_S
    while job.poll() is None and time.monotonic() < end:
        with open(f"/proc/{job.pid}/status") as status:
            caught = next(int(line.split()[1], 16) for line in status if line.startswith("SigCgt"))
        if caught & wanted == wanted:
            return
        time.sleep(0.01)
    job.kill()
    pytest.fail("bash has set no traps")


@pytest.mark.parametrize("code", [0, 2])
def test_a_command_that_ends_is_not_queued_again(cluster, code):
    with cluster.submit(order(), stay=False, code=code) as job:
        job.stdout.read()
    assert job.returncode == code
    assert cluster.requeued() == []


def test_a_task_of_an_array_is_one_seed(cluster):
    with cluster.submit(seeds(3), stay=False, SLURM_ARRAY_JOB_ID="69", SLURM_ARRAY_TASK_ID="1") as job:
        assert job.stdout.read() == (
            "-m rl_lab train --run-dir experiments/mine/seed_2 -- +experiment=x experiment.seed=2\n"
        )


def test_several_nodes_meet_on_the_first(cluster):
    more = {"SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_RESTART_COUNT": "3"}
    with cluster.submit(order(), stay=False, **more) as job:
        said = job.stdout.read()
    assert said.startswith(
        f"srun --kill-on-bad-exit=1 {cluster.path}/python -m torch.distributed.run --nnodes=2 --nproc-per-node=4 "
        "--rdzv-backend=c10d --rdzv-id=70.3 --rdzv-endpoint=n1:20070 -m rl_lab train --run-dir experiments/mine"
    )
