"""Distributions of policies that propose actions to a planner: TD-MPC's and TD-MPC2's (Hansen et al., 2022, 2024)."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_lab.ops.distributions import HALF_LOG_TAU
from rl_lab.ops.world_distributions import CLIP, BoundedNormal, Joint, TanhNormal, WorldDistribution

NOISE_CLIP = 0.3  # how far a sample of a clipped normal may be from its mean; nicklashansen/tdmpc


class SquashedNormal(TanhNormal):
    """Independent normals seen through tanh, of any mean; what they are centred at is their mode (TD-MPC2)."""

    def mode(self) -> Tensor:
        """Return the mean seen through tanh."""
        return self.mean.tanh()

    def entropy(self) -> Tensor:
        """Return TD-MPC2's bonus: the entropy of the normals before tanh, times how many they are."""
        return self.shape[-1] * BoundedNormal.entropy(self)


def entropy_of_used(pi: WorldDistribution, used: Tensor | None) -> Tensor:
    """Return the entropy of a policy, in which squashed normals count only the entries [..., A] that a task uses."""
    if used is not None and isinstance(pi, SquashedNormal):
        return used.sum(-1) * ((pi.std.log() + (HALF_LOG_TAU + 0.5)) * used).sum(-1)
    if used is not None and isinstance(pi, Joint):
        pairs = zip(pi.parts, used.split(pi.sizes, -1), strict=True)
        return torch.stack([entropy_of_used(part, own) for part, own in pairs]).sum(0)
    return pi.entropy()


class ClippedNormal(BoundedNormal):
    """Normals around means in [-1, 1] whose noise is cut at 0.3, as are samples outside of [-1, 1] (TD-MPC)."""

    def _shaped(self, noise: Tensor) -> Tensor:
        """Return clipped samples with the gradient of what was not."""
        actions = self.mean + (self.std * noise.to(self.mean.dtype)).clamp(-NOISE_CLIP, NOISE_CLIP)
        return actions.detach().clamp(-1.0 + CLIP, 1.0 - CLIP) + (actions - actions.detach())
