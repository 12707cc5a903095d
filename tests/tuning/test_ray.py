"""Trials and actors on Ray clusters of this machine, of one node and of two: `pytest -m ray`, with the extra `ray`."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rl_lab.tracking.jsonl import last_row
from tests.tuning.sweep_process import CONFIG, LAB_WORDS, check_rows, fingerprints, finish, lab, wait_for

pytest.importorskip("ray")
pytestmark = pytest.mark.ray
RUNNING = "running\n"  # of a run's status file
SWEEP, TUNE = ["sweep", "three.yaml", *CONFIG], ["tune", "search.yaml", *CONFIG]
SEARCH = """\
base_config: conf/experiment/tiny.yaml
sweep:
  optimizers.policy.lr: {log_uniform: [1e-3, 1]}
  experiment.seed: {int: [1, 100]}
parallel_jobs: 2
overrides: [training.total_timesteps=TOTAL, training.eval_frequency=128, training.num_eval_episodes=4,
            training.eval_num_envs=4, training.checkpoint_frequency=64,
            buffers.rollout._target_=rl_lab.buffers.rollout.RolloutBuffer]
tune: {OPTIONS}
"""
# A head whose GCS says that it is of another version: what `ray.init` compares with.
OLDER = """
import sys, ray
ray.__version__ = "2.31.4"
from ray.cluster_utils import Cluster
print(Cluster(initialize_head=True, head_node_args={"num_cpus": 1}).address, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def cluster():
    """Two nodes with one CPU each."""
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    nodes.add_node(num_cpus=1)
    nodes.wait_for_nodes()
    yield nodes
    nodes.shutdown()


@pytest.fixture
def on(cluster):
    return ["--on", "ray", "--address", cluster.address]


def killed(words, is_time):
    """Begin a command, kill it when it is time, and give it again."""
    process = subprocess.Popen([*LAB_WORDS, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(is_time)
    assert process.poll() is None, "it was too fast: the test shows nothing"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    return lab(*words)


def nodes_of(logs):
    return {node for log in logs for node in re.findall(r"^on Ray node (\w+)", log.read_text(), re.M)}


def test_a_sweep_on_ray_that_is_killed_ends_as_one_of_this_machine(place):
    finish([*SWEEP, "--dir", "whole"], place)
    output = killed(
        [*SWEEP, "--dir", "killed", "--on", "ray"], lambda: any(Path("killed").glob("trials/*/checkpoints/[0-9]*"))
    )
    assert "3 done" in output
    assert fingerprints("killed") == fingerprints("whole")  # every row of metrics.jsonl once


def test_trials_run_on_both_nodes_of_a_cluster_and_a_lost_node_is_replaced(place, cluster, on):
    more = cluster.add_node(num_cpus=1)
    text = Path("three.yaml").read_text().replace("total_timesteps=768", "total_timesteps=6144")
    Path("three.yaml").write_text(text.replace("parallel_jobs: 2", "parallel_jobs: 3"))
    finish([*SWEEP, "--dir", "whole"], place)
    process = subprocess.Popen([*LAB_WORDS, *SWEEP, "--dir", "runs", *on, "--retries", "1"])

    def on_the_third():
        logs = [log for log in Path("runs/logs").glob("*.txt") if more.node_id in log.read_text()]
        runs = [Path("runs/trials", log.stem) for log in logs]
        return [run for run in runs if any(run.glob("checkpoints/[0-9]*")) and (run / "status").read_text() == RUNNING]

    wait_for(on_the_third)
    assert on_the_third(), "it was too fast: the test shows nothing"
    cluster.remove_node(more, allow_graceful=False)
    assert process.wait(600) == 0
    assert len(nodes_of(Path("runs/logs").glob("*.txt"))) == 3
    assert any("lost on Ray" in log.read_text() for log in Path("runs/logs").glob("*.txt"))
    assert fingerprints("runs") == fingerprints("whole")


@pytest.mark.parametrize("options", ["population: {every_steps: 256}", "halving: {first_steps: 256, keep: 0.5}"])
def test_rounds_on_two_nodes_that_are_killed_end_as_undisturbed_ones_of_this_machine(place, on, options):
    Path("search.yaml").write_text(SEARCH.replace("OPTIONS", f"trials: 3, {options}").replace("TOTAL", "512"))
    finish([*TUNE, "--dir", "whole"], place)
    file = Path("killed/rounds.json")

    def is_time():
        if not file.is_file() or len(json.loads(file.read_text())["rounds"]) < 2:
            return False
        runs = Path("killed/trials").iterdir()
        return any((last_row(run / "metrics.jsonl") or {"step": 0})["step"] > 256 for run in runs)

    killed([*TUNE, "--dir", "killed", *on], is_time)
    assert json.loads(file.read_text()) == json.loads(Path("whole/rounds.json").read_text())
    assert fingerprints("killed") == fingerprints("whole")
    check_rows("killed")
    assert len(nodes_of(Path("killed/logs").glob("*.txt"))) == 2
    listed = json.loads(lab("runs", "list", "--root", "killed/trials", "--json"))
    assert {Path(run["path"]).name for run in listed} == {run.name for run in Path("killed/trials").iterdir()}


def test_asynchronous_halving_on_two_nodes_that_is_killed_tries_every_setting_once(place, on):
    pytest.importorskip("optuna")
    text = SEARCH.replace("OPTIONS", "trials: 5, pruner: halving, sampler: random").replace("TOTAL", "1536")
    Path("search.yaml").write_text(text)
    Path("free.yaml").write_text(text.replace("pruner: halving", "pruner: none"))
    finish(["tune", "free.yaml", *CONFIG, "--dir", "free"], place)  # what each setting comes to when nobody ends it
    killed([*TUNE, "--dir", "killed", *on], lambda: len(list(Path("killed").glob("trials/*/checkpoints/[0-9]*"))) > 3)
    report = json.loads(Path("killed/report.json").read_text())
    assert [trial["number"] for trial in report["trials"]] == [0, 1, 2, 3, 4]
    check_rows("killed")
    for trial in report["trials"]:
        run = f"trial_{trial['number']:04d}"
        assert trial["state"] in ("complete", "pruned")
        left, right = (Path(each, "trials", run, "metrics.jsonl").read_bytes() for each in ("killed", "free"))
        assert right.startswith(left)  # who is ended depends on who was faster; what it has done by then does not
        assert trial["state"] == "pruned" or left == right


def test_actors_of_a_learner_run_on_both_nodes(place, on):
    pytest.importorskip("grpc")
    lab("certs", "init")
    lab("certs", "issue", "learner", "--role", "learner")
    words = ["+experiment=remote_sac_pendulum", "budget=tiny", "transport.kind=network", "transport.actors=2"]
    words += ["transport.address=127.0.0.1:0", "transport.certificate=certs/learner.pem", "--run-dir", "run", *on]
    words += ["transport.max_lead=64"]  # neither of them does it all
    assert "actor-1.pem is missing: lab certs issue actor-1 --role actor" in lab("start", *words, code=2)
    for name in ("actor-1", "actor-2"):
        lab("certs", "issue", name, "--role", "actor")
    lab("start", *words)
    assert Path("run/status").read_text().strip() == "done"
    logs = [Path(f"run/logs/actor-{number}.log") for number in (1, 2)]
    assert len(nodes_of(logs)) == 2
    assert all(re.search(r"^[1-9]\d* steps recorded", log.read_text(), re.M) for log in logs)


@pytest.mark.parametrize(
    "words", [["start", "--on", "ray"], ["train", "transport.samplers=ray"]], ids=["start", "train"]
)
def test_actors_on_a_cluster_of_this_machine_need_no_certificates(place, words):
    pytest.importorskip("grpc")
    lab(*words, "+experiment=remote_sac_pendulum", "budget=tiny", "--run-dir", "run")
    assert Path("run/status").read_text().strip() == "done"
    log = Path("run/logs/actor.log").read_text()
    assert log.startswith("on Ray node ")
    assert re.search(r"^[1-9]\d* steps recorded", log, re.M)


@pytest.mark.parametrize("command", [SWEEP, ["start", "+experiment=remote_sac_pendulum"]], ids=["sweep", "start"])
def test_a_cluster_that_is_not_there_is_one_line(place, command):
    done = subprocess.run(
        [*LAB_WORDS, *command, "--on", "ray", "--address", "127.0.0.1:1"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")  # no run is named that never begins
    assert done.stderr.splitlines()[-1].startswith("error: --on ray: no cluster at 127.0.0.1:1")
    assert not Path("runs").exists()


def test_a_cluster_of_another_version_is_one_line(place):
    import ray

    older = subprocess.Popen([sys.executable, "-c", OLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        address = older.stdout.readline().strip()
        line = lab(*SWEEP, "--dir", "runs", "--on", "ray", "--address", address, code=2)
    finally:
        older.communicate("")
    wanted = f"the cluster at {address} has another version: Ray 2.31.4 there, {ray.__version__} here"
    assert line == f"error: --on ray: {wanted}"


def test_what_no_node_has_room_for_is_one_line(place, on):
    Path("three.yaml").write_text(Path("three.yaml").read_text() + "cpus_per_trial: 2\n")  # each node has one
    line = lab(*SWEEP, "--dir", "runs", *on, code=2)
    assert line == "error: --on ray: a trial needs 2 CPUs and 0 GPUs, which no node of the cluster has"
    line = lab("start", "+experiment=remote_sac_pendulum", "transport.actors=3", *on, code=2)
    assert line == "error: --on ray: transport.actors=3 need a CPU each, and the cluster has 2"
