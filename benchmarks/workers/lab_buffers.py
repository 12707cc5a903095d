"""The lab's replay and sequence buffers."""

from __future__ import annotations

from typing import Any

import torch
from buffer_task import POOL, Task, fill, make_pool, rate, read_task, report, truncations

import rl_lab
from rl_lab.buffers.replay import ReplayBuffer
from rl_lab.buffers.sequence import SequenceBuffer
from rl_lab.core import Buffer


def make(task: Task, batch_size: int) -> Buffer:
    """Return the buffer that the task asks for."""
    if task.kind == "sequences":
        options = {"num_envs": task.num_envs, "cross_episodes": False}  # as torchrl's slices, within one episode
        return SequenceBuffer(task.capacity, batch_size, task.sequence_length, **options)
    return ReplayBuffer(task.capacity, batch_size, num_envs=task.num_envs, frame_stack=task.frame_stack)


def main() -> None:
    task = read_task()
    torch.set_num_threads(task.threads)
    pool = {key: torch.from_numpy(value) for key, value in make_pool(task).items()}
    ends = torch.from_numpy(truncations(task, 0, task.episode_length + POOL))
    starts = ends.roll(1, 0)
    starts[0] = True

    def chunk(step: int, begin: int, end: int) -> dict[str, Any]:
        part = {key: value[begin:end] for key, value in pool.items()}
        at = step % task.episode_length
        flags = {"truncated": ends[at : at + end - begin], "is_first": starts[at : at + end - begin]}
        return {**part, **flags, "terminated": torch.zeros_like(flags["truncated"])}

    numbers: dict[str, float] = {}
    buffer = make(task, task.batch_sizes[0])
    numbers["add"] = fill(task, lambda *at: buffer.add(chunk(*at)), chunk=64)
    numbers["add one step"] = rate(
        lambda n: buffer.add(chunk(1, 1 + n % 200, 2 + n % 200)), task.num_envs, task.window_s
    )
    state = buffer.get_state()
    for batch_size in task.batch_sizes:
        sampler = make(task, batch_size)
        sampler.set_state(state)
        rows = batch_size * (task.sequence_length if task.kind == "sequences" else 1)
        numbers[f"sample {batch_size}"] = rate(lambda _, sampler=sampler: sampler.sample(), rows, task.window_s)
    report("lab", rl_lab.__version__, numbers)


if __name__ == "__main__":
    main()
