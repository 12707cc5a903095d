"""Left-right symmetry: a robot that has learned to turn left can turn right (Mittal et al., 2024, arXiv 2403.04359)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rl_lab.components.actor_critic import ActorCritic, Inputs
from rl_lab.components.extension import Extension, Read
from rl_lab.components.observation import is_image
from rl_lab.core import (
    Batch,
    Box,
    ConfigError,
    Flip,
    Leaf,
    Metrics,
    Mirror,
    Observation,
    WorkflowContext,
    flat_dim,
    leaves_of,
    tree_cat,
    tree_map,
)
from rl_lab.core.ranges import NonNegative

Pairs = Sequence[tuple[int, float]]


class Reflection(NamedTuple):
    """Where each entry of a mirror image comes from, and its sign."""

    source: Tensor
    sign: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Return the mirror image of vectors [..., D]."""
        return x.index_select(-1, self.source) * self.sign


class Symmetry(Extension):
    """Lets PPO learn from the mirror image of every step, and pulls the policy towards its own mirror image.

    How things look in a mirror is what the environment says (`EnvSpec.mirror`), or what is given here: for each entry
    of the image [the entry that it comes from, its sign].

    Args:
        augment: Whether the mirror image of a minibatch is learned from beside it.
        loss_coef: Weight of the mean squared difference between the policy's mean action and the mirror image of what
            it does in the mirror; 0 leaves it out.
        observation: Pairs [source, sign] of the observation, or of every key where it is a dict.
        action: Pairs of the action.
    """

    def __init__(
        self,
        augment: bool = True,
        loss_coef: NonNegative = 0.0,
        observation: Pairs | Mapping[str, Pairs] | None = None,
        action: Pairs | None = None,
    ) -> None:
        super().__init__()
        if not augment and loss_coef == 0.0:
            raise ConfigError("components.symmetry: augment is false and loss_coef 0, so it would do nothing")
        if (observation is None) != (action is None):
            raise ConfigError("components.symmetry: observation and action come together")
        self.augment, self.loss_coef = augment, loss_coef
        self._given: Mirror | None = None
        if observation is not None and action is not None:
            keyed = observation if isinstance(observation, Mapping) else {"": observation}
            self._given = Mirror(keyed, action)
        self._observation: dict[str, Reflection] = {}
        self._action: Reflection
        self._read: Read

    def bind(self, context: WorkflowContext, policy: ActorCritic, read: Read) -> None:
        """Check the maps against the environment."""
        self._read = read
        spec, mirror = context.spec, self._given or context.spec.mirror
        if policy.memory is not None:
            raise ConfigError("components.symmetry: does not go with components.memory: a carry has no mirror image")
        if mirror is None:
            why = spec.no_mirror or "give observation and action"
            raise ConfigError(f"components.symmetry: {spec.id!r} tells no mirror ({why})")
        if not isinstance(spec.action, Box):
            raise ConfigError(f"components.symmetry: needs continuous actions, those of {spec.id!r} are not")
        leaves = leaves_of(spec.observation)
        for key, leaf in leaves.items():
            if key not in mirror.observation:
                raise ConfigError(f"components.symmetry: the mirror of {spec.id!r} has no observation {key!r}")
            self._observation[key] = reflection(mirror.observation[key], leaf, f"observation {key!r}", context.device)
        self._action = reflection(mirror.action, spec.action, "action", context.device)
        if spec.action.low != -spec.action.high and any(sign < 0 for _, sign in mirror.action):
            raise ConfigError(f"components.symmetry: the action bounds of {spec.id!r} are not symmetric around 0")

    def mirrored(self, obs: Observation) -> Observation:
        """Return the mirror image of observations [B, ...]."""
        if isinstance(obs, Tensor):
            return _reflected(self._observation[""], obs)
        return {key: _reflected(self._observation[key], part) for key, part in obs.items()}

    def rows(self, obs: Observation) -> dict[str, Any]:
        """Return what the networks read in the mirror: statistics need not be symmetric for that."""
        return {"mirrored": self._read(self.mirrored(obs))}

    def widen(self, minibatch: dict[str, Any]) -> dict[str, Any]:
        """Put the mirror image after the minibatch.

        Old log-probabilities stay: an image was drawn exactly when its original was, so that this is its density.
        """
        if not self.augment:
            return minibatch
        images = {**minibatch, "inputs": minibatch["mirrored"], "latents": self._action(minibatch["latents"])}
        return tree_cat([minibatch, images])

    def loss(self, minibatch: Mapping[str, Any], policy: ActorCritic) -> Tensor | None:
        """Return the weighted squared asymmetry of the mean action."""
        if self.loss_coef == 0.0:
            return None
        return self.loss_coef * self._asymmetry(policy, minibatch["inputs"], minibatch["mirrored"])

    @torch.no_grad()
    def learn(self, batch: Batch, policy: ActorCritic) -> Metrics:
        """Learn nothing; return the mean squared asymmetry of the policy on the last observations of a rollout."""
        obs = tree_map(lambda x: x[-1], batch["observations"])
        return {"asymmetry": self._asymmetry(policy, self._read(obs), self._read(self.mirrored(obs)))}

    def _asymmetry(self, policy: ActorCritic, inputs: Inputs, mirrored: Inputs) -> Tensor:
        here, there = (policy.policy(x, None, None)[0].mode() for x in (inputs, mirrored))  # type: ignore[arg-type]
        return (here - self._action(there)).square().mean()


def reflection(flip: Flip, leaf: Leaf, name: str, device: torch.device) -> Reflection:
    """Return the map of a leaf. Raises when it is none, or when the image of an image is not the original."""
    dim, sources, signs = flat_dim(leaf), [int(pair[0]) for pair in flip], [float(pair[1]) for pair in flip]
    if not isinstance(leaf, Box) or is_image(leaf):
        raise ConfigError(f"components.symmetry: needs numbers, and {name} is of another kind")
    if len(sources) != dim:
        raise ConfigError(f"components.symmetry: the mirror of {name} has {len(sources)} entries, not {dim}")
    if any(not 0 <= source < dim for source in sources) or any(abs(sign) != 1.0 for sign in signs):
        raise ConfigError(f"components.symmetry: {name} needs sources of 0 to {dim - 1} and signs of 1 or -1")
    wrong = [i for i, j in enumerate(sources) if sources[j] != i or signs[i] != signs[j]]
    if wrong:
        raise ConfigError(f"components.symmetry: mirrored twice, entry {wrong[0]} of {name} is not what it was")
    return Reflection(torch.tensor(sources, device=device), torch.tensor(signs, device=device))


def _reflected(flip: Reflection, x: Tensor) -> Tensor:
    return flip(x.flatten(1)).view_as(x)
