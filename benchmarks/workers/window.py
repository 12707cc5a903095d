"""The part all workers share: the task they are given, the window they measure, the line they print.

A worker is called with one JSON argument (see `Task`) and prints one JSON line with `env_steps_per_s`. Only the
standard library is used here, because every worker runs in an environment of its own.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Task:
    """What to train and how to measure it; the same for every library."""

    algorithm: str  # ppo | sac | td3 | dqn
    env_id: str
    num_envs: int
    hidden: list[int]  # widths of actor and critic alike, separate networks; tanh for PPO, relu for the others
    learning_rate: float  # of every network
    batch_size: int  # rows of a gradient step
    settings: dict[str, Any]  # of the algorithm: see TASKS of model_free_speed.py
    learning_starts: int  # env steps, with random actions, before the first update
    warmup_iterations: int  # that follow, in which compilers do their work
    warmup_s: float  # that follow
    window_s: float
    threads: int
    seed: int
    compile: str = "auto"  # how the lab runs its updates: auto, eager or compiled
    precision: str = "float32"  # of matrix products in updates; the peers know no other


def read_task() -> Task:
    """Return the task of the command line. The benchmark has set OMP_NUM_THREADS and the cores of this process."""
    return Task(**json.loads(sys.argv[1]))


class Window:
    """Whole iterations (collect and update) between the end of the warm-up and the end of the window."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._iterations = 0  # with updates that have begun
        self._first_s = self._warm_s = 0.0  # when the first of them began, and when those of the warm-up had ended
        self._start: tuple[float, int, int, float] | None = None  # time, env steps, iterations, CPU time
        self._end: tuple[float, int, int, float] | None = None

    def is_over(self, env_steps: int) -> bool:
        """Take note that an iteration begins now; return whether there is nothing left to measure."""
        if env_steps < self._task.learning_starts:
            return False
        now = time.perf_counter()
        mark = (now, env_steps, self._iterations, time.process_time())
        if self._iterations == 0:
            self._first_s = now
        if self._iterations == self._task.warmup_iterations:
            self._warm_s = now
        self._iterations += 1
        if self._start is not None:
            self._end = mark
            return now - self._start[0] >= self._task.window_s
        if self._iterations > self._task.warmup_iterations and now - self._warm_s >= self._task.warmup_s:
            self._start = mark
        return False

    def report(self, library: str, version: str) -> None:
        """Print the one line that the benchmark reads."""
        assert self._start is not None, "the run ended before its window"
        assert self._end is not None, "the run ended before its window"
        seconds, env_steps, iterations, cpu_s = (end - begin for begin, end in zip(self._start, self._end, strict=True))
        usual_s = self._task.warmup_iterations * seconds / iterations
        line: dict[str, Any] = {
            "library": library,
            "version": version,
            "env_steps_per_s": env_steps / seconds,
            "env_steps": env_steps,
            "seconds": seconds,
            "cores_used": cpu_s / seconds,
            "compile_s": max(0.0, self._warm_s - self._first_s - usual_s),  # what the first iterations took longer
        }
        print(json.dumps(line))
