"""Two gloo processes are one process with the data of both; killed and resumed they end in the same bits."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from typer.testing import CliRunner

from rl_lab.cli.main import app
from rl_lab.distributed.launch import free_port
from rl_lab.tracking.checkpoint import CheckpointStore
from rl_lab.tracking.fingerprint import fingerprint, tree_hash
from rl_lab.tracking.run_directory import RunDirectory
from tests.distributed.rank_work import OFF_POLICY, PACKAGED, PPOS, SFT, SHARDED, SIZE, lab, learn, work

RANKS = multiprocessing.get_context("forkserver")  # a process that has imported everything forks the ranks
RANKS.set_forkserver_preload(["tests.lab_process", "tests.distributed.rank_work"])
SMALL = [
    "+experiment=ppo_cartpole",
    "environment.num_envs=4",
    "algorithm.normalize_observations=true",
    "algorithm.target_kl=0.05",
    "training.phases.0.workflow_hooks=[{collect: 16}, update_policy]",
    "training.total_timesteps=2_048",
    "training.eval_frequency=600",
    "training.num_eval_episodes=2",
    "training.checkpoint_frequency=200",
    "logging.every_steps=300",
    "logging.terminal=false",
]
REPLAY = [
    "+experiment=sac_pendulum",
    "environment.num_envs=2",
    "algorithm.random_steps=100",
    "buffers.replay.batch_size=16",
    "components.actor.hidden_dims=[16]",
    "components.critic.hidden_dims=[16]",
    "training.total_timesteps=300",
    "training.eval_frequency=null",
    "training.checkpoint_frequency=40",
    "logging.every_steps=100",
    "logging.terminal=false",
]


NUM_UPDATES = 12
SHARDS = [
    *SFT,
    *SHARDED,
    "budget=tiny",
    "+logging=quiet",
    "experiment.device=cpu",
    f"training.phases.0.duration_updates={NUM_UPDATES}",
    f"training.phases.0.workflow_hooks=[update_policy, {{evaluate: {{every_updates: {NUM_UPDATES // 2}}}}}]",
    "training.checkpoint_updates=1",
    "training.num_eval_episodes=2",
]


def start(work, *arguments):
    """Let two ranks that can find each other do something."""
    port = free_port()
    ranks = [RANKS.Process(target=work, args=(rank, port, *arguments)) for rank in range(SIZE)]
    for rank in ranks:
        rank.start()
    return ranks


def ended(ranks):
    for rank in ranks:
        rank.join(120)
    return [rank.exitcode for rank in ranks]


def output(folder):
    return "\n".join(path.read_text() for path in sorted(folder.rglob("output*.txt")))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Return what each of two ranks found, and one process."""
    folder = tmp_path_factory.mktemp("learned")
    ranks = start(work, str(folder))
    alone = learn()
    assert ended(ranks) == [0, 0], output(folder)
    return [torch.load(folder / f"rank_{rank}.pt") for rank in range(SIZE)], alone


def test_what_ranks_say_to_each_other(results):
    for rank in results[0]:
        said = rank["said"]
        assert said["mean"].tolist() == [1.5, 3.0]
        assert [part.tolist() for part in said["means"]] == [[[0.5, 0.5], [0.5, 0.5]], 2.0]
        assert said["cat"].tolist() == [[0, 7], [1, 7]]
        assert [part.tolist() for part in said["shared"]] == [[0.0, 0.0], 0]
        assert said["numbers"] == [(0, -5), (1, -5)]
        assert said["gather"] == [{"name": "", "number": 0.1}, {"name": "ö", "number": 0.1}]
        assert said["first"] == "rank 0"


@pytest.mark.parametrize("name", [*PPOS, *OFF_POLICY, *PACKAGED, "motion_prior", "legged", "normaliser"])
def test_two_ranks_are_one_process_with_the_data_of_both(results, name):
    (first, second), alone = results
    assert first[name].keys() == alone[name].keys()
    for key, expected in alone[name].items():
        assert torch.equal(torch.as_tensor(first[name][key]), torch.as_tensor(second[name][key])) or key == "returns"
        torch.testing.assert_close(
            first[name][key], expected, rtol=1e-4, atol=1e-5, msg=lambda m, key=key: f"{key}: {m}"
        )


