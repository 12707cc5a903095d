"""Processes that save checkpoints until they are killed; with slow writes, so that most kills hit one."""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from rl_lab.core import Segment
from rl_lab.tracking.checkpoint import CheckpointStore


def tree(serial):
    generator = torch.Generator().manual_seed(serial)
    return {
        "serial": serial,
        "w": torch.randn(2000, generator=generator),
        "words": [serial * 2**70, (None, serial / 3)],
        "slots": [segment(slot, serial // (slot + 1)) for slot in range(4)],
    }


def segment(slot, version):
    """The first changes with every save, the others more and more seldom."""
    return Segment(f"{slot:08x}{version:024x}", torch.full((500,), 10_000 * slot + version))


def slow(function):
    def wrapped(*arguments):
        time.sleep(random.random() * 0.004)
        result = function(*arguments)
        time.sleep(random.random() * 0.004)
        return result

    return wrapped


def save_forever(directory, report):
    for name in ("fsync", "write", "link", "rename", "replace"):
        setattr(os, name, slow(getattr(os, name)))
    store = CheckpointStore(Path(directory), keep_last=2, keep_best=1)
    serial = max((entry.serial for entry in store.entries()), default=0)
    while True:
        serial += 1
        store.save(tree(serial), counters={"env_steps": serial}, phase="p", score=float(serial % 5))
        report.write(f"{serial}\n")
        report.flush()


def die_at(name, count):
    """Let the process kill itself instead of making its `count`-th call of a function of `os`."""
    calls = iter(range(1, count))
    real = getattr(os, name)

    def wrapped(*arguments):
        if next(calls, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments)

    setattr(os, name, wrapped)


def kill_one(directory, moment):
    """Fork a saver, let it die and return the last serial it reported.

    The moment is `SECONDS` after its first save, or `NAME COUNT` of a call in it.
    """
    name, _, count = moment.strip().partition(" ")
    read_end, write_end = os.pipe()
    pid = os.fork()  # cheaper than a new interpreter that imports torch
    if pid == 0:
        os.close(read_end)
        if count:
            die_at(name, int(count))
        save_forever(directory, os.fdopen(write_end, "w"))
    os.close(write_end)
    with os.fdopen(read_end) as reports:
        first = reports.readline() or "0"
        if not count:
            time.sleep(float(name))
            os.kill(pid, signal.SIGKILL)
        rest = reports.read().split()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    return int(rest[-1] if rest else first)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for line in sys.stdin:
        print(kill_one(sys.argv[1], line), flush=True)
