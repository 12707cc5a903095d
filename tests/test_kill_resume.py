"""`kill -9` at random moments, checkpoint writes among them: the resumed run ends in the bits of one never killed."""

import json
import multiprocessing
import os
import random
import time
from pathlib import Path

import pytest

LAB = multiprocessing.get_context("forkserver")  # a process that has imported everything forks the runs
LAB.set_forkserver_preload(["tests.lab_process"])
SMALL = [
    "training.total_timesteps=40_000",
    "training.eval_frequency=9_000",
    "training.checkpoint_frequency=500",
    "training.num_eval_episodes=3",
    "logging.every_steps=700",
    "logging.terminal=false",
]


def start(arguments, directory):
    from tests.lab_process import run_lab

    process = LAB.Process(target=run_lab, args=(arguments, str(directory)))
    process.start()
    return process


def finish(arguments, directory):
    process = start(arguments, directory)
    process.join(120)
    assert process.exitcode == 0, (directory / "output.txt").read_text()


def fingerprint(run):
    from rl_lab.tracking.fingerprint import fingerprint
    from rl_lab.tracking.run_directory import RunDirectory

    return fingerprint(RunDirectory.open(run))


def checkpoints(run):
    try:
        return {entry.name for entry in os.scandir(run / "checkpoints")}
    except FileNotFoundError:
        return set()


def kill_at_a_random_moment(process, run, rng):
    """Kill within the write of a checkpoint, or a moment after one; return whether the write was left unfinished."""
    before, aims_at_write = checkpoints(run), rng.random() < 0.6
    patience = time.monotonic() + 20
    while process.is_alive() and time.monotonic() < patience:
        time.sleep(0.0005)
        new = checkpoints(run) - before
        if any(name.startswith(".tmp-") for name in new) and aims_at_write:
            time.sleep(rng.random() * 0.004)
            break
        if any(name.isdigit() for name in new) and not aims_at_write:
            time.sleep(rng.random() * 0.15)
            break
    process.kill()
    process.join()
    return any(name.startswith(".tmp-") for name in checkpoints(run))


@pytest.mark.parametrize(("experiment", "kills"), [("ppo_cartpole", 8), ("ppo_cartpole_recurrent", 5)])
def test_killed_runs_end_in_the_same_bits(experiment, kills, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train = ["train", f"+experiment={experiment}", *SMALL, "--run-dir"]
    finish([*train, str(whole)], tmp_path)
    rng, elsewhere, died, within_a_write = random.Random(0), tmp_path / "elsewhere", 0, 0
    elsewhere.mkdir()
    process = start([*train, str(killed)], tmp_path)
    while died < kills:
        within_a_write += kill_at_a_random_moment(process, killed, rng)
        died += process.exitcode == -9
        if process.exitcode == 0:
            break
        process = start(["resume", str(killed)], elsewhere)
    process.join(120)
    assert process.exitcode == 0, (elsewhere / "output.txt").read_text()
    assert died >= 0.8 * kills, "too few kills to mean anything"
    assert fingerprint(killed) == fingerprint(whole)
    for name in ("metrics.jsonl", "steps.chain", "updates.chain"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes()
    assert json.loads((killed / "metrics.json").read_text()) == json.loads((whole / "metrics.json").read_text())
    print(f"{experiment}: {died} kills, {within_a_write} of them within the write of a checkpoint")


def test_the_newest_run_is_resumed_when_none_is_named(tmp_path):
    root = tmp_path / "experiments"
    arguments = ["train", "+experiment=ppo_cartpole", *SMALL, f"experiment.root={root}"]
    process = start(arguments, tmp_path)
    while not (any(root.glob("*/checkpoints/0*"))):
        assert process.is_alive()
        time.sleep(0.01)
    process.kill()
    process.join()
    finish(["resume", "--root", str(root)], tmp_path)
    (run,) = root.iterdir()
    assert (run / "status").read_text().strip() == "done"
    assert Path(run / "metrics.json").exists()
