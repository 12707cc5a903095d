"""One gymnasium environment with what makes its running episode repeatable to the bit. Knows no torch.

Exact state is native where every layer can give its own (`exact.state`). Elsewhere it is a replay: the random state
just before the running episode's reset, and the actions since. Restoring resets from that random state, replays the
actions and compares the outcome with what was stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from rl_lab.environments.exact.state import (
    has_native_state,
    layers,
    native_state,
    plain_rng,
    restore_native,
    rng_state,
)
from rl_lab.environments.hosting.actions import ActionCodec
from rl_lab.environments.hosting.codec import Array
from rl_lab.environments.hosting.foreign import BadOutcome
from rl_lab.environments.hosting.recipe import Env, Recipe

Signature = tuple[str, str]  # observation and action space as text


@runtime_checkable
class Numbered(Protocol):
    """A layer that asks which copy of the vector environment it is in."""

    def assign_copy(self, index: int) -> None:
        """Learn the number of the copy."""
        ...


@runtime_checkable
class Instructed(Protocol):
    """A layer that listens to a person."""

    def instruct(self, instruction: str) -> None:
        """Hold, or end the episode with the next step; see `VectorEnv.instruct`."""
        ...


class Member:
    """One environment. Seeded once, as gymnasium asks; later episodes go on with the environment's own stream."""

    def __init__(self, recipe: Recipe, signature: Signature, *, is_exact: bool, index: int = -1) -> None:
        self._env = recipe.make()  # `index` -1: a probe, no copy of a vector environment
        self._signature = signature
        check_signature(self._env, signature, "has the {0} space {2}, but the first copy made had {1}")
        for layer in layers(self._env):
            if isinstance(layer, Numbered):
                layer.assign_copy(index)
        self._is_native = is_exact and has_native_state(self._env)
        self._replays = is_exact and not self._is_native
        self._actions: deque[Any] = deque(maxlen=None if self._replays else 0)  # of the running episode
        self._seed = 0
        self._rng_before: Any = None  # at the reset of the running episode; None: that reset was the seeded one
        self._spaces = self._env.observation_space, self._env.action_space
        self.step: Callable[[Any], tuple[Any, Any, Any, Any, Any]] = self._env.step
        self.log: Callable[[Any], None] = self._actions.append  # to be told every action that was stepped

    def start(self, seed: int) -> Any:
        """Begin the first episode of this seed and return its observation."""
        self._seed, self._rng_before = seed, None
        self._actions.clear()
        return self._reset(seed)

    def restart(self) -> Any:
        """Begin the next episode and return its observation."""
        if self._replays:
            self._rng_before = self._env.unwrapped.np_random.bit_generator.state
            self._actions.clear()
        return self._reset(None)

    def _reset(self, seed: int | None) -> Any:
        obs = self._env.reset(seed=seed)[0]
        if self._env.observation_space is not self._spaces[0] or self._env.action_space is not self._spaces[1]:
            self._spaces = self._env.observation_space, self._env.action_space
            check_signature(self._env, self._signature, "changed its {0} space at a reset from {1} to {2}")
        return obs

    def get_state(self, codec: ActionCodec) -> dict[str, Any]:
        """Return the record of the running episode."""
        if self._is_native:
            return {"seed": self._seed, "native": native_state(self._env)}
        actions = np.array(self._actions) if self._actions else np.zeros((0, *codec.shape), codec.dtype)
        rng = rng_state(self._env)
        return {"seed": self._seed, "rng_before": plain_rng(self._rng_before), "rng": rng, "actions": actions}

    def set_state(self, state: Mapping[str, Any], codec: ActionCodec) -> Any:
        """Go on from the record; return the observation a replay led to, None after a native restore."""
        if self._is_native != ("native" in state):
            kinds = ("replayed", "native")
            here, there = kinds[self._is_native], kinds["native" in state]
            raise BadOutcome(f"cannot be restored: its state is {here} and the stored one {there}")
        if not self._is_native:
            return self._replay(state, codec)
        self._seed = int(state["seed"])
        restore_native(self._env, state["native"])
        return None

    def _replay(self, state: Mapping[str, Any], codec: ActionCodec) -> Any:
        obs = self.start(int(state["seed"]))
        if state["rng_before"] is not None:
            self._env.unwrapped.np_random.bit_generator.state = state["rng_before"]
            obs = self.restart()
        log = np.array(state["actions"])
        for action, logged in zip(codec.replay(log), log, strict=True):
            self.log(logged)
            obs, _, terminated, truncated, _ = self.step(action)
            if terminated or truncated:
                raise BadOutcome("cannot be repeated: the replayed episode ended early")
        if rng_state(self._env) != plain_rng(state["rng"]):
            raise BadOutcome("cannot be repeated: the replay left another random state than the stored one")
        return obs

    def render(self) -> Array | None:
        """Return the picture, [H, W, 3] uint8, or None when it has none."""
        picture = self._env.render() if self._env.render_mode == "rgb_array" else None
        return picture if isinstance(picture, np.ndarray) else None

    def instruct(self, instruction: str) -> bool:
        """Pass a person's word on; return whether a layer listens."""
        heard = [layer for layer in layers(self._env) if isinstance(layer, Instructed)]
        for layer in heard:
            layer.instruct(instruction)
        return bool(heard)

    def close(self) -> None:
        """Free windows and simulators."""
        self._env.close()


def signature_of(env: Env) -> Signature:
    """Return the observation and the action space as text, which is the same for equal ones."""
    return str(env.observation_space), str(env.action_space)


def check_signature(env: Env, expected: Signature, text: str) -> None:
    """Raise BadOutcome with `text` (kind, expected, found) when the spaces of `env` are not the expected ones."""
    for kind, before, now in zip(("observation", "action"), expected, signature_of(env), strict=True):
        if before != now:
            raise BadOutcome(text.format(kind, before, now))


def next_seed(seed: int) -> int:
    """Return the seed of a member whose process was lost: a child of the one it had."""
    (word,) = np.random.SeedSequence(seed, spawn_key=(0,)).generate_state(1)
    return int(word) >> 1
