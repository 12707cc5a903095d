"""One gymnasium environment with the record that makes its running episode repeatable to the bit. Knows no torch.

Exact state by replay: the random state just before the running episode's reset, and the actions since. Restoring
resets from that random state, replays the actions and compares the outcome with what was stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rl_lab.environments.foreign import BadOutcome
from rl_lab.environments.gymnasium_actions import ActionCodec
from rl_lab.environments.gymnasium_codec import Array
from rl_lab.environments.gymnasium_recipe import Recipe


class Member:
    """One environment. Seeded once, as gymnasium asks; later episodes go on with the environment's own stream."""

    def __init__(self, recipe: Recipe, *, is_exact: bool) -> None:
        self._env = recipe.make()
        self._is_exact = is_exact
        self._actions: deque[Any] = deque(maxlen=None if is_exact else 0)  # of the running episode
        self._seed = 0
        self._rng_before: Any = None  # at the reset of the running episode; None: that reset was the seeded one
        self.step: Callable[[Any], tuple[Any, Any, Any, Any, Any]] = self._env.step
        self.log: Callable[[Any], None] = self._actions.append  # to be told every action that was stepped

    def start(self, seed: int) -> Any:
        """Begin the first episode of this seed and return its observation."""
        self._seed, self._rng_before = seed, None
        self._actions.clear()
        return self._env.reset(seed=seed)[0]

    def restart(self) -> Any:
        """Begin the next episode and return its observation."""
        if self._is_exact:
            self._rng_before = self._env.unwrapped.np_random.bit_generator.state
        self._actions.clear()
        return self._env.reset()[0]

    def get_state(self, codec: ActionCodec) -> dict[str, Any]:
        """Return the record of the running episode."""
        actions = np.array(self._actions) if self._actions else np.zeros((0, *codec.shape), codec.dtype)
        return {"seed": self._seed, "rng_before": _plain(self._rng_before), "rng": self._rng(), "actions": actions}

    def set_state(self, state: Mapping[str, Any], codec: ActionCodec) -> Any:
        """Replay the recorded episode and return the observation it led to."""
        obs = self.start(int(state["seed"]))
        if state["rng_before"] is not None:
            self._env.unwrapped.np_random.bit_generator.state = state["rng_before"]
            obs = self.restart()
        for action in codec.replay(np.asarray(state["actions"])):
            self.log(action.copy() if isinstance(action, np.ndarray) else action)
            obs, _, terminated, truncated, _ = self.step(action)
            if terminated or truncated:
                raise BadOutcome("cannot be repeated: the replayed episode ended early")
        if self._rng() != _plain(state["rng"]):
            raise BadOutcome("cannot be repeated: the replay left another random state than the stored one")
        return obs

    def render(self) -> Array | None:
        """Return the picture, [H, W, 3] uint8, or None when it has none."""
        picture = self._env.render() if self._env.render_mode == "rgb_array" else None
        return picture if isinstance(picture, np.ndarray) else None

    def close(self) -> None:
        """Free windows and simulators."""
        self._env.close()

    def _rng(self) -> Any:
        return _plain(self._env.unwrapped.np_random.bit_generator.state)


def _plain(tree: Any) -> Any:
    """Return a bit generator's state as dicts, lists, strings and ints, which compare and store exactly."""
    if isinstance(tree, Mapping):
        return {key: _plain(value) for key, value in tree.items()}
    if isinstance(tree, np.ndarray | list | tuple):
        return [int(word) for word in tree]
    return tree if tree is None or isinstance(tree, str) else int(tree)
