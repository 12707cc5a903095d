"""One encoder per key of a dict observation, their features side by side."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rl_lab.core import ACTION_MASK, ConfigError


class DictEncoder(nn.Module):
    """Encodes `obs[key]` by `encoders[key]` and concatenates; `action_mask` is for the policy's head and is skipped.

    Args:
        encoders: An encoder with an `output_dim` for each key to read; other keys are ignored.
    """

    def __init__(self, encoders: Mapping[str, nn.Module]) -> None:
        super().__init__()
        if ACTION_MASK in encoders or not encoders:
            raise ConfigError(f"DictEncoder: encoders must name at least one key, and not {ACTION_MASK!r}")
        self.encoders = nn.ModuleDict(dict(encoders))
        self.output_dim = sum(encoder.output_dim for encoder in encoders.values())  # type: ignore[misc]

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Return features [..., output_dim]."""
        missing = sorted(set(self.encoders) - set(obs))
        if missing:
            raise ConfigError(f"DictEncoder: no key {missing[0]!r} in the observation (choices: {', '.join(obs)})")
        return torch.cat([encoder(obs[key]) for key, encoder in self.encoders.items()], -1)
