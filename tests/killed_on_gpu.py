"""Runs that are killed and go on, each in a process of its own: what has seen a GPU cannot fork."""

import subprocess
import sys
import time

from tests.test_kill_resume import checkpoints, fingerprint

LAB = (sys.executable, "-m", "rl_lab")
PATIENCE = 400  # seconds; a machine's first process compiles


def start(arguments, folder):
    with (folder / "output.txt").open("a") as output:
        return subprocess.Popen([*LAB, *arguments], cwd=folder, stdout=output, stderr=output)


def finish(arguments, folder):
    assert start(arguments, folder).wait(PATIENCE) == 0, (folder / "output.txt").read_text()


def kill_after(number, process, run):
    """Kill the process once its run has written so many checkpoints."""
    given_up = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < given_up:
        if max((int(name) for name in checkpoints(run) if name.isdigit()), default=0) >= number:
            break
        time.sleep(0.0005)
    process.kill()
    process.wait()


def assert_a_killed_run_ends_in_the_same_bits(overrides, folder, *, kill_at):
    """Train in one piece, and in two with a kill between them; compare all that runs leave behind."""
    whole, killed = folder / "whole", folder / "killed"
    train = ["train", *overrides, "logging.terminal=false", "--run-dir"]
    finish([*train, str(whole)], folder)
    process = start([*train, str(killed)], folder)
    kill_after(kill_at, process, killed)
    assert process.returncode == -9, (folder / "output.txt").read_text()
    assert fingerprint(killed) != fingerprint(whole)
    finish(["resume", str(killed)], folder)
    assert fingerprint(killed) == fingerprint(whole)
    assert (killed / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
