"""Small gymnasium environments with known faults and unusual spaces. Knows no torch, so that workers start light."""

import os
import signal

import gymnasium
import numpy as np
from gymnasium import spaces


class Faulty(gymnasium.Env):
    """Goes wrong in one way at step 3 of the first episode that is long enough."""

    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(5)

    def __init__(self, fault="none", at_step=3):
        self._fault, self._at_step, self._steps = fault, at_step, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        if self._fault == "raise at reset":
            raise OSError("no such level")
        return self.np_random.random(3, dtype=np.float32), {}

    def step(self, action):
        self._steps += 1
        obs, reward = self.np_random.random(3, dtype=np.float32), float(action)
        if self._steps == self._at_step:
            obs, reward = self._break(obs, reward)
        return obs, reward, self._steps >= 6, False, {}

    def _break(self, obs, reward):
        if self._fault == "raise":
            raise KeyError("wheel")
        if self._fault == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._fault == "nan":
            obs = np.array([0, np.nan, 0], np.float32)
        if self._fault == "shape":
            obs = obs[:2]
        if self._fault == "broadcastable shape":
            obs = obs[:1]
        if self._fault == "reward":
            reward = float("inf")
        return obs, reward


class Menagerie(gymnasium.Env):
    """A dict observation with every kind of leaf, and a multi-discrete action that does not start at zero."""

    observation_space = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (6, 5, 3), np.uint8),
            "gray": spaces.Box(0, 255, (6, 5), np.uint8),
            "place": spaces.Discrete(4, start=-1),
            "pair": spaces.MultiDiscrete([2, 3]),
            "bits": spaces.MultiBinary(3),
            "wide": spaces.Box(-np.inf, np.inf, (2,), np.float64),
            "action_mask": spaces.Box(0, 1, (5,), np.int8),
        }
    )
    action_space = spaces.MultiDiscrete([2, 3], start=[0, 10])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        return self._observe(), {}

    def step(self, action):
        self._steps += 1
        assert self.action_space.contains(action), action
        is_over = bool(self.np_random.random() < 0.1)
        return self._observe(), float(action.sum()), is_over, self._steps >= 9, {}

    def _observe(self):
        draw = self.np_random.integers
        return {
            "image": draw(0, 256, (6, 5, 3), dtype=np.uint8),
            "gray": draw(0, 256, (6, 5), dtype=np.uint8),
            "place": draw(-1, 3),
            "pair": draw(0, [2, 3]),
            "bits": draw(0, 2, 3, dtype=np.int8),
            "wide": self.np_random.random(2),
            "action_mask": draw(0, 2, 5, dtype=np.int8),
        }


class Echo(gymnasium.Env):
    """Observes the action it was given, and then writes into it, as some environments do."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(np.array([-1, 0], np.float32), np.array([1, 10], np.float32))

    def __init__(self, own_bounds=True):
        if not own_bounds:
            self.action_space = spaces.Box(-2, 2, (2,), np.float32)
        self._total = np.zeros(2, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._total = self.np_random.random(2, dtype=np.float32)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        seen = action.copy()
        self._total += action
        action *= 0.5
        return seen, float(self._total[0]), False, False, {}


class Unrepeatable(gymnasium.Env):
    """Draws from NumPy's global stream, or counts its episodes where no reset can reach."""

    observation_space = spaces.Box(0, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(2)
    episodes = 0

    def __init__(self, how="global stream"):
        self._how = how

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episodes += 1
        return self._observe(), {}

    def step(self, action):
        return self._observe(), 0.0, False, False, {}

    def _observe(self):
        value = np.random.random() if self._how == "global stream" else self.episodes
        return np.array([value], np.float32)


class Strange(gymnasium.Env):
    """Observes a text."""

    observation_space = spaces.Text(5)
    action_space = spaces.Discrete(2)


for _kind in (Faulty, Menagerie, Echo, Unrepeatable, Strange):
    gymnasium.register(f"Zoo/{_kind.__name__}-v0", entry_point=f"tests.environments.zoo:{_kind.__name__}")
