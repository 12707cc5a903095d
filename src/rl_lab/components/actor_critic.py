"""A policy and a value function over any observation: reader, normaliser, encoder, memory, trunks and heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from rl_lab.components.action_heads import ActionHead
from rl_lab.components.dict_encoder import DictEncoder
from rl_lab.components.memory import Memory
from rl_lab.components.mlp import MLP, orthogonal_linear
from rl_lab.components.normalizer import KeyedNormalizer, RunningNormalizer
from rl_lab.components.observation import ObservationReader, is_image
from rl_lab.core import ACTION_MASK, Box, Carry, ConfigError, EnvSpec, Observation, flat_dim, tree_map
from rl_lab.core.ranks import ALONE, Ranks
from rl_lab.ops.distributions import Distribution

Inputs = tuple[Any, Tensor | None]  # what the first network reads, and the mask of allowed actions


class ActorCritic(nn.Module):
    """Observation -> [normaliser] -> [encoder] -> [memory] -> actor trunk -> action head; critic trunk -> value.

    Without a critic the value head sits on the actor's trunk. Trunks that are `DictEncoder`s choose their keys of a
    dict observation, so that a critic may see what the actor does not; each key then has its own statistics.
    Inputs are [N, ...] with `is_first` [N], or sequences [T, N, ...] with `is_first` [T, N].
    """

    def __init__(
        self,
        spec: EnvSpec,
        components: Mapping[str, nn.Module],
        head: ActionHead,
        *,
        normalize_observations: bool,
        ranks: Ranks = ALONE,
    ) -> None:
        super().__init__()
        self.actor, self.critic = components["actor"], components.get("critic")
        self.encoder = components.get("encoder")
        self.memory: Memory | None = components.get("memory")  # type: ignore[assignment]
        has_keyed_trunks = self.encoder is None and isinstance(self.actor, DictEncoder)
        if self.memory is not None:
            self._check_memory(self.memory, has_keyed_trunks)
        self.read = ObservationReader(spec.observation, keep_dict=self.encoder is not None or has_keyed_trunks)
        if self.read.has_mask and isinstance(spec.action, Box):
            raise ConfigError("environment: an action_mask needs discrete actions, but this action space is a Box")
        self.normalizer = observation_normalizer(self.read, has_keyed_trunks, ranks) if normalize_observations else None
        self.head = head
        trunk = self.actor if self.critic is None else self.critic
        self.value_head = orthogonal_linear(int(trunk.output_dim), 1, gain=1.0)  # type: ignore[arg-type]

    def _check_memory(self, memory: Memory, has_keyed_trunks: bool) -> None:
        """Raise where a memory cannot stand between the observation and the trunks."""
        if has_keyed_trunks:
            raise ConfigError(
                "components.memory: reads a vector, not a dict whose keys components.actor chooses "
                "(name components.encoder, or let the environment give one vector)"
            )
        for name, trunk in (("actor", self.actor), ("critic", self.critic)):
            if isinstance(trunk, MLP) and trunk.input_dim != memory.output_dim:
                wanted = f"must be {memory.output_dim}, which components.memory puts out"
                raise ConfigError(f"components.{name}.input_dim: {wanted}, not {trunk.input_dim}")

    @property
    def is_feedforward(self) -> bool:
        """Return whether the trunks read the inputs themselves, without encoder and memory."""
        return self.encoder is None and self.memory is None

    def inputs(self, obs: Observation) -> Inputs:
        """Return what the networks read: no parameter is involved, so one call serves all epochs of an update."""
        x, mask = self.read(obs)
        return (x if self.normalizer is None else self.normalizer(x)), mask

    def forward(self, inputs: Inputs, carry: Carry, is_first: Tensor) -> tuple[Distribution, Tensor, Carry]:
        """Return the policy, the value and the next carry."""
        x, mask = inputs
        x, carry = self._features(x, carry, is_first)
        actor_features = self.actor(x)
        critic_features = actor_features if self.critic is None else self.critic(x)
        return self.head(actor_features, mask), self.value_head(critic_features).squeeze(-1), carry

    def policy(self, inputs: Inputs, carry: Carry, is_first: Tensor) -> tuple[Distribution, Carry]:
        """Return the policy and the next carry: all that acting needs."""
        x, mask = inputs
        x, carry = self._features(x, carry, is_first)
        return self.head(self.actor(x), mask), carry

    def value(self, inputs: Inputs, carry: Carry, is_first: Tensor) -> Tensor:
        """Return the value alone."""
        x, _ = self._features(inputs[0], carry, is_first)
        return self.value_head((self.actor if self.critic is None else self.critic)(x)).squeeze(-1)

    def initial_carry(self, num_envs: int) -> Carry:
        """Return the memory's carry, or None when there is no memory."""
        return None if self.memory is None else self.memory.initial_carry(num_envs)

    def update_normalizer(self, obs: Observation) -> None:
        """Merge the observations of a rollout [T, N, ...] into the statistics, if there are any."""
        if self.normalizer is not None:
            self.normalizer.update(tree_map(lambda x: x.flatten(0, 1), self.read(obs)[0]))

    def _features(self, x: Any, carry: Carry, is_first: Tensor) -> tuple[Any, Carry]:
        if self.encoder is not None:
            x = self.encoder(x)
        if self.memory is not None:
            x, carry = self.memory(x, carry, is_first)
        return x, carry


def observation_normalizer(
    read: ObservationReader, has_keyed_trunks: bool, ranks: Ranks
) -> RunningNormalizer | KeyedNormalizer:
    """Return statistics of what the trunks read: of one vector, or of every key that is one."""
    space = read.space
    if has_keyed_trunks and isinstance(space, Mapping) and not any(is_image(leaf) for leaf in space.values()):
        return KeyedNormalizer({key: flat_dim(leaf) for key, leaf in space.items() if key != ACTION_MASK}, ranks)
    if not read.is_vector:
        raise ConfigError("algorithm.normalize_observations: needs vectors, not images or a dict that an encoder reads")
    return RunningNormalizer((read.dim,), ranks=ranks)
