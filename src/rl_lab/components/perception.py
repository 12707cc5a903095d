"""From what a replay buffer holds to features: reader, normaliser, encoder and memory of an off-policy agent.

The critic's loss trains it, the policy reads it as it is. Batches are transitions [B, ...] or, for a memory, sequences
of arrivals [B, T, ...]; both become rows of transitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rl_lab.components.ensemble import EnsembleMLP
from rl_lab.components.memory import Memory
from rl_lab.components.mlp import MLP
from rl_lab.components.normalizer import RunningNormalizer
from rl_lab.components.observation import ObservationReader, is_image, reject_readers
from rl_lab.core import (
    Actions,
    Batch,
    BatchKind,
    Box,
    Carry,
    ConfigError,
    Discrete,
    EnvSpec,
    Observation,
    Space,
    Tree,
    flat_dim,
    leaves_of,
    tree_map,
)
from rl_lab.core.ranks import ALONE, Ranks
from rl_lab.ops.augmentation import random_shift

CARRY = "carry"  # what act records beside an action when there is a memory
IMAGE_DIMS = 4  # [B, C, H, W]
TRANSITION_KEYS = ("observations", "next_observations", "actions", "rewards", "discounts", "weights")
SEQUENCE_KEYS = ("observations", "actions", "rewards", "is_first", "is_terminal", CARRY)


class Transitions(NamedTuple):
    """Rows of transitions in features."""

    features: Tensor  # [R, F], with gradient
    next_features: Tensor  # [R, F]
    next_target_features: Tensor  # [R, F], of the target network
    actions: Tensor  # [R, ...] as the environment took them
    rewards: Tensor  # [R]
    discounts: Tensor  # [R]: 0 where the task ended
    weights: Tensor | None  # [R] of each row in a loss; None: all alike
    mask: Tensor | None  # allowed actions of the observations
    next_mask: Tensor | None  # and of the next ones


class Examples(NamedTuple):
    """Observations in features, with what was done in them."""

    features: Tensor  # [R, F], with gradient; of a history [R, H, F]
    actions: Actions  # [R, ...] as the environment took them
    weights: Tensor | None  # [R] of each row in a loss; None: all alike
    mask: Tensor | None  # allowed actions of the observations


class Perception(nn.Module):
    """Observation -> [normaliser] -> [encoder] -> [memory] -> features.

    Args:
        spec: Of the environment.
        components: `encoder` and `memory`, where there are.
        normalize_observations: Normalise vectors by running statistics of the batches.
        shift_pad: Pixels by which images of a batch are moved at random; 0: none.
        ranks: Whose batches the statistics are of.
    """

    def __init__(
        self,
        spec: EnvSpec,
        components: Mapping[str, nn.Module],
        *,
        normalize_observations: bool = False,
        shift_pad: int = 0,
        ranks: Ranks = ALONE,
    ) -> None:
        super().__init__()
        self.encoder = components.get("encoder")
        self.memory: Memory | None = components.get("memory")  # type: ignore[assignment]
        self.read = ObservationReader(spec.observation, keep_dict=self.encoder is not None)
        if normalize_observations and not self.read.is_vector:
            raise ConfigError(
                "algorithm.normalize_observations: needs vectors, not images or a dict that an encoder reads"
            )
        if self.encoder is None and not self.read.is_vector:
            raise ConfigError("components.encoder: images need one (such as CNN)")
        if shift_pad and not any(is_image(leaf) for leaf in leaves_of(spec.observation).values()):
            raise ConfigError(f"algorithm.image_shift: {spec.id!r} shows no images to move (set 0)")
        reject_readers(self.read, self.encoder, self.memory)
        self.normalizer = RunningNormalizer((self.read.dim,), ranks=ranks) if normalize_observations else None
        self._shift_pad = shift_pad

    @property
    def output_dim(self) -> int:
        """Return the number of features."""
        last = self.encoder if self.memory is None else self.memory
        return self.read.dim if last is None else int(last.output_dim)  # type: ignore[arg-type]

    @property
    def reads(self) -> tuple[str, ...]:
        """Return the keys of a batch that `forward` reads, where there are."""
        return SEQUENCE_KEYS if self.is_recurrent else TRANSITION_KEYS

    @property
    def batch_kinds(self) -> tuple[BatchKind, ...]:
        """Return what batches must be."""
        return ("sequences",) if self.is_recurrent else ("transitions",)

    @property
    def is_recurrent(self) -> bool:
        """Return whether batches are sequences."""
        return self.memory is not None

    def initial_carry(self, num_envs: int) -> Carry:
        """Return the memory's carry, or None when there is no memory."""
        return None if self.memory is None else self.memory.initial_carry(num_envs)

    def step(self, obs: Observation, carry: Carry, is_first: Tensor) -> tuple[Tensor, Tensor | None, Carry]:
        """Return the features of one step [N, F], the mask of allowed actions and the next carry."""
        x, mask = self.encode(obs)
        if self.memory is not None:
            x, carry = self.memory(x, carry, is_first)
        return x, mask, carry

    def encode(self, obs: Observation) -> tuple[Tensor, Tensor | None]:
        """Return what a memory would read of observations, [..., F], and the mask of allowed actions."""
        x, mask = self.read(obs)
        return self._encode(self._normalized(x)), mask

    def follow(self, batch: Batch) -> None:
        """Learn from a whole batch what numbers vectors have, before it is read, in parts or at once."""
        if self.normalizer is not None:
            obs = batch["observations"]
            obs = tree_map(lambda leaf: leaf.transpose(0, 1), obs) if self.is_recurrent else obs
            self.normalizer.update(self.read(obs)[0].flatten(0, -2))

    def count(self, batch: Batch, ranks: Ranks) -> Tensor | int:
        """Return how many rows of a whole batch count in a loss, where these are all that is said."""
        weights = (~batch["is_first"][:, 1:]).float() if self.is_recurrent else batch.get("weights")
        return len(batch["actions"]) if weights is None else counted(weights, ranks)

    def forward(self, batch: Batch, target: Perception, gamma: float) -> Transitions:
        """Return a batch as rows in features, those of `target` among them."""
        return self._of_sequences(batch, target, gamma) if self.is_recurrent else self._of_transitions(batch, target)

    def examples(self, batch: Batch) -> Examples:
        """Return a batch as imitation learns from it.

        A memory begins where it stood when the sequence was collected, or empty: demonstrations of others have none.
        """
        if not self.is_recurrent:
            x, mask = self._read(batch["observations"])
            return Examples(self._encode(x), batch["actions"], batch.get("weights"), mask)
        rows = tree_map(lambda leaf: leaf.transpose(0, 1), dict(batch))  # [T, B, ...]
        x, mask = self._read(rows["observations"])
        starts = rows["is_first"].shape[1]
        carry = tree_map(lambda leaf: leaf[0], rows[CARRY]) if CARRY in rows else self.initial_carry(starts)
        features = self._remember(x, carry, rows["is_first"])[:-1]
        arrived = tree_map(lambda leaf: leaf[1:].flatten(0, 1), {key: rows[key] for key in ("actions", "is_first")})
        weights = (~arrived["is_first"]).to(features.dtype)
        allowed = None if mask is None else mask[:-1].flatten(0, 1)
        return Examples(features.flatten(0, 1), arrived["actions"], weights, allowed)

    @torch.no_grad()
    def seen_by(self, target: Perception, batch: Batch) -> Tensor:
        """Return the features [R, F] that `target` has of the observations in which the actions were taken."""
        if not self.is_recurrent:
            return target._encode(self._read(batch["observations"])[0])
        rows = tree_map(lambda leaf: leaf.transpose(0, 1), dict(batch))  # [T, B, ...]
        carry = tree_map(lambda leaf: leaf[0], rows[CARRY])
        return target._remember(self._read(rows["observations"])[0], carry, rows["is_first"])[:-1].flatten(0, 1)

    def _of_transitions(self, batch: Batch, target: Perception) -> Transitions:
        x, mask = self._read(batch["observations"])
        next_x, next_mask = self._read(batch["next_observations"])
        with torch.no_grad():
            next_features = self._encode(next_x)
            next_target = next_features if target.encoder is None else target._encode(next_x)
        return Transitions(
            self._encode(x),
            next_features,
            next_target,
            batch["actions"],
            batch["rewards"],
            batch["discounts"],
            batch.get("weights"),
            mask,
            next_mask,
        )

    def _of_sequences(self, batch: Batch, target: Perception, gamma: float) -> Transitions:
        """Step k leads to row k + 1, unless an episode begins there; the first carry is the one that was stored."""
        rows = tree_map(lambda leaf: leaf.transpose(0, 1), dict(batch))  # [T, B, ...]
        x, mask = self._read(rows["observations"])
        carry = tree_map(lambda leaf: leaf[0], rows[CARRY])
        features = self._remember(x, carry, rows["is_first"])
        with torch.no_grad():
            target_features = target._remember(x, carry, rows["is_first"])
        arrived = {key: rows[key][1:].flatten(0, 1) for key in ("actions", "rewards", "is_terminal", "is_first")}
        return Transitions(
            features[:-1].flatten(0, 1),
            features[1:].flatten(0, 1).detach(),
            target_features[1:].flatten(0, 1),
            arrived["actions"],
            arrived["rewards"],
            gamma * (~arrived["is_terminal"]).to(features.dtype),
            (~arrived["is_first"]).to(features.dtype),
            None if mask is None else mask[:-1].flatten(0, 1),
            None if mask is None else mask[1:].flatten(0, 1),
        )

    def _remember(self, x: Tree, carry: Carry, is_first: Tensor) -> Tensor:
        assert self.memory is not None
        features: Tensor = self.memory(self._encode(x), carry, is_first)[0]
        return features

    def _encode(self, x: Any) -> Tensor:
        return x if self.encoder is None else self.encoder(x)

    def _normalized(self, x: Any) -> Any:
        return x if self.normalizer is None else self.normalizer(x)

    def _read(self, obs: Observation) -> tuple[Any, Tensor | None]:
        """Return the encoder's input and the mask of allowed actions."""
        x, mask = self.read(obs)
        x = self._normalized(x)
        return (tree_map(self._shifted, x) if self._shift_pad else x), mask

    def _shifted(self, x: Tensor) -> Tensor:
        if x.ndim < IMAGE_DIMS:
            return x
        return random_shift(x.flatten(0, -IMAGE_DIMS), self._shift_pad).view(x.shape)  # of sequences: frame by frame


