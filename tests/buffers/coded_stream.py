"""Streams of vector steps whose every number tells where it comes from, and pieces of them."""

import numpy as np
import torch

from rl_lab.core import tree_map


def stream(steps, lanes, seed, end_share=0.2):
    """A trajectory whose every number tells where it comes from: lane, episode and step."""
    rng = np.random.default_rng(seed)
    episode, at = np.zeros(lanes, int), np.zeros(lanes, int)
    rows = []
    for _ in range(steps):
        ended = rng.random(lanes) < end_share
        terminated = ended & (rng.random(lanes) < 0.5)
        code = np.arange(lanes) * 1000 + episode * 40 + at
        row = {
            "observations": torch.tensor(np.stack([code, -code], 1), dtype=torch.float32),
            "actions": torch.tensor(code % 5),
            "rewards": torch.tensor(code + 0.5, dtype=torch.float32),
            "terminated": torch.tensor(terminated),
            "truncated": torch.tensor(ended & ~terminated),
            "final_observations": torch.tensor(np.stack([code + 1, -code - 1], 1), dtype=torch.float32),
            "is_first": torch.tensor(at == 0),
            "latent": torch.tensor(code * 2.0, dtype=torch.float32),
        }
        rows.append(row)
        episode, at = episode + ended, np.where(ended, 0, at + 1)
    return tree_map(lambda *leaves: torch.stack(leaves), *rows)


def cut(trajectory, pieces):
    start = 0
    for size in pieces:
        if start < trajectory["rewards"].shape[0]:
            yield tree_map(lambda x, s=start, n=size: x[s : s + n], trajectory)
        start += size
    if start < trajectory["rewards"].shape[0]:
        yield tree_map(lambda x: x[start:], trajectory)
