"""Errors of an environment carry its name."""

from __future__ import annotations

from types import TracebackType

from rl_lab.core.environment import Observation, Step, VectorEnv
from rl_lab.core.errors import EnvironmentFault, LabError
from rl_lab.core.spaces import Box, Discrete, Leaf
from rl_lab.core.trees import tree_leaves


class Blame:
    """Turns whatever an environment raises into an EnvironmentFault of one line that names it."""

    def __init__(self, env: VectorEnv) -> None:
        self._env = env

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(error, Exception) and not isinstance(error, LabError):
            text = " ".join(f"{type(error).__name__}: {error}".split())
            raise EnvironmentFault(f"environment {self._env.spec.id!r} raised {text}") from error


class ShapeCheck:
    """Holds what an environment returns against its spec."""

    def __init__(self, env: VectorEnv) -> None:
        space = env.spec.observation
        leaves: dict[str, Leaf] = {"": space} if isinstance(space, Leaf) else dict(space)
        self._env, self._rows = env, (env.num_envs,)
        self._shapes = {name: (env.num_envs, *_shape(leaf)) for name, leaf in leaves.items()}

    def observations(self, observations: Observation) -> None:
        """Raise EnvironmentFault when the observation has another shape than the spec says."""
        found = {name: tuple(leaf.shape) for name, leaf in tree_leaves(observations)}
        if found != self._shapes:
            text = f"observations of shape {found}, its spec says {self._shapes}"
            raise EnvironmentFault(f"environment {self._env.spec.id!r} returned {text}")

    def step(self, step: Step) -> None:
        """Raise EnvironmentFault when a part of a step has another shape than the spec says."""
        self.observations(step.observations)
        infos = {f"info {name!r}": values for name, values in step.infos.items()}
        vectors = {"rewards": step.rewards, "terminated": step.terminated, "truncated": step.truncated, **infos}
        for name, vector in vectors.items():
            shape = tuple(vector.shape)
            if shape != self._rows:
                raise EnvironmentFault(
                    f"environment {self._env.spec.id!r} returned {name} of shape {shape}, expected {self._rows}"
                )


def _shape(leaf: Leaf) -> tuple[int, ...]:
    if isinstance(leaf, Box):
        return leaf.shape
    return () if isinstance(leaf, Discrete) else (len(leaf.nvec),)
