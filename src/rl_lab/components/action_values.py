"""Critics of actions: N at once, as plain values or as distributions over returns on fixed atoms."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rl_lab.components.ensemble import EnsembleLinear, EnsembleMLP
from rl_lab.components.learner import Learner
from rl_lab.components.perception import weighted_mean
from rl_lab.components.precision import in_float32
from rl_lab.core import Box, ConfigError, Space, flat_dim
from rl_lab.ops.distributional import cross_entropy, project


@dataclass(frozen=True)
class ValueRange:
    """The atoms that returns are distributed over.

    Args:
        low: Smallest return.
        high: Largest return.
        num_atoms: Values in between, both included.
    """

    low: float
    high: float
    num_atoms: int = 101

    def __post_init__(self) -> None:
        if self.low >= self.high or self.num_atoms < 2:
            raise ConfigError(
                f"algorithm.value_range: {self.num_atoms} atoms from {self.low} to {self.high} (at least 2, low < high)"
            )

    def atoms(self) -> Tensor:
        """Return the atoms, evenly spaced."""
        return torch.linspace(self.low, self.high, self.num_atoms)


class ActionValues(nn.Module):
    """Critics on a batched trunk: of continuous actions they read, or of every choice of discrete ones.

    Args:
        trunk: `components.critic`.
        space: Of the actions.
        value_range: Atoms of distributional critics; None: a critic puts out the value itself.
    """

    support: Tensor

    def __init__(self, trunk: nn.Module, space: Space, value_range: ValueRange | None = None) -> None:
        super().__init__()
        if not isinstance(trunk, EnsembleMLP):
            raise ConfigError("components.critic: needs an EnsembleMLP")
        self.trunk = trunk
        self.num_choices = None if isinstance(space, Box) else flat_dim(space)
        self.is_distributional = value_range is not None
        self.num_atoms = 1 if value_range is None else value_range.num_atoms
        self.head = EnsembleLinear(trunk.num_members, trunk.output_dim, (self.num_choices or 1) * self.num_atoms)
        self.register_buffer("support", torch.zeros(1) if value_range is None else value_range.atoms())

    def forward(self, features: Tensor, actions: Tensor | None) -> Tensor:
        """Return outputs [members, B] for actions in [-1, 1] or chosen ones, [members, B, n] for None: every choice.

        Those of distributional critics have the atoms as another last dimension.
        """
        if self.num_choices is None:
            assert actions is not None
            out = in_float32(self.head, self.trunk(torch.cat([features, actions], -1)))
            return out if self.is_distributional else out.squeeze(-1)
        out = in_float32(self.head, self.trunk(features))
        if self.is_distributional:
            out = out.unflatten(-1, (self.num_choices, self.num_atoms))
        return out if actions is None else chosen(out, actions)

    def values(self, outputs: Tensor) -> Tensor:
        """Return the values [members, B] or [members, B, n] that outputs stand for."""
        return (outputs.softmax(-1) * self.support).sum(-1) if self.is_distributional else outputs

    def targets(self, outputs: Tensor, rewards: Tensor, discounts: Tensor, bonus: Tensor) -> Tensor:
        """Return what `outputs` [B] or [B, atoms] of the next actions, plus `bonus` [B], are worth a step earlier."""
        if not self.is_distributional:
            return rewards + discounts * (outputs + bonus)
        moved = rewards[:, None] + discounts[:, None] * (self.support + bonus[:, None])
        return project(outputs.softmax(-1), moved, self.support)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss [members, B] of each critic and row."""
        return cross_entropy(outputs, targets) if self.is_distributional else 0.5 * (outputs - targets).square()

    def lowest(self, outputs: Tensor) -> Tensor:
        """Return, row by row, the output of the critic with the lowest value: [B] or [B, atoms]."""
        if not self.is_distributional:
            return outputs.amin(0)
        index = self.values(outputs).argmin(0)  # [B]
        return outputs.gather(0, index[None, :, None].expand(1, *outputs.shape[1:])).squeeze(0)


def chosen(outputs: Tensor, actions: Tensor) -> Tensor:
    """Return the outputs of the chosen `actions` [B] among those of every choice, [members, B, n] or with atoms."""
    is_chosen = torch.arange(outputs.shape[2], device=outputs.device) == actions.unsqueeze(-1)  # [B, n]
    mask = is_chosen if outputs.ndim == 3 else is_chosen.unsqueeze(-1)
    return torch.where(mask, outputs, 0.0).sum(2)  # a gather's gradient waits for the host where it is deterministic


def random_members(outputs: Tensor, count: int) -> Tensor:
    """Return `count` members of `outputs` [members, ...], drawn without replacement (REDQ; Chen et al., 2021)."""
    return outputs.index_select(0, torch.rand(outputs.shape[0], device=outputs.device).topk(count).indices)


def descend_critics(
    critic: ActionValues, learner: Learner, outputs: Tensor, targets: Tensor, weights: Tensor | None
) -> tuple[dict[str, Tensor], Tensor]:
    """Move critics from their outputs towards targets; return metrics and the errors [R] that make priorities."""
    losses = critic.losses(outputs, targets)  # [members, R]
    loss = weighted_mean(losses, weights, learner.ranks).sum()
    norm = learner.descend(loss)
    values = critic.values(outputs.detach())
    errors = losses.detach().mean(0) if critic.is_distributional else (values - targets).abs().mean(0)
    return {"critic_loss": loss.detach(), "critic_grad_norm": norm, "q": values.mean()}, errors