def test_when_one_rank_is_asked_to_stop_both_do_and_replay_goes_on(tmp_path):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    undisturbed = start(lab, ["train", *REPLAY, "--run-dir", str(whole)], str(tmp_path / "a"))
    ranks = start(lab, ["train", *REPLAY, "--run-dir", str(stopped)], str(tmp_path / "b"))
    while not list(stopped.glob("checkpoints/000003")):
        assert all(rank.is_alive() for rank in ranks), output(tmp_path)
        time.sleep(0.002)
    os.kill(ranks[1].pid, signal.SIGTERM)
    assert ended(ranks) == [143, 143], output(tmp_path)
    assert RunDirectory.open(stopped).read_status() == "stopped"
    assert ended(start(lab, ["resume", str(stopped)], str(tmp_path / "b"))) == [0, 0], output(tmp_path)
    assert ended(undisturbed) == [0, 0], output(tmp_path)
    assert fingerprint(RunDirectory.open(stopped)) == fingerprint(RunDirectory.open(whole))
    first, second = (CheckpointStore.load(state_of(whole).path / part).state["buffers"] for part in ("", "rank_1"))
    assert tree_hash(first) != tree_hash(second)


def test_two_ranks_teach_robots_of_their_own(tmp_path):
    small = ["budget=tiny", "+logging=quiet", "environment.simulation.num_threads=1", "experiment.device=cpu"]
    run = tmp_path / "run"
    line = ["train", "+experiment=quadruped_flat_ppo_amp", *small, "--run-dir", str(run)]
    assert ended(start(lab, line, str(tmp_path))) == [0, 0], output(tmp_path)
    loaded = state_of(run)
    first, second = loaded.state, CheckpointStore.load(loaded.path / "rank_1").state
    assert first["counters"]["updates"] > 2
    for name, weight in first["workflow"].items():
        assert torch.equal(weight, second["workflow"][name]), name
    robots = [state["collector"]["environment"]["sim"]["rows"] for state in (first, second)]
    assert not torch.equal(*robots)