def reject_ensemble(name: str, trunk: nn.Module) -> None:
    """Raise when several networks stand where a workflow wants one."""
    if isinstance(trunk, EnsembleMLP):
        raise ConfigError(f"components.{name}: needs one network (such as MLP), not an EnsembleMLP")


def reject_widths(perception: Perception, space: Space, *, has_kinds: bool = False, **trunks: nn.Module) -> None:
    """Raise when the trunk of an actor or of critics does not read what it will be given; only critics may be many.

    `has_kinds`: there are critics for continuous and for discrete actions, and one may be in the other's place.
    """
    for name, trunk in trunks.items():
        if name != "critic":
            reject_ensemble(name, trunk)
        reads_action = name == "critic" and isinstance(space, Box)
        given = [f"{perception.output_dim} features", *([f"{flat_dim(space)} of the action"] if reads_action else [])]
        wanted = perception.output_dim + (flat_dim(space) if reads_action else 0)
        if isinstance(trunk, MLP | EnsembleMLP) and trunk.input_dim != wanted:
            kind = _kind_hint(space, trunk.input_dim - perception.output_dim) if has_kinds and name == "critic" else ""
            raise ConfigError(
                f"components.{name}.input_dim: must be {wanted} ({' and '.join(given)}), not {trunk.input_dim}{kind}"
            )


