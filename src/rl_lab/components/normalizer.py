"""Running normalisation of observations and scaling of rewards. Modules, so that they are saved with the policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

import torch
from torch import Tensor, nn

from rl_lab.core.ranks import ALONE, Ranks
from rl_lab.ops.losses import Values, normalized
from rl_lab.ops.returns import linear_recurrence
from rl_lab.ops.running_stats import Moments, batch_moments, merged_moments


class RunningNormalizer(nn.Module):
    """Subtracts the running mean and divides by the running standard deviation; before any update, the identity.

    Args:
        shape: Shape of one sample.
        clip: Bound on the absolute value of the result, in standard deviations.
        eps: Added to the variance.
        ranks: Whose samples are merged together.
    """

    mean: Tensor
    var: Tensor
    count: Tensor
    inv_std: Tensor

    def __init__(self, shape: Sequence[int], clip: float = 10.0, eps: float = 1e-8, ranks: Ranks = ALONE) -> None:
        super().__init__()
        self.clip, self.eps, self.ranks = clip, eps, ranks
        self.register_buffer("mean", torch.zeros(tuple(shape)))
        self.register_buffer("var", torch.ones(tuple(shape)))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("inv_std", torch.ones(tuple(shape)))

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised `x` [..., *shape]."""
        return ((x - self.mean) * self.inv_std).clamp(-self.clip, self.clip)

    @torch.no_grad()
    def update(self, batch: Tensor) -> None:
        """Merge the samples of `batch` [B, *shape] into the statistics."""
        new = of_all_ranks(batch_moments(batch, self.count), self.ranks)
        merged = merged_moments(Moments(self.mean, self.var, self.count), new)
        self.mean.copy_(merged.mean)
        self.var.copy_(merged.var)
        self.count.view(1).copy_(merged.num_samples)  # torch's compiler loses what is written to a float64 scalar
        self.inv_std.copy_((merged.var + self.eps).rsqrt())


class KeyedNormalizer(nn.Module):
    """Normalises each key of a dict of vectors by statistics of its own.

    Args:
        dims: Width of each key.
        ranks: Whose samples are merged together.
    """

    def __init__(self, dims: Mapping[str, int], ranks: Ranks = ALONE) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({key: RunningNormalizer((dim,), ranks=ranks) for key, dim in dims.items()})

    def forward(self, x: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the normalised vectors [..., dim]."""
        return {key: part(x[key]) for key, part in self.parts.items()}

    def update(self, batch: Mapping[str, Tensor]) -> None:
        """Merge the samples of each key [B, dim] into its statistics."""
        for key, part in self.parts.items():
            part.update(batch[key])  # type: ignore[operator]


class RewardScaler(nn.Module):
    """Divides rewards by the running standard deviation of the discounted return of each environment.

    Args:
        num_envs: Number of environments, each of which has a return that goes on from rollout to rollout.
        gamma: Discount of that return, per env step.
        clip: Bound on the absolute value of a scaled reward.
        ranks: Whose returns are merged together.
    """

    returns: Tensor

    def __init__(self, num_envs: int, gamma: float, clip: float = 10.0, ranks: Ranks = ALONE) -> None:
        super().__init__()
        self.gamma, self.clip = gamma, clip
        self.statistics = RunningNormalizer((), ranks=ranks)
        self.register_buffer("returns", torch.zeros(num_envs), persistent=False)  # no weight: of these copies

    def forward(self, rewards: Tensor) -> Tensor:
        """Return the scaled rewards; their mean is not moved, so that their signs stay."""
        return (rewards * self.statistics.inv_std).clamp(-self.clip, self.clip)

    @torch.no_grad()
    def update(self, rewards: Tensor, dones: Tensor) -> None:
        """Follow `R_t = r_t + gamma (1 - done_{t-1}) R_{t-1}` over rewards [T, N] and merge its statistics."""
        carried = torch.cat([(self.gamma * self.returns).unsqueeze(0), torch.zeros_like(rewards[1:])])
        keep = self.gamma * ~torch.cat([torch.zeros_like(dones[:1]), dones[:-1]])
        returns = linear_recurrence(keep.flip(0), (rewards + carried).flip(0)).flip(0)
        self.statistics.update(returns.flatten())
        self.returns.copy_(returns[-1] * ~dones[-1])


def of_all_ranks(moments: Moments, ranks: Ranks) -> Moments:
    """Return the moments of all ranks' samples together, given those of this rank's, which are as many as any's."""
    if ranks.size == 1:
        return moments
    every = ranks.cat(torch.stack((moments.mean, moments.var)).unsqueeze(0))
    parts = [Moments(each[0], each[1], moments.num_samples) for each in every]
    return reduce(merged_moments, parts)


def normalized_over(ranks: Ranks, x: Values, eps: float = 1e-8) -> Values:
    """Return `x`, a tensor or an array, with mean 0 and standard deviation 1 over the elements of all ranks."""
    if ranks.size == 1:
        return normalized(x, eps)
    flat = torch.as_tensor(x).flatten()
    moments = of_all_ranks(batch_moments(flat, flat[0]), ranks)
    result = (torch.as_tensor(x) - moments.mean) / (moments.var.sqrt() + eps)
    return result if isinstance(x, Tensor) else result.numpy()
