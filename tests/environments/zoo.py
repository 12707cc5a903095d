"""Small gymnasium environments with known faults and unusual spaces. Knows no torch, so that workers start light."""

import os
import signal
import time

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
        if self._fault == "die at reset":
            os.kill(os.getpid(), signal.SIGKILL)
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
        if self._fault == "hang":
            time.sleep(600)
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


class Seedless(gymnasium.Env):
    """Is reset as environments of old were."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self):
        return np.zeros(1, np.float32), {}


class Strange(gymnasium.Env):
    """Observes a text."""

    observation_space = spaces.Text(5)
    action_space = spaces.Discrete(2)


ACTIONS = {
    "binary": spaces.MultiBinary(3),
    "binary square": spaces.MultiBinary((2, 2)),
    "square": spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [2, 3]]),
    "tuple": spaces.Tuple((spaces.Discrete(3, start=-1), spaces.MultiBinary(2))),
    "dict": spaces.Dict(
        {"gear": spaces.Discrete(4), "arm": spaces.Tuple((spaces.MultiDiscrete([2, 3]), spaces.Discrete(2)))}
    ),
    "whole": spaces.Box(-2, 7, (2,), np.int32),
    "boxes": spaces.Dict(
        {"steer": spaces.Box(-1, 1, (1,), np.float32), "pedals": spaces.Box(0, 10, (2, 1), np.float64)}
    ),
    "half bounded": spaces.Box(np.array([-np.inf, 0], np.float32), np.array([np.inf, 4], np.float32)),
    "mixture": spaces.Tuple((spaces.Discrete(2), spaces.Box(-1, 1, (1,), np.float32))),
    "mixed": spaces.Dict(
        {
            "gear": spaces.Discrete(3, start=-1),
            "pedals": spaces.Box(np.array([0, -1]), np.array([10, 1]), dtype=np.float64),
            "arm": spaces.Dict(
                {"grip": spaces.MultiBinary((2, 1)), "turn": spaces.Tuple((spaces.Box(-2, 2, (), np.float32),))}
            ),
        }
    ),
    "text": spaces.Text(3),
    "empty": spaces.Box(-1, 1, (0,), np.float32),
    "half empty": spaces.Dict({"gear": spaces.Discrete(3), "pedals": spaces.Box(-1, 1, (2, 0), np.float32)}),
    "scalar": spaces.Box(-1, 3, (), np.float32),
}


class Actor(gymnasium.Env):
    """Takes one kind of action, keeps what it was given and observes how much that was."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def __init__(self, kind):
        self.action_space = ACTIONS[kind]
        self.given = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._total = self.np_random.random()
        return np.array([self._total], np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.given.append(action)
        self._total += float(spaces.flatten(self.action_space, action).astype(np.float64) @ self._weights())
        return np.array([self._total], np.float32), 0.0, False, False, {}

    def _weights(self):
        return np.arange(1, spaces.flatdim(self.action_space) + 1)


class Pilot(gymnasium.Env):
    """Takes a dict of choices and numbers, observes it, and then writes into it."""

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = spaces.Dict({"gear": spaces.Discrete(3, start=-1), "pedals": spaces.Box(0, 10, (2,), np.float32)})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._total = self.np_random.random()
        return np.array([0, 0, 0, self._total], np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self._total += float(action["gear"]) + float(action["pedals"].sum())
        seen = np.array([action["gear"], *action["pedals"], self._total], np.float32)
        action["pedals"] *= 0.5
        action["gear"] = np.int64(0)
        return seen, self._total, bool(self.np_random.random() < 0.05), False, {}


class Nest(gymnasium.Env):
    """Observes a tuple, or dicts and tuples within each other."""

    action_space = spaces.Discrete(2)
    flat = spaces.Tuple((spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3)))
    deep = spaces.Dict(
        {
            "camera": spaces.Dict({"rgb": spaces.Box(0, 255, (4, 5, 3), np.uint8), "pose": flat}),
            "bits": spaces.MultiBinary(2),
        }
    )

    def __init__(self, kind="deep", fault=None):
        self.observation_space = self.deep if kind == "deep" else self.flat
        self._fault = fault

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(1 << 30)))
        return self.observation_space.sample(), {}

    def step(self, action):
        self.observation_space.seed(int(self.np_random.integers(1 << 30)))
        obs = self.observation_space.sample()
        if self._fault == "keys":
            obs["camera"].pop("rgb")
        if self._fault == "parts":
            obs = obs[:1]
        return obs, 0.0, bool(self.np_random.random() < 0.1), False, {}


class Informer(gymnasium.Env):
    """Reports numbers of several kinds, some of them only now and then."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, length=5, wheels=4):
        self._length, self._wheels, self._steps = length, wheels, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        self._length_now = self._length + int(self.np_random.integers(3))
        return np.zeros(1, np.float32), {"steps": -1}

    def step(self, action):
        self._steps += 1
        info = {"steps": self._steps, "won": bool(action == 2), "array": np.array([action * 0.5]), "name": "x"}
        if self._steps == self._length_now:
            info["episode"] = {"r": 10.0 * self._steps, "wheels": self._wheels}
        return np.zeros(1, np.float32), 1.0, self._steps == self._length_now, False, info


class Shifting(gymnasium.Env):
    """Has other spaces than the copy before, or than before its second reset."""

    action_space = spaces.Discrete(2)
    made = 0

    def __init__(self, when):
        type(self).made += 1
        self._when, self._resets = when, 0
        self.observation_space = spaces.Box(0, 1, (2 + type(self).made if when == "copy" else 2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._resets += 1
        if self._when == "reset" and self._resets == 2:
            self.action_space = spaces.Discrete(3)
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action):
        return np.zeros(self.observation_space.shape, np.float32), 0.0, True, False, {}


class Repeater(gymnasium.Wrapper):
    """A layer that takes several frames per step."""

    def __init__(self, env, frames):
        super().__init__(env)
        self.frames_per_step = frames


class Plain(gymnasium.Wrapper):
    """A layer of the user, of which the lab knows nothing."""


class Remembering(Plain):
    """One that says it goes on where the episode before it ended."""

    remembers_episodes = True


def make_informer(length, **kwargs):
    """A user's factory."""
    return Informer(length, **kwargs)


def make_nothing():
    """A factory that forgets to return."""


KINDS = (Faulty, Menagerie, Echo, Unrepeatable, Seedless, Strange, Actor, Pilot, Nest, Informer, Shifting)
for _kind in KINDS:
    gymnasium.register(f"Zoo/{_kind.__name__}-v0", entry_point=f"tests.environments.zoo:{_kind.__name__}")
