"""The recurrent state-space model of PlaNet (Hafner et al., 2019) and of every Dreamer since, as switches.

A state has a deterministic part, which a recurrent core steps, and a stochastic part, which is drawn: from the
posterior where there is an observation, from the prior where the model dreams.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from rl_lab.components.dynamics import Dynamics, Latent, Observed
from rl_lab.components.latents import LatentKind, latent_space
from rl_lab.components.layers import STYLE, LayerStyle, Stack, dense
from rl_lab.components.model_actions import limited
from rl_lab.components.rssm_cores import CoreKind, SplitLinear, make_core
from rl_lab.components.scan import Fuse, Scan, Step, Tensors
from rl_lab.core.context import as_it_is
from rl_lab.core.ranges import Count, Natural, Positive, UnitInterval


class RSSM(Dynamics):
    """Filters and dreams.

    Args:
        deter_dim: Width of the deterministic part.
        hidden_dim: Width of the layers around it.
        num_variables: Gaussians, or categorical variables, of the stochastic part.
        num_classes: Of each categorical variable.
        latent: gaussian or categorical.
        core: gru (PlaNet, DreamerV1), layer_norm_gru (V2, V3 2023) or block_gru (V3 2024).
        num_blocks: Of a block_gru.
        prior_layers: Dense layers from the deterministic part to the prior.
        style: Of the layers.
        initial: Whether episodes begin at zeros or at a learned state.
        unimix: Share of the uniform distribution in categorical beliefs.
        min_std: Smallest standard deviation of Gaussian ones.
    """

    def __init__(
        self,
        deter_dim: Count = 512,
        hidden_dim: Count = 64,
        num_variables: Count = 32,
        num_classes: Count = 4,
        *,
        latent: LatentKind = "categorical",
        core: CoreKind = "block_gru",
        num_blocks: Count = 8,
        prior_layers: Natural = 2,
        style: LayerStyle = STYLE,
        initial: Literal["zeros", "learned"] = "zeros",
        unimix: UnitInterval = 0.01,
        min_std: Positive = 0.1,
    ) -> None:
        super().__init__()
        self.deter_dim, self.hidden_dim, self.style = deter_dim, hidden_dim, style
        self.latent_space = latent_space(latent, num_variables, num_classes, unimix, min_std)
        self._core_kind, self._num_blocks, self._prior_layers, self._initial = core, num_blocks, prior_layers, initial

    def bind(self, token_dim: int, action_dim: int, fuse: Fuse = as_it_is) -> None:
        """Make the layers; `fuse` makes kernels of the steps."""
        style, hidden, space = self.style, self.hidden_dim, self.latent_space
        self.core = make_core(self._core_kind, self.deter_dim, space.dim, action_dim, hidden, self._num_blocks, style)
        stack = Stack(self.deter_dim, hidden, self._prior_layers, style)
        self.prior = nn.Sequential(stack, dense(stack.output_dim, space.num_params, style.init))
        self.posterior_input = SplitLinear(token_dim, self.deter_dim, hidden, style)
        self.posterior_output = dense(hidden, space.num_params, style.init)
        is_learned = self._initial == "learned"
        self.initial_deter = nn.Parameter(torch.zeros(self.deter_dim)) if is_learned else None
        self._filtering, self._imagining = Scan(FilterStep(self), fuse), Scan(ImagineStep(self), fuse)

    def initial(self, batch: int, device: torch.device) -> Latent:
        """Return the states [batch, ...] at an episode's start."""
        if self.initial_deter is None:
            return Latent(
                torch.zeros(batch, self.deter_dim, device=device),
                torch.zeros(batch, self.latent_space.dim, device=device),
            )
        deter = torch.tanh(self.initial_deter).expand(batch, -1)
        return Latent(deter, self.latent_space.mode(self.latent_space.belief(self.prior(deter))))

    def observe(self, tokens: Tensor, actions: Tensor, is_first: Tensor, start: Latent) -> Observed:
        """Filter tokens [T, B, E]; actions [T, B, A] led to them, `start` [B, ...] is the state before the first."""
        space, goes_on = self.latent_space, (~is_first).to(tokens.dtype).unsqueeze(-1)  # [T, B, 1]
        embedded = self.core.embed(limited(actions) * goes_on)
        seen = self.posterior_input.early(tokens)
        noise = space.noise(tuple(is_first.shape), tokens.device)
        deter, stoch, posterior = self._filtering(
            tuple(start), (goes_on, embedded, seen, noise, *self._restarts(goes_on))
        )
        return Observed(Latent(deter, stoch), posterior, space.belief(self.prior(deter)))

    def _restarts(self, goes_on: Tensor) -> tuple[Tensor, ...]:
        """Return the states [..., D] of episodes' starts where there is one, else zeros; none if all begin at zeros."""
        if self.initial_deter is None:
            return ()
        return tuple((1.0 - goes_on) * leaf for leaf in self.initial(1, goes_on.device))

    def observe_step(self, latent: Latent, action: Tensor, token: Tensor, is_first: Tensor) -> Latent:
        """Return the state [B, ...] after one observation; at an episode's start what came before is forgotten."""
        goes_on = (~is_first).to(token.dtype).unsqueeze(-1)
        embedded, seen = self.core.embed(limited(action) * goes_on), self.posterior_input.early(token)
        noise = self.latent_space.noise((len(token),), token.device)
        deter, stoch, _ = self._filtering.step(
            tuple(latent), (goes_on, embedded, seen, noise, *self._restarts(goes_on))
        )
        return Latent(deter, stoch)

    def imagine_step(self, latent: Latent, action: Tensor, noise: Tensor | None = None) -> Latent:
        """Return a state that may follow an action [B, A]."""
        deter = self.core(latent.deter, latent.stoch, self.core.embed(limited(action)))
        belief = self.latent_space.belief(self.prior(deter))
        drawn = self.latent_space.noise((len(action),), action.device) if noise is None else noise
        return Latent(deter, self.latent_space.sample(belief, drawn))

    def imagine(self, start: Latent, actions: Tensor) -> Latent:
        """Return the states [H, B, ...] that may follow actions [H, B, A] from states [B, ...]."""
        noise = self.latent_space.noise(tuple(actions.shape[:2]), actions.device)
        return Latent(*self._imagining(tuple(start), (actions, noise)))


class FilterStep(Step):
    """Takes one observation into the state.

    Args:
        rssm: Whose state.
    """

    def __init__(self, rssm: RSSM) -> None:
        super().__init__()
        self.core, self.latent_space = rssm.core, rssm.latent_space
        self.posterior_input, self.posterior_output = rssm.posterior_input, rssm.posterior_output

    def forward(self, carry: Tensors, inputs: Tensors) -> Tensors:
        """Return the state and the belief it was drawn from."""
        goes_on, embedded, seen, noise, *restarts = inputs
        deter, stoch = (leaf * goes_on for leaf in carry)
        if restarts:
            deter, stoch = deter + restarts[0], stoch + restarts[1]
        deter = self.core(deter, stoch, embedded)
        belief = self.latent_space.belief(self.posterior_output(self.posterior_input(seen, deter)))
        return deter, self.latent_space.sample(belief, noise), belief


class ImagineStep(Step):
    """Takes one action in the model.

    Args:
        rssm: The model.
    """

    def __init__(self, rssm: RSSM) -> None:
        super().__init__()
        self.rssm = rssm

    def forward(self, carry: Tensors, inputs: Tensors) -> Tensors:
        """Return the next state."""
        return tuple(self.rssm.imagine_step(Latent(*carry), *inputs))
