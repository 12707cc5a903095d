"""Rows of a rollout as sequences, which a memory is trained through."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rl_lab.core import ConfigError, tree_map


def cut_sequences(rows: dict[str, Any], length: int, steps: int, num_envs: int) -> dict[str, Any]:
    """Cut rows [T N, ...] into sequences [L, T N / L, ...]; of the carries only the first of each is kept."""
    length = min(length, steps)
    if steps % length:
        raise ConfigError(f"algorithm.sequence_length: {length} does not divide the {steps} collected vector steps")

    def cut(x: Tensor) -> Tensor:
        return x.unflatten(0, (-1, length, num_envs)).transpose(0, 1).flatten(1, 2)

    cuts = tree_map(cut, rows)
    cuts["carry"] = tree_map(lambda x: x[:1], cuts["carry"])
    return cuts
