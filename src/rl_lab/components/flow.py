"""RealNVP (Dinh et al., 2017, https://arxiv.org/abs/1605.08803): an invertible map from noise, given features."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rl_lab.components.mlp import MLP, orthogonal_linear
from rl_lab.ops.distributions import HALF_LOG_TAU, Distribution, tanh_log_det

SCALE_BOUND = 2.0  # a coupling stretches by at most e^2: keeps the flow invertible in float32


class Coupling(nn.Module):
    """Scales and shifts one half of the dimensions, by what the other half and the features say.

    Args:
        dim: Dimensions of the map.
        context_dim: Number of features.
        is_even: Whether the even dimensions stay as they are, or the odd ones.
        hidden_dim: Width of the network between.
    """

    keeps: Tensor

    def __init__(self, dim: int, context_dim: int, *, is_even: bool, hidden_dim: int = 64) -> None:
        super().__init__()
        keeps = (torch.arange(dim) % 2 == (0 if is_even else 1)).float() if dim > 1 else torch.zeros(1)
        self.register_buffer("keeps", keeps, persistent=False)
        self.net = MLP(dim + context_dim, (hidden_dim,), "relu")
        self.out = orthogonal_linear(hidden_dim, 2 * dim, 0.01)  # nearly the identity at first

    def forward(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """Return the image and the log-determinant."""
        scale, shift = self._coefficients(x, context)
        return x * scale.exp() + shift, scale.sum(-1)

    def inverse(self, y: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """Return what `forward` maps to `y`, and the log-determinant of `forward` there."""
        scale, shift = self._coefficients(y, context)
        return (y - shift) * (-scale).exp(), scale.sum(-1)

    def _coefficients(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        scale, shift = self.out(self.net(torch.cat([x * self.keeps, context], -1))).chunk(2, -1)
        moves = 1.0 - self.keeps
        return SCALE_BOUND * torch.tanh(scale / SCALE_BOUND) * moves, shift * moves


class Flow(nn.Module):
    """Couplings that keep the even and the odd dimensions in turn.

    Args:
        dim: Dimensions of the map.
        context_dim: Number of features.
        num_layers: Couplings.
    """

    def __init__(self, dim: int, context_dim: int, num_layers: int) -> None:
        super().__init__()
        self.dim = dim
        self.couplings = nn.ModuleList(
            Coupling(dim, context_dim, is_even=index % 2 == 0) for index in range(num_layers)
        )

    def forward(self, noise: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """Return the image of `noise` and the log-determinant of the map there."""
        total = noise.new_zeros(noise.shape[:-1])
        for coupling in self.couplings:
            noise, log_det = coupling(noise, context)
            total = total + log_det
        return noise, total

    def inverse(self, image: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """Return the noise behind `image` and the log-determinant of the map there."""
        total = image.new_zeros(image.shape[:-1])
        for index in reversed(range(len(self.couplings))):
            coupling: Coupling = self.couplings[index]  # type: ignore[assignment]
            image, log_det = coupling.inverse(image, context)
            total = total + log_det
        return image, total


class FlowDistribution(Distribution):
    """Standard normal noise through a flow and tanh, spoken of by its latents `u` (the action is `tanh(u)`)."""

    def __init__(self, flow: Flow, features: Tensor) -> None:
        self._flow, self._features = flow, features

    def draw(self) -> tuple[Tensor, Tensor]:
        """Draw latents and return them with their log-density; nothing is inverted."""
        noise = torch.randn(*self._features.shape[:-1], self._flow.dim, device=self._features.device)
        latents, log_det = self._flow(noise, self._features)
        return latents, self._log_normal(noise) - log_det - tanh_log_det(latents).sum(-1)

    def sample(self) -> Tensor:
        """Draw latents."""
        return self.draw()[0]

    def mode(self) -> Tensor:
        """Return the image of the most likely noise."""
        zeros = torch.zeros(*self._features.shape[:-1], self._flow.dim, device=self._features.device)
        return self._flow(zeros, self._features)[0]

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the log-density of `tanh(u)` at the latents `u`."""
        noise, log_det = self._flow.inverse(actions, self._features)
        return self._log_normal(noise) - log_det - tanh_log_det(actions).sum(-1)

    def entropy(self) -> Tensor:
        """Return a one-sample estimate; there is no closed form."""
        return -self.draw()[1]

    @staticmethod
    def _log_normal(noise: Tensor) -> Tensor:
        return -0.5 * noise.square().sum(-1) - HALF_LOG_TAU * noise.shape[-1]
