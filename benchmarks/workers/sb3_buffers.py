"""The replay buffer of Stable-Baselines3, with its memory optimisation when called from `sb3_lean_buffers.py`."""

from __future__ import annotations

import numpy as np
import stable_baselines3
import torch
from buffer_task import Task, fill, make_pool, rate, read_task, report, truncations
from gymnasium.spaces import Box
from stable_baselines3.common.buffers import ReplayBuffer


def make(task: Task, is_lean: bool) -> ReplayBuffer:
    """Return the buffer that the task asks for."""
    low, high, dtype = (0, 255, np.uint8) if task.is_picture else (-np.inf, np.inf, np.float32)
    return ReplayBuffer(
        task.capacity,
        Box(low, high, task.observation, dtype),
        Box(-1.0, 1.0, (task.action,), np.float32),
        device="cpu",
        n_envs=task.num_envs,
        optimize_memory_usage=is_lean,
        handle_timeout_termination=not is_lean,  # it has one or the other
    )


def measure(library: str, *, is_lean: bool) -> None:
    """Fill the buffer and draw from it."""
    task = read_task()
    torch.set_num_threads(task.threads)
    pool = make_pool(task)
    buffer = make(task, is_lean)
    ends = truncations(task, 0, task.episode_length)
    quiet: list[dict] = [{} for _ in range(task.num_envs)]
    timed_out = [{"TimeLimit.truncated": True} for _ in range(task.num_envs)]

    def add(step: int, begin: int, end: int) -> None:
        for offset, at in enumerate(range(begin, end)):  # one vector step at a time is what it takes
            done = ends[(step + offset) % task.episode_length]
            buffer.add(
                pool["observations"][at],
                pool["final_observations"][at],
                pool["actions"][at],
                pool["rewards"][at],
                done,
                timed_out if done[0] else quiet,
            )

    numbers = {"add": fill(task, add, chunk=64)}
    numbers["add one step"] = rate(lambda n: add(1, 1 + n % 200, 2 + n % 200), task.num_envs, task.window_s)
    for batch_size in task.batch_sizes:
        numbers[f"sample {batch_size}"] = rate(
            lambda _, rows=batch_size: buffer.sample(rows), batch_size, task.window_s
        )
    report(library, stable_baselines3.__version__, numbers)


if __name__ == "__main__":
    measure("sb3", is_lean=False)