def test_sharded_weights_are_saved_whole_and_resumed_to_the_bit(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for name in "ab":
        (tmp_path / name).mkdir()
    undisturbed = start(lab, ["train", *SHARDS, "--run-dir", str(whole)], str(tmp_path / "a"))
    ranks = start(lab, ["train", *SHARDS, "--run-dir", str(killed)], str(tmp_path / "b"))
    while not list(killed.glob("checkpoints/000003")):
        assert all(rank.is_alive() for rank in ranks), output(tmp_path)
        time.sleep(0.002)
    os.kill(ranks[1].pid, signal.SIGKILL)
    assert ended(ranks) == [1, -9], output(tmp_path)
    first = state_of(killed)
    second = CheckpointStore.load(first.path / "rank_1").state
    assert first.state["counters"]["updates"] < NUM_UPDATES
    assert ended(start(lab, ["resume", str(killed)], str(tmp_path / "b"))) == [0, 0], output(tmp_path)
    assert ended(undisturbed) == [0, 0], output(tmp_path)
    prints = [fingerprint(RunDirectory.open(run)) for run in (whole, killed)]
    for run, found in zip((whole, killed), prints, strict=True):  # where the dataset lies differs
        found["buffers"] = tree_hash(state_of(run).state["buffers"]["demonstrations"]["change"])
    assert prints[0] == prints[1]
    for name, weight in first.state["workflow"].items():
        assert torch.equal(weight, second["workflow"][name]), name
    moments = [state["optimizers"]["policy"]["state"]["0"]["exp_avg"] for state in (first.state, second)]
    assert moments[0].shape == moments[1].shape
    assert not torch.equal(*moments)  # each has those of its own rows
    result = CliRunner().invoke(app, ["evaluate", str(whole), "--episodes", "2", "--json"])  # one process has them all
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["episodes"] == 2


def state_of(run):
    return CheckpointStore(run / "checkpoints").load_newest()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a run of two ranks, and the same one after one of its ranks was killed."""
    folder = tmp_path_factory.mktemp("runs")
    whole, killed = folder / "whole", folder / "killed"
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    undisturbed = start(lab, ["train", *SMALL, "--run-dir", str(whole)], str(folder / "a"))
    ranks = start(lab, ["train", *SMALL, "--run-dir", str(killed)], str(folder / "b"))
    while not list(killed.glob("checkpoints/000005")):
        assert all(rank.is_alive() for rank in ranks), output(folder)
        time.sleep(0.002)
    os.kill(ranks[1].pid, signal.SIGKILL)  # the other one notices
    assert ended(ranks) == [1, -9], output(folder)
    assert state_of(killed).state["counters"]["env_steps"] < 2_048
    assert ended(start(lab, ["resume", str(killed)], str(folder / "b"))) == [0, 0], output(folder)
    assert ended(undisturbed) == [0, 0], output(folder)
    return whole, killed


def test_a_killed_rank_and_a_resume_change_no_bit(runs):
    whole, killed = runs
    assert fingerprint(RunDirectory.open(killed)) == fingerprint(RunDirectory.open(whole))
    assert (killed / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()


def test_two_nodes_that_meet_by_torchrun_s_rendezvous_compute_the_same(runs, tmp_path):
    """Each torchrun is a node with one process, as on two machines."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d"]
    command += [f"--rdzv-endpoint=127.0.0.1:{free_port()}", "-m", "rl_lab", "train", *SMALL, "--run-dir", "met"]
    nodes = [
        subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(2)
    ]
    said = [node.communicate(timeout=120)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], "\n".join(said)
    assert fingerprint(RunDirectory.open(tmp_path / "met")) == fingerprint(RunDirectory.open(runs[0]))


def test_each_rank_has_its_own_data_and_the_same_weights(runs):
    loaded = state_of(runs[0])
    first, second = loaded.state, CheckpointStore.load(loaded.path / "rank_1").state
    for name, weight in first["workflow"].items():
        assert torch.equal(weight, second["workflow"][name]), name
    assert first["counters"] == second["counters"]
    assert not torch.equal(first["collector"]["observation"], second["collector"]["observation"])
    assert not torch.equal(first["rng"]["torch"], second["rng"]["torch"])
    ended_episodes = [int(state["collector"]["episodes"]["ended"]) for state in (first, second)]
    assert first["counters"]["episodes"] == sum(ended_episodes) > max(ended_episodes) > 0


def test_the_first_rank_writes_for_both(runs):
    run = runs[0]
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [row["step"] for row in rows]
    assert steps == sorted(steps)
    assert sum("eval/return" in row for row in rows) == 3
    assert rows[-1]["step"] == 2_048
    updates = [row["updates"] for row in rows]
    assert updates[-1] == 2_048 // (SIZE * 4 * 16)
    outside = [path for path in run.rglob("*rank*") if path.parent.parent.name != "checkpoints"]
    assert [path for path in outside if path.parent.name != "rank_1" and "code" not in path.parts] == []
    assert len(list((run / "tb").iterdir())) == 1
    assert len((run / "manifest.json").read_text()) > 0


def test_another_number_of_processes_is_refused(runs):
    def fails(*arguments, **variables):
        result = CliRunner().invoke(app, [str(word) for word in arguments], env=variables)
        (line,) = result.stderr.strip().splitlines()[-1:]
        assert result.exit_code == 2, result.output
        return line

    run = runs[0]
    assert "experiment.devices: 2 -> 1" in fails(
        "resume", run, "experiment.devices=1", "training.total_timesteps=9_000"
    )
    assert "2 processes are asked for, but 3 were started" in fails("resume", run, WORLD_SIZE="3")
