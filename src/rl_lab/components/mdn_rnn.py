"""The memory of World Models (Ha and Schmidhuber, 2018): an LSTM that says by mixtures of normals what comes next.

It reads a latent and the action that follows it. Each number of the next latent has a mixture of its own; the reward
and whether the episode ends are predicted beside them, so that whole episodes can be dreamt.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_lab.components.layers import dense
from rl_lab.components.precision import in_float32
from rl_lab.components.scan import Fuse, Scan, Step, Tensors
from rl_lab.core.context import as_it_is
from rl_lab.core.ranges import Count, NonNegative
from rl_lab.ops.mixtures import Mixture, mixture_log_prob

FORGET_BIAS = 1.0  # gates begin open


class MemoryState(NamedTuple):
    """The state of the LSTM, [..., H] each."""

    hidden: Tensor
    cell: Tensor


class Outlook(NamedTuple):
    """What is expected to come next."""

    latents: Mixture  # [..., Z, K]
    rewards: Tensor  # [...]
    ends: Tensor  # [...] logits of the episode's end


class LSTMStep(Step):
    """One step of an LSTM whose share of the inputs was computed before.

    Args:
        hidden_dim: Size of the state.
    """

    def __init__(self, hidden_dim: int) -> None:
        super().__init__()
        self.gates = dense(hidden_dim, 4 * hidden_dim, "glorot", bias=False)

    def forward(self, carry: Tensors, inputs: Tensors) -> Tensors:
        """Return hidden and cell [B, H] after inputs [B, 4 H]; where `keep` [B, 1] is 0 nothing came before."""
        hidden, cell = carry
        given, keep = inputs
        write, forget, new, read = (given + self.gates(hidden * keep)).float().chunk(4, -1)
        cell = forget.sigmoid() * cell * keep + write.sigmoid() * new.tanh()
        return read.sigmoid() * cell.tanh(), cell


class MDNRNN(nn.Module):
    """Predicts latents, rewards and ends.

    Args:
        hidden_dim: Size of the LSTM's state.
        num_mixtures: Normals of each number of a latent.
        reward_scale: Weight of the reward's loss, half its squared error.
        end_scale: Weight of the loss of ends, their cross-entropy.
        end_weight: How much more a row that ends an episode counts there; 1 keeps probabilities true.
    """

    def __init__(
        self,
        hidden_dim: Count = 256,
        num_mixtures: Count = 5,
        *,
        reward_scale: NonNegative = 1.0,
        end_scale: NonNegative = 1.0,
        end_weight: NonNegative = 1.0,
    ) -> None:
        super().__init__()
        self.hidden_dim, self.num_mixtures = hidden_dim, num_mixtures
        self.reward_scale, self.end_scale, self.end_weight = reward_scale, end_scale, end_weight

    def bind(self, latent_dim: int, action_dim: int, fuse: Fuse = as_it_is) -> None:
        """Make the layers; `fuse` makes kernels of a step and of the losses."""
        self.latent_dim = latent_dim
        self.input = dense(latent_dim + action_dim, 4 * self.hidden_dim, "glorot")
        with torch.no_grad():
            self.input.bias[self.hidden_dim : 2 * self.hidden_dim] = FORGET_BIAS
        self.step = LSTMStep(self.hidden_dim)
        self.out = dense(self.hidden_dim, 3 * latent_dim * self.num_mixtures + 2, "glorot")
        self._scan, self._explain = Scan(self.step, fuse), fuse(self._explained)

    def initial(self, count: int, device: torch.device) -> MemoryState:
        """Return the state before an episode."""
        return MemoryState(*torch.zeros(2, count, self.hidden_dim, device=device).unbind())

    def advance(self, memory: MemoryState, latents: Tensor, actions: Tensor) -> MemoryState:
        """Return the state [B, H] after a latent [B, Z] and the action [B, A] that follows it."""
        given = self.input(torch.cat([latents, actions], -1))
        return MemoryState(*self.step(memory, (given, torch.ones_like(given[:, :1]))))

    def observe(self, latents: Tensor, actions: Tensor, is_first: Tensor) -> MemoryState:
        """Return the states [T, B, H] after each of T rows: latents, the actions that follow, and where episodes begin.

        The memory is empty before the first row.
        """
        given = self.input(torch.cat([latents, actions], -1))
        keep = (~is_first).unsqueeze(-1).to(given.dtype)
        return MemoryState(*self._scan(self.initial(latents.shape[1], latents.device), (given, keep)))

    def outlook(self, hidden: Tensor) -> Outlook:
        """Return what is expected after states [..., H]."""
        outputs = in_float32(self.out, hidden)
        parts = outputs[..., :-2].unflatten(-1, (3, self.latent_dim, self.num_mixtures))
        return Outlook(Mixture(*parts.unbind(-3)), outputs[..., -2], outputs[..., -1])

    def losses(
        self, latents: Tensor, actions: Tensor, rewards: Tensor, is_terminal: Tensor, is_first: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of rows [T, B, ...] of arrival, and its terms; `actions` and `rewards` led to their rows."""
        memory = self.observe(latents[:-1], actions[1:], is_first[:-1])
        return self._explain(memory.hidden, latents[1:], rewards[1:], is_terminal[1:], is_first[1:])

    def _explained(
        self, hidden: Tensor, latents: Tensor, rewards: Tensor, is_terminal: Tensor, is_first: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the losses of what followed states; the first row of an episode follows from nothing."""
        expected, ends = self.outlook(hidden), is_terminal.to(rewards.dtype)
        counts = (~is_first).to(rewards.dtype)
        total = counts.sum().clamp(min=1.0)

        def mean(values: Tensor) -> Tensor:
            return (values * counts).sum() / total

        nll = -mean(mixture_log_prob(expected.latents, latents).mean(-1))
        reward = self.reward_scale * 0.5 * mean((expected.rewards - rewards).square())
        emphasis = 1.0 + (self.end_weight - 1.0) * ends
        end = F.binary_cross_entropy_with_logits(expected.ends, ends, reduction="none")
        end = self.end_scale * mean(emphasis * end)
        terms = {"latent_loss": nll.detach(), "reward_loss": reward.detach(), "end_loss": end.detach()}
        return nll + reward + end, terms
