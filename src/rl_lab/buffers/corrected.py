"""Episodes under the eyes of an operator, without what had to be corrected.

Where somebody helps, every try becomes a success; who learned all of it would learn to get stuck as well. An episode's
steps before its last intervention are learned from only where the operator acted (HG-DAgger, Kelly et al., 2019); what
the policy did after it, or in an episode that nobody had to help in, is kept as in every episode buffer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl_lab.buffers.episode import EpisodeBuffer
from rl_lab.buffers.storage.placement import Storage
from rl_lab.core import ConfigError, EnvSpec, Trajectory

CORRECTED = "is_corrected"  # of a row: the policy did it, and an operator took over later


class CorrectedBuffer(EpisodeBuffer):
    """An episode buffer whose samples never begin with a step that had to be corrected.

    Where such steps follow in a chunk, after a hand-back, `is_pad` is true for them: a correction ends a chunk. It
    reads `infos.is_intervention`, which `training.operator` brings.

    Args:
        capacity: Rows to keep: one per env step and one per episode.
        batch_size: Steps per batch.
        chunk_length: Actions per sample; null: one, without a dimension of its own.
        history: Observations per sample; null: one, without a dimension of its own.
        min_return: Episodes below it are refused.
        require_info: Name of an info that must be positive at the last step (verdict).
        storage: device (where training happens), host (its memory) or disk (mapped files, may be larger than memory).
        device: Where batches go; the lab gives it.
        num_envs: Environment copies; the lab gives it.
        spec: What a step looks like; the lab gives it.
        seed: Of the sampler; the lab gives it.
    """

    def __init__(
        self,
        capacity: int,
        batch_size: int,
        *,
        chunk_length: int | None = None,
        history: int | None = None,
        min_return: float | None = None,
        require_info: str | None = None,
        storage: Storage = "device",
        device: torch.device | str = "cpu",
        num_envs: int = 1,
        spec: EnvSpec | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(
            capacity,
            batch_size,
            chunk_length=chunk_length,
            history=history,
            min_return=min_return,
            require_info=require_info,
            storage=storage,
            device=device,
            num_envs=num_envs,
            spec=spec,
            seed=seed,
        )

    def _keep(self, episode: Trajectory) -> None:
        super()._keep({**episode, CORRECTED: _corrected(episode)})

    def _starts(self, episode: Trajectory) -> Tensor:
        """Return all steps but those that had to be corrected."""
        return super()._starts(episode)[~episode[CORRECTED]]

    def _padding(self, is_over: Tensor, rows: Any) -> Tensor:
        """Return where an episode was over, or went wrong again."""
        is_corrected: Tensor = rows[CORRECTED]
        return is_over | is_corrected


def _corrected(episode: Trajectory) -> Tensor:
    """Return which steps [T] the policy did itself, in an episode in which an operator took over later."""
    flags = episode.get("infos", {}).get("is_intervention")
    if flags is None:
        raise ConfigError("CorrectedBuffer: steps have no infos.is_intervention; training.operator brings it")
    is_acting: Tensor = flags > 0.0
    return ~is_acting & (is_acting.flip(0).cumsum(0).flip(0) > 0)
