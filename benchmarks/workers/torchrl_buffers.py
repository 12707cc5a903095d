"""TorchRL's replay buffer over a tensor storage: random transitions, or slices of trajectories."""

from __future__ import annotations

import torch
import torchrl
from buffer_task import POOL, Task, fill, make_pool, rate, read_task, report, truncations
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, RandomSampler, SliceSampler, TensorDictReplayBuffer


def make(task: Task) -> TensorDictReplayBuffer:
    """Return the buffer that the task asks for, with one lane per environment where it matters."""
    if task.kind == "sequences":
        storage = LazyTensorStorage(task.capacity, ndim=2)
        sampler = SliceSampler(slice_len=task.sequence_length, end_key=("next", "done"), cache_values=True)
        return TensorDictReplayBuffer(storage=storage, sampler=sampler, dim_extend=1)
    return TensorDictReplayBuffer(storage=LazyTensorStorage(task.capacity), sampler=RandomSampler())


def main() -> None:
    task = read_task()
    torch.set_num_threads(task.threads)
    pool = {key: torch.from_numpy(value) for key, value in make_pool(task).items()}
    ends = torch.from_numpy(truncations(task, 0, task.episode_length + POOL))
    is_sequence = task.kind == "sequences"

    def chunk(step: int, begin: int, end: int) -> TensorDict:
        count = end - begin
        done = ends[step % task.episode_length :][:count, :, None]
        never = torch.zeros_like(done)
        after = {
            "observation": pool["final_observations"][begin:end],
            "reward": pool["rewards"][begin:end, :, None],
            "done": done,
            "truncated": done,
            "terminated": never,
        }
        row = {"observation": pool["observations"][begin:end], "action": pool["actions"][begin:end], "next": after}
        data = TensorDict(row, batch_size=[count, task.num_envs])
        return data.transpose(0, 1).contiguous() if is_sequence else data.reshape(-1)

    buffer = make(task)
    numbers = {"add": fill(task, lambda *at: buffer.extend(chunk(*at)), chunk=64)}
    if not is_sequence:  # `extend` of a storage with lanes fails on a single step
        numbers["add one step"] = rate(
            lambda n: buffer.extend(chunk(1, 1 + n % 200, 2 + n % 200)), task.num_envs, task.window_s
        )
    for batch_size in task.batch_sizes:
        rows = batch_size * (task.sequence_length if is_sequence else 1)
        numbers[f"sample {batch_size}"] = rate(lambda _, rows=rows: buffer.sample(rows), rows, task.window_s)
    report("torchrl", torchrl.__version__, numbers)


if __name__ == "__main__":
    main()
