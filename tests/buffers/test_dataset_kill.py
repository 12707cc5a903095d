"""kill -9 while a dataset is written: at random moments, and instead of each call that changes the directory."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from rl_lab.buffers.datasets.open import open_dataset, open_writer
from tests.buffers.dataset_parts import assert_same_episode
from tests.buffers.dataset_saver import OPTIONS, saved_episode

ROOT = Path(__file__).parents[2]
CALLS = {  # that two episodes take and, with LeRobot, the joining of their files; and the next one
    "lab": {"replace": 4, "write": 3},
    "lerobot": {"replace": 19, "unlink": 3, "rmdir": 3},
}

UNJOINED = {"lab": {}, "lerobot": {"data_mb": 0}}  # leaves one file per episode, which is faster


@pytest.fixture(scope="module")
def kill():
    """Return a function that lets a process write until it is killed, and returns how many episodes it was promised."""
    command = [sys.executable, "-m", "tests.buffers.dataset_saver"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as saver:

        def kill_one(format, path, moment):
            saver.stdin.write(f"{format}|{path}|{moment}\n")
            saver.stdin.flush()
            return int(saver.stdout.readline())

        yield kill_one


def check(path, promised, final):
    """Read the dataset as it lies there; return how many episodes it has."""
    if promised == 0 and not any((path / name).exists() for name in ("dataset.json", "meta/info.json")):
        return 0
    reader = open_dataset(path)
    assert promised <= len(reader.lengths) <= promised + 1
    for number, episode in enumerate(reader.episodes()):
        assert_same_episode(episode, saved_episode(number), final=final)
    return len(reader.lengths)


@pytest.mark.parametrize("format", OPTIONS)
def test_random_kills_lose_no_promised_episode(tmp_path, kill, format):
    rng = random.Random(3)
    for _ in range(6):
        there = check(tmp_path, kill(format, tmp_path, rng.uniform(0, 0.12)), final=format == "lab")
    with open_writer(tmp_path, **OPTIONS[format]) as writer:
        assert writer.save(saved_episode(there)) == there
    assert check(tmp_path, there + 1, final=format == "lab") == there + 1


@pytest.mark.parametrize(("format", "name"), [(f, name) for f, calls in CALLS.items() for name in calls])
def test_a_kill_instead_of_any_call_loses_no_promised_episode(tmp_path, kill, format, name):
    """Each call in its own dataset, so that every state a writer can leave is met; then more episodes are added."""
    for count in range(1, CALLS[format][name] + 1):
        path = tmp_path / f"{name}-{count}"
        there = check(path, kill(format, path, f"{name} {count}"), final=format == "lab")
        with open_writer(path, **OPTIONS[format], **UNJOINED[format]) as writer:
            assert writer.save(saved_episode(there)) == there
        assert check(path, there + 1, final=format == "lab") == there + 1
        assert not [p for p in path.rglob("*") if p.name.startswith((".tmp-", ".compaction"))]
