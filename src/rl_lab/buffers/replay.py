"""Uniform experience replay (Lin, 1992), with n-step returns and pictures stored once."""

from __future__ import annotations

from rl_lab.buffers.ring import RingBuffer
from rl_lab.core import Batch


class ReplayBuffer(RingBuffer):
    """Draws env steps uniformly, with replacement.

    Args:
        capacity: Env steps to keep, shared by all environment copies.
        batch_size: Transitions per batch.
        n_step: Steps of reward in one transition; fewer at the end of an episode and of what is stored.
        gamma: Discount per step; where YAML says none, that of the workflow.
        min_size: Env steps before the first batch; null: batch_size.
        frame_stack: Frames that a picture shows along its channels; what they share is stored once.
        storage: device (where training happens), host (its memory) or disk (mapped files, may be larger than memory).
        device: Where batches go; the lab gives it.
        num_envs: Environment copies; the lab gives it.
        spec: What a step looks like; the lab gives it.
        seed: Of the sampler; the lab gives it.
    """

    def sample(self) -> Batch:
        """Return `batch_size` transitions."""
        self._reject_early()
        return self._fetch(self._uniform(self.batch_size))
