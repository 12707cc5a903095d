"""Action labels from measured states: what a robot did, whatever it was told (Hi-ORS labels its data so).

A command may be cut by limits, held back by contact or carried out late. With `m_t` what is measured before a step and
`m_t+1` after it, the label of the step is `m_t+1` (or `m_t+1 - m_t`, where commands ask for changes), mapped from the
measured range to that of the actions and cut to it. Entries that nothing measures keep the command.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rl_lab.core import Box, ConfigError, EnvSpec, Observation, Trajectory


class ExecutedActions:
    """Puts what was executed in the place of what was commanded.

    Args:
        spec: Of an environment that tells how its observations show what was done.
    """

    def __init__(self, spec: EnvSpec | None) -> None:
        if spec is None or spec.measured is None:
            name = "no environment" if spec is None else repr(spec.id)
            raise ConfigError(f"action_labels=executed: {name} does not tell what was done (choices: commanded)")
        if not isinstance(spec.action, Box):
            raise ConfigError(f"action_labels=executed: the actions of {spec.id!r} are no numbers (choices: commanded)")
        self._measured, self._low, self._high = spec.measured, spec.action.low, spec.action.high
        self._actions, self._shown = (list(column) for column in zip(*spec.measured.entries, strict=True))

    def __call__(self, trajectory: Trajectory) -> Trajectory:
        """Return the trajectory with other actions; the one that was given stays as it is."""
        after = self._read(trajectory["final_observations"])
        if self._measured.is_change:
            after = after - self._read(trajectory["observations"])
        low, high = after.new_tensor(self._measured.low), after.new_tensor(self._measured.high)
        share = ((after - low) / (high - low)).clamp(0.0, 1.0)
        actions = trajectory["actions"].clone()
        actions[..., self._actions] = (self._low + share * (self._high - self._low)).to(actions.dtype)
        return {**trajectory, "actions": actions}

    def _read(self, observations: Observation) -> Tensor:
        numbers = observations if isinstance(observations, Tensor) else observations[self._measured.key]
        return numbers[..., self._shown].to(torch.float32)
