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
    """What to train on and how to measure it; the same for every library."""

    env_id: str
    num_envs: int
    num_steps: int  # vector steps per iteration
    num_epochs: int
    minibatch_size: int  # rows
    hidden: tuple[int, int]  # of actor and critic alike, separate networks, tanh
    learning_rate: float
    use_normalization: bool  # of observations and rewards
    threads: int
    warmup_s: float
    window_s: float
    seed: int


def read_task() -> Task:
    """Return the task of the command line. The benchmark has set OMP_NUM_THREADS and the cores of this process."""
    return Task(**json.loads(sys.argv[1]))


class Window:
    """Whole iterations (collect and update) between the end of the warm-up and the end of the window."""

    def __init__(self, warmup_s: float, window_s: float) -> None:
        self._warmup_s, self._window_s = warmup_s, window_s
        self._created_at = time.perf_counter()
        self._cpu_s = 0.0
        self._start: tuple[float, int] | None = None
        self._end = (0.0, 0)
        self._seen = 0  # iterations that began before the window

    def is_over(self, env_steps: int) -> bool:
        """Take note that an iteration begins now; return whether there is nothing left to measure."""
        now = time.perf_counter()
        if self._start is None:
            if self._seen >= 3 and now - self._created_at >= self._warmup_s:  # compilers warm up by calls, not seconds
                self._start, self._cpu_s = (now, env_steps), time.process_time()
            self._seen += 1
            return False
        self._end = (now, env_steps)
        return now - self._start[0] >= self._window_s

    def report(self, library: str, version: str) -> None:
        """Print the one line that the benchmark reads."""
        assert self._start is not None, "the run ended before its window"
        seconds, env_steps = self._end[0] - self._start[0], self._end[1] - self._start[1]
        line: dict[str, Any] = {
            "library": library,
            "version": version,
            "env_steps_per_s": env_steps / seconds,
            "env_steps": env_steps,
            "seconds": seconds,
            "cores_used": (time.process_time() - self._cpu_s) / seconds,
        }
        print(json.dumps(line))
