"""Policies that act in world models: from features to actions as an RSSM reads them, and on to the environment."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_lab.components.layers import STYLE, LayerStyle, Stack, dense
from rl_lab.components.model_actions import ModelActions
from rl_lab.components.precision import in_float32
from rl_lab.core import ConfigError, EnvSpec, unknown_name
from rl_lab.core.ranges import Count, Natural, NonNegative, Positive, UnitInterval
from rl_lab.ops.prior_distributions import ClippedNormal, SquashedNormal
from rl_lab.ops.world_distributions import (
    BoundedNormal,
    Joint,
    MultiOneHot,
    OneHot,
    TanhNormal,
    TruncatedNormal,
    WorldDistribution,
)

ActorKind = Literal["tanh_normal", "truncated_normal", "bounded_normal", "clipped_normal", "squashed_normal"]
NORMALS: dict[str, type[BoundedNormal]] = {
    "tanh_normal": TanhNormal,
    "truncated_normal": TruncatedNormal,
    "bounded_normal": BoundedNormal,
    "clipped_normal": ClippedNormal,
    "squashed_normal": SquashedNormal,
}
TANH_MIN_STD = 1e-4  # danijar/dreamer
LOG_STDS = (-10.0, 2.0)  # of squashed normals; tdmpc2/config.yaml
WIDE = 2.0  # what is added to the std of a bounded normal before the sigmoid: it begins at 0.88 of its range


class WorldActor(nn.Module):
    """A policy over numbers in [-1, 1] (continuous actions), over one-hots (discrete ones) or over both (dicts).

    Args:
        units: Width of every layer.
        num_layers: Layers before the output.
        style: Of the layers.
        kind: Distribution of continuous actions: tanh_normal (DreamerV1), truncated_normal (V2), bounded_normal (V3),
            clipped_normal (TD-MPC), squashed_normal (TD-MPC2).
        min_std: Smallest standard deviation of truncated and bounded normals; the only one of clipped normals.
        max_std: Largest standard deviation of bounded normals.
        init_std: First standard deviation of tanh-normals, before tanh.
        mean_scale: Largest mean of tanh-normals, before tanh.
        unimix: Share of the uniform distribution in that over choices.
        scale: Of the output's initial weights.
    """

    def __init__(
        self,
        units: Count,
        num_layers: Natural,
        style: LayerStyle = STYLE,
        *,
        kind: ActorKind = "bounded_normal",
        min_std: Positive = 0.1,
        max_std: Positive = 1.0,
        init_std: Positive = 5.0,
        mean_scale: Positive = 5.0,
        unimix: UnitInterval = 0.0,
        scale: NonNegative = 0.01,
    ) -> None:
        super().__init__()
        if kind not in NORMALS:
            raise ConfigError(unknown_name("kind of actor", kind, NORMALS))
        if min_std > max_std:
            raise ConfigError(f"min_std: {min_std} is larger than max_std, {max_std}")
        self.units, self.num_layers, self.style = units, num_layers, style
        self.kind, self.unimix, self.scale = kind, unimix, scale
        self.min_std, self.max_std, self.mean_scale = min_std, max_std, mean_scale
        self._raw_init_std = init_std + math.log(-math.expm1(-init_std))  # softplus of it is init_std

    def bind(self, feature_dim: int, spec: EnvSpec, workflow: str = "Dreamer") -> None:
        """Make the layers for the actions of an environment; `workflow` is who asks, for errors."""
        assert not self._modules, "an actor is bound once"
        self.actions = ModelActions(spec, workflow)
        self.trunk = Stack(feature_dim, self.units, self.num_layers, self.style)
        if numbers := self.actions.num_numbers:
            self.mean = self._output(numbers)
            if self.kind != "clipped_normal":
                self.std = self._output(numbers)  # apart: clipping by AGC is per tensor
        if choices := self.actions.num_choices:
            self.logits = self._output(choices)

    @property
    def heads(self) -> tuple[nn.Module, ...]:
        """Return the last layers, which compute in float32."""
        return tuple(layer for layer in self.children() if layer is not self.trunk)

    def _output(self, dim: int) -> nn.Linear:
        return dense(self.trunk.output_dim, dim, self.style.init, self.scale)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> WorldDistribution:
        """Return the distribution over actions [..., A], in float32; `mask` is False where a choice is forbidden."""
        hidden = self.trunk(features)
        parts: list[WorldDistribution] = []
        if self.actions.num_numbers:
            parts.append(NORMALS[self.kind](*self._mean_and_std(hidden)))
        if self.actions.nvec:
            parts.append(self._over_choices(in_float32(self.logits, hidden), mask))
        return parts[0] if len(parts) == 1 else Joint(*parts)

    def _over_choices(self, logits: Tensor, mask: Tensor | None) -> WorldDistribution:
        if len(self.actions.nvec) > 1:
            return MultiOneHot(logits, self.actions.nvec, self.unimix, mask)
        return OneHot(logits, self.unimix, mask)

    def _mean_and_std(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the parameters that the raw outputs stand for."""
        mean = in_float32(self.mean, hidden)
        if self.kind == "clipped_normal":
            return mean.tanh(), torch.full_like(mean, self.min_std)
        std = in_float32(self.std, hidden)
        if self.kind == "squashed_normal":
            low, high = LOG_STDS
            return mean, (low + 0.5 * (high - low) * (std.tanh() + 1.0)).exp()
        if self.kind == "tanh_normal":
            bounded = self.mean_scale * (mean / self.mean_scale).tanh()
            return bounded, F.softplus(std + self._raw_init_std) + TANH_MIN_STD
        if self.kind == "truncated_normal":
            return mean.tanh(), 2.0 * (std / 2.0).sigmoid() + self.min_std
        return mean.tanh(), (self.max_std - self.min_std) * (std + WIDE).sigmoid() + self.min_std

    def noise(self, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Draw the noise of samples with these leading dimensions, for all steps at once."""
        parts = []
        if self.actions.num_numbers:
            parts.append(NORMALS[self.kind].noise((*shape, self.actions.num_numbers), device))
        if self.actions.num_choices:
            parts.append(OneHot.noise((*shape, self.actions.num_choices), device))
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)
