"""Deterministic dynamics in the place of an RSSM: the state is what was seen, and an MLP says what follows."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rl_lab.components.dynamics import Dynamics, Latent, Observed
from rl_lab.components.latents import LatentSpace
from rl_lab.components.layers import STYLE, LayerStyle, Stack, dense
from rl_lab.components.model_actions import limited
from rl_lab.components.scan import Fuse
from rl_lab.core.context import as_it_is
from rl_lab.core.ranges import Count, Natural


class PointLatent(LatentSpace):
    """Beliefs that are points: nothing is drawn, and a KL is that of normals of variance 1 around them."""

    dim, num_params = 0, 0

    def belief(self, raw: Tensor) -> Tensor:
        """Return the point."""
        return raw

    def noise(self, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Return no numbers, [..., 0]."""
        return torch.zeros(*shape, 0, device=device)

    def sample(self, belief: Tensor, noise: Tensor) -> Tensor:
        """Return no numbers: a state has no part that is drawn."""
        return belief[..., :0]

    def mode(self, belief: Tensor) -> Tensor:
        """Return no numbers."""
        return belief[..., :0]

    def kl(self, left: Tensor, right: Tensor) -> Tensor:
        """Return half the squared distance."""
        return 0.5 * (left - right).square().sum(-1)

    def entropy(self, belief: Tensor) -> Tensor:
        """Return 0: a point leaves no doubt."""
        return torch.zeros_like(belief[..., 0])


class MLPDynamics(Dynamics):
    """Predicts the change of a state; `kl` of the world model, without free nats, is the loss it learns by.

    States are tokens of the encoder and remember nothing. Every row but the first of a sequence, and of an episode, is
    predicted from the row before it.

    Args:
        units: Width of every layer.
        num_layers: How many.
        style: Of the layers.
    """

    def __init__(self, units: Count = 64, num_layers: Natural = 2, style: LayerStyle = STYLE) -> None:
        super().__init__()
        self.units, self.num_layers, self.style = units, num_layers, style
        self.latent_space = PointLatent()
        self.deter_dim = 0  # until `bind`

    def bind(self, token_dim: int, action_dim: int, fuse: Fuse = as_it_is) -> None:
        """Make the layers; a step is too small to `fuse`."""
        self.deter_dim = token_dim
        stack = Stack(token_dim + action_dim, self.units, self.num_layers, self.style)
        self.change = nn.Sequential(stack, dense(stack.output_dim, token_dim, self.style.init))

    def initial(self, batch: int, device: torch.device) -> Latent:
        """Return the states [batch, ...] before an episode."""
        return Latent(torch.zeros(batch, self.deter_dim, device=device), torch.zeros(batch, 0, device=device))

    def observe(self, tokens: Tensor, actions: Tensor, is_first: Tensor, start: Latent) -> Observed:
        """Return tokens [T, B, E] as states, and as beliefs beside what was expected; `start` is not needed."""
        expected = self._next(tokens[:-1], actions[1:])
        prior = torch.cat([tokens[:1], torch.where(is_first[1:].unsqueeze(-1), tokens[1:], expected)])
        return Observed(_latent(tokens), tokens, prior)

    def observe_step(self, latent: Latent, action: Tensor, token: Tensor, is_first: Tensor) -> Latent:
        """Return the state [B, ...] that was seen."""
        return _latent(token)

    def imagine_step(self, latent: Latent, action: Tensor, noise: Tensor | None = None) -> Latent:
        """Return the state that follows an action [B, A]."""
        return Latent(self._next(latent.deter, action), latent.stoch)

    def imagine(self, start: Latent, actions: Tensor) -> Latent:
        """Return the states [H, B, ...] that follow actions [H, B, A] from states [B, ...]."""
        state, states = start.deter, []
        for action in actions.unbind():
            state = self._next(state, action)
            states.append(state)
        return _latent(torch.stack(states))

    def _next(self, state: Tensor, action: Tensor) -> Tensor:
        return state + self.change(torch.cat([state, limited(action)], -1))


def _latent(state: Tensor) -> Latent:
    return Latent(state, state[..., :0])
