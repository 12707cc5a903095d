"""Processes that write a dataset until they are killed: after some time, or instead of a certain call of `os`.

Lines `FORMAT|PATH|MOMENT` on stdin are answered by the number of episodes that the killed process had been promised.
A moment is `SECONDS` after its first episode, or `NAME COUNT` of a call.
"""

import itertools
import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import rl_lab.buffers.datasets.lerobot_writer  # noqa: F401  (here, and not in every child)
from rl_lab.buffers.datasets.open import open_writer
from tests.buffers.dataset_parts import make_episode

OPTIONS = {"lab": {"format": "lab"}, "lerobot": {"format": "lerobot", "fps": 10}}
SESSION = 2  # episodes before the writer is closed, and joins files


def saved_episode(number):
    """Return what is saved as the `number`-th episode: numbers and pictures."""
    episode = make_episode(number, 2 + number % 3, truncated=number % 2 == 1, task=f"task {number % 3}")
    parts = [
        {key: tree[key] for key in ("state", "camera")} for tree in (episode.observations, episode.final_observation)
    ]
    return replace(episode, observations=parts[0], final_observation=parts[1], infos={})


def save_for_ever(path, options, report):
    while True:
        with open_writer(path, **options) as writer:
            for _ in range(SESSION):
                number = writer.save(saved_episode(episodes_in(path)))
                report.write(f"{number + 1}\n")
                report.flush()


def episodes_in(path):
    """Return how many episodes the index counts."""
    index, info = Path(path, "index.jsonl"), Path(path, "meta", "info.json")
    if index.exists():
        return len(index.read_text().splitlines())
    return json.loads(info.read_text())["total_episodes"] if info.exists() else 0


def die_at(name, count):
    """Let the process kill itself instead of making its `count`-th call of a function of `os`."""
    calls = itertools.count(1)
    real = getattr(os, name)

    def wrapped(*arguments, **options):
        if next(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **options)

    setattr(os, name, wrapped)


def kill_one(path, options, moment):
    name, _, count = moment.strip().partition(" ")
    read_end, write_end = os.pipe()
    pid = os.fork()  # this process has used neither torch nor pyarrow, so that its children can
    if pid == 0:
        os.close(read_end)
        if count:
            die_at(name, int(count))
        save_for_ever(path, options, os.fdopen(write_end, "w"))
    os.close(write_end)
    with os.fdopen(read_end) as reports:
        first = reports.readline() or "0"
        if not count:
            time.sleep(float(name))
            os.kill(pid, signal.SIGKILL)
        rest = reports.read().split("\n")[:-1]
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    return int(rest[-1] if rest else first)


if __name__ == "__main__":
    for line in sys.stdin:
        format, path, moment = line.split("|")
        print(kill_one(path, OPTIONS[format], moment), flush=True)