def _kind_hint(space: Space, width: int) -> str:
    """Return what to take instead of critics for the other kind of action; nothing where they are for neither."""
    if isinstance(space, Box) and width == 0:
        return ", as for discrete actions: these are continuous (preset sac; workflows SAC, SQL, TD3, PPO)"
    if isinstance(space, Discrete) and width == flat_dim(space):
        return ", as for continuous actions: these are discrete (preset sac_discrete; workflows SAC, DQN, PPO)"
    return ""


def weighted_mean(
    values: Tensor, weights: Tensor | None, ranks: Ranks = ALONE, count: Tensor | int | None = None
) -> Tensor:
    """Return the mean of `values` [..., R] over its last dimension; rows of weight 0 do not count.

    The mean of what `ranks` get is the one over all of their rows, however many of each count. Of a part of a batch it
    is the share of the whole batch's mean, whose `count` is then given.
    """
    if count is not None:
        return (values if weights is None else values * weights).sum(-1) / count
    if weights is None:
        return values.mean(-1)
    return (values * weights).sum(-1) / counted(weights, ranks)


def counted(weights: Tensor, ranks: Ranks = ALONE) -> Tensor:
    """Return how many rows count: of several ranks the mean of theirs, but 1 at least."""
    count = (weights != 0).sum()
    return (count if ranks.size == 1 else ranks.mean_(count.float())).clamp_min(1)
