"""Batched tensor environments: a few tensor operations step thousands of copies on any device."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from rl_lab.core import (
    Actions,
    ConfigError,
    EnvironmentFault,
    EnvSpec,
    Observation,
    State,
    Step,
    VectorEnv,
    tree_map,
    tree_where,
)

Dynamics = dict[str, Tensor]  # what one copy is, by name, leading dimension num_envs


class TensorEnv(VectorEnv):
    """Time limit, auto-reset and exact state; a subclass writes the dynamics and the initial state.

    Nothing here looks at a value on the host: fresh initial states are drawn for every copy at every step and chosen
    by mask, so a GPU never waits. `state["elapsed"]` and `state["episode"]` are kept by this class.
    """

    def __init__(self, spec: EnvSpec, num_envs: int, device: torch.device | str = "cpu") -> None:
        if num_envs < 1:
            raise ConfigError(f"environment.num_envs must be 1 or more, got {num_envs}")
        self.spec, self.num_envs, self.device = spec, num_envs, torch.device(device)
        self._generator = torch.Generator(self.device)
        self._state: Dynamics = {}

    @abstractmethod
    def _initial(self) -> Dynamics:
        """Return a first state for every copy, drawn from the environment's own generator."""

    @abstractmethod
    def _advance(self, state: Dynamics, actions: Any) -> tuple[Dynamics, Tensor, Tensor]:
        """Return the next state, rewards [N] and terminated [N] of actions as the spec has them.

        Never writes into `state`.
        """

    @abstractmethod
    def _observe(self, state: Dynamics) -> Observation:
        """Return what the agent sees of `state`."""

    def _is_time_up(self, state: Dynamics) -> Tensor:
        """Return where the episode is cut, [N] bool."""
        limit = self.spec.max_episode_steps
        return state["elapsed"] >= limit if limit else torch.zeros_like(state["elapsed"], dtype=torch.bool)

    def reset(self, seed: int) -> Observation:
        """Start every copy anew; the same seed gives the same episodes."""
        self._generator.manual_seed(seed)
        zeros = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)
        self._state = {**self._initial(), "elapsed": zeros, "episode": zeros}
        return self._observe(self._state)

    def step(self, actions: Actions) -> Step:
        """Step every copy; one that ends its episode is reset within the same call."""
        before = self._state
        after, rewards, terminated = self._advance(before, actions)
        after = {**before, **after, "elapsed": before["elapsed"] + 1}
        truncated = self._is_time_up(after) & ~terminated
        ended = terminated | truncated
        fresh = self._initial()
        self._state = {key: tree_where(ended, fresh[key], after[key]) for key in fresh}
        self._state |= {key: value for key, value in after.items() if key not in fresh}
        self._state["elapsed"] = after["elapsed"] * ~ended
        self._state["episode"] = after["episode"] + ended
        return Step(self._observe(self._state), rewards, terminated, truncated, self._observe(after))

    def get_state(self) -> State:
        """Return the named arrays of every copy and the generator."""
        return {"id": self.spec.id, "dynamics": tree_map(torch.clone, self._state), "rng": self._generator.get_state()}

    def set_state(self, state: State) -> None:
        """Go on from `state`."""
        expected = {**self._initial(), "elapsed": None, "episode": None}
        dynamics = state["dynamics"]
        if state["id"] != self.spec.id or not expected.keys() <= dynamics.keys():
            raise EnvironmentFault(f"environment {self.spec.id!r} cannot go on from a state of {state['id']!r}")
        if len(dynamics["elapsed"]) != self.num_envs:
            found = len(dynamics["elapsed"])
            raise EnvironmentFault(f"environment {self.spec.id!r} has {self.num_envs} copies, the state has {found}")
        self._state = {key: torch.as_tensor(value).to(self.device, copy=True) for key, value in dynamics.items()}
        self._generator.set_state(torch.as_tensor(state["rng"]).cpu())

    def _uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Draw uniform numbers [N, *shape] from the environment's own generator."""
        draw = torch.rand(self.num_envs, *shape, generator=self._generator, device=self.device)
        return draw * (high - low) + low

    def _integers(self, high: int, *shape: int) -> Tensor:
        """Draw integers in [0, high), [N, *shape], from the environment's own generator."""
        return torch.randint(high, (self.num_envs, *shape), generator=self._generator, device=self.device)
