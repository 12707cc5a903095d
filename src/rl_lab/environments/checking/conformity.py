"""What one vector step may look like: every tensor against the spec, and what the episodes it belongs to tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from rl_lab.core import Box, Discrete, EnvSpec, Observation, Step, VectorEnv, tree_leaves
from rl_lab.core.spaces import Leaf

Problem = tuple[str, str]  # (name of the check, what is wrong)


class Conformity:
    """Holds the spec of an environment against what it returns."""

    def __init__(self, env: VectorEnv) -> None:
        self._num_envs, self._device = env.num_envs, env.device
        spec = env.spec.observation
        self._leaves: dict[str, Leaf] = dict(spec) if isinstance(spec, Mapping) else {"": spec}

    def observations(self, observations: Observation, name: str = "observations") -> Iterator[Problem]:
        """Yield what is wrong with an observation."""
        found = dict(tree_leaves(observations))
        if found.keys() != self._leaves.keys():
            yield "shapes", f"{name} have the keys {sorted(found)} instead of {sorted(self._leaves)}"
            return
        for key, space in self._leaves.items():
            yield from self._leaf(f"{name}.{key}".rstrip("."), found[key], space)

    def step(self, step: Step) -> Iterator[Problem]:
        """Yield what is wrong with a step."""
        yield from self.observations(step.observations)
        yield from self.observations(step.final_observations, "final_observations")
        number, flag = Box(()), Box((), torch.bool)
        rest = {"rewards": (step.rewards, number), "terminated": (step.terminated, flag)}
        rest |= {"truncated": (step.truncated, flag)}
        rest |= {f"infos.{key}": (value, number) for key, value in step.infos.items()}
        problems = [p for name, (value, space) in rest.items() for p in self._leaf(name, value, space)]
        yield from problems
        if not any(check in ("shapes", "types") for check, _ in problems):
            yield from self._ends(step)

    def _leaf(self, name: str, value: Any, space: Leaf) -> Iterator[Problem]:
        if not isinstance(value, Tensor):
            yield "types", f"{name} is a {type(value).__name__} instead of a tensor"
            return
        shape, dtype = (self._num_envs, *shape_of(space)), dtype_of(space)
        if value.shape != shape:
            yield "shapes", f"{name} has shape {tuple(value.shape)} instead of {shape}"
            return
        if value.dtype != dtype:
            yield "types", f"{name} is {short(value.dtype)} instead of {short(dtype)}"
        if not _is_same_device(value.device, self._device):
            yield "device", f"{name} is on {value.device} instead of {self._device}"
        if value.is_floating_point() and not bool(value.isfinite().all()):
            row = int((~value.isfinite()).reshape(self._num_envs, -1).any(-1).nonzero()[0])
            yield "finite", f"{name} of copy {row} holds NaN or infinity"
        elif value.numel() and dtype != torch.bool:
            yield from _outside(name, value, space)

    def _ends(self, step: Step) -> Iterator[Problem]:
        both = step.terminated & step.truncated
        if bool(both.any()):
            yield "flags", f"copy {int(both.nonzero()[0])} is terminated and truncated at once"
        goes_on = ~(step.terminated | step.truncated)
        finals = dict(tree_leaves(step.final_observations))
        for key, leaf in tree_leaves(step.observations):
            other = finals.get(key)
            if (
                isinstance(other, Tensor)
                and leaf.shape == other.shape
                and not torch.equal(leaf[goes_on], other[goes_on])
            ):
                name = f"final_observations.{key}".rstrip(".")
                yield "final observations", f"{name} differ from the observations where no episode ended"


def shape_of(space: Leaf) -> tuple[int, ...]:
    """Return the shape of one copy's value."""
    if isinstance(space, Box):
        return space.shape
    return () if isinstance(space, Discrete) else (len(space.nvec),)


def dtype_of(space: Leaf) -> torch.dtype:
    """Return the type of a value."""
    return space.dtype if isinstance(space, Box) else torch.int64


def _bounds(space: Leaf, value: Tensor) -> tuple[Any, Any]:
    if isinstance(space, Box):
        return space.low, space.high
    if isinstance(space, Discrete):
        return 0, space.n - 1
    return 0, torch.tensor(space.nvec, device=value.device) - 1


def _outside(name: str, value: Tensor, space: Leaf) -> Iterator[Problem]:
    low, high = _bounds(space, value)
    if bool(((value < low) | (value > high)).any()):
        limits = [bound.tolist() if isinstance(bound, Tensor) else bound for bound in (low, high)]
        seen = f"{value.min().item():.6g} .. {value.max().item():.6g}"
        yield "bounds", f"{name} lie in {seen}, outside {limits[0]} .. {limits[1]}"


def _is_same_device(found: torch.device, wanted: torch.device) -> bool:
    return found.type == wanted.type and (wanted.index is None or found.index == wanted.index)


def short(dtype: torch.dtype) -> str:
    """Return `float32` of `torch.float32`."""
    return str(dtype).removeprefix("torch.")


def describe(space: Leaf | Mapping[str, Leaf]) -> str:
    """Return a space in a few words."""
    if isinstance(space, Mapping):
        return "{" + ", ".join(f"{key}: {describe(leaf)}" for key, leaf in space.items()) + "}"
    if isinstance(space, Box):
        bounds = (
            "" if space.low == -float("inf") and space.high == float("inf") else f" in {space.low:g}..{space.high:g}"
        )
        return f"{short(space.dtype)} {list(space.shape)}{bounds}"
    return f"Discrete({space.n})" if isinstance(space, Discrete) else f"MultiDiscrete{space.nvec}"


def describe_spec(spec: EnvSpec) -> str:
    """Return what an agent sees and does, and for how long."""
    limit = "no time limit" if spec.max_episode_steps is None else f"{spec.max_episode_steps} steps at most"
    repeat = f", {spec.action_repeat} frames per step" if spec.action_repeat > 1 else ""
    return f"observes {describe(spec.observation)}, acts {describe(spec.action)}, {limit}{repeat}"
