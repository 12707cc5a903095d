"""The part all buffer workers share: the task they are given, the data they store, the window they measure in.

A worker is called with one JSON argument (see `Task`) and prints one JSON line: what it measured, in rows per second.
Only NumPy and the standard library are used here, because every worker runs in an environment of its own.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

POOL = 256  # vector steps that are prepared; a buffer is filled with them over and over


@dataclass(frozen=True)
class Task:
    """What to store and how to draw it; the same for every library."""

    kind: str  # transitions | sequences
    capacity: int  # env steps
    num_envs: int
    observation: tuple[int, ...]  # shape; three dimensions are a picture of uint8
    frame_stack: int  # of pictures: each shows so many frames, one of them new
    action: int
    batch_sizes: tuple[int, ...]
    sequence_length: int
    episode_length: int  # steps until a truncation
    window_s: float
    threads: int

    @property
    def is_picture(self) -> bool:
        """Return whether observations are pictures."""
        return len(self.observation) == 3


def read_task() -> Task:
    """Return the task of the command line."""
    return Task(**{key: tuple(x) if isinstance(x, list) else x for key, x in json.loads(sys.argv[1]).items()})


def make_pool(task: Task) -> dict[str, np.ndarray]:
    """Return POOL vector steps, time-major: observations, what they led to, actions, rewards, truncated."""
    rng = np.random.default_rng(0)
    steps, lanes = POOL, task.num_envs
    if task.is_picture:
        channels = task.observation[0] // task.frame_stack
        frames = rng.integers(
            0, 256, (steps + task.frame_stack, lanes, channels, *task.observation[1:]), dtype=np.uint8
        )
        stacks = np.concatenate([frames[k : steps + 1 + k] for k in range(task.frame_stack)], axis=2)
    else:
        stacks = rng.standard_normal((steps + 1, lanes, *task.observation), dtype=np.float32)
    return {
        "observations": np.ascontiguousarray(stacks[:-1]),
        "final_observations": np.ascontiguousarray(stacks[1:]),
        "actions": rng.standard_normal((steps, lanes, task.action), dtype=np.float32),
        "rewards": rng.standard_normal((steps, lanes), dtype=np.float32),
    }


def truncations(task: Task, step: int, count: int) -> np.ndarray:
    """Return [count, num_envs] flags for the vector steps from number `step` on."""
    is_end = np.arange(step + 1, step + count + 1) % task.episode_length == 0
    return np.repeat(is_end[:, None], task.num_envs, axis=1)


def fill(task: Task, add: Callable[[int, int, int], None], chunk: int) -> float:
    """Call `add(step, begin, end)` until the buffer is full; return env steps per second of the second half."""
    total = task.capacity // task.num_envs
    step, begin_s, begin_step = 0, time.perf_counter(), 0
    while step < total:
        begin = step % POOL
        end = min(begin + chunk, POOL, begin + total - step)
        add(step, begin, end)
        if step < total // 2 <= step + end - begin:
            begin_s, begin_step = time.perf_counter(), step + end - begin
        step += end - begin
    return (step - begin_step) * task.num_envs / (time.perf_counter() - begin_s)


def rate(function: Callable[[int], object], rows: int, window_s: float) -> float:
    """Call a function for the window; return rows per second."""
    for _ in range(3):
        function(0)
    count, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < window_s:
        function(count)
        count += 1
    return count * rows / elapsed


def report(library: str, version: str, numbers: dict[str, float]) -> None:
    """Print the one line that the benchmark reads."""
    print(json.dumps({"library": library, "version": version, "numbers": numbers}))
