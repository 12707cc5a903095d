"""Environments whose every number is known beforehand. Knows no torch, so that workers start light."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Ramp(gymnasium.Env):
    """Observes (step, 10 x step), is rewarded with the step's number, ends after `length` steps, keeps its actions."""

    observation_space = spaces.Box(-1000, 1000, (2,), np.float32)
    action_space = spaces.Box(np.array([-1, 0], np.float32), np.array([1, 10], np.float32))

    def __init__(self, length=7):
        self.length, self.steps, self.taken = length, 0, []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.taken = 0, []
        return self.observe(), {}

    def step(self, action):
        self.steps += 1
        self.taken.append(np.array(action).tolist())
        return self.observe(), float(self.steps), self.steps >= self.length, False, {"steps": self.steps}

    def observe(self):
        return np.array([self.steps, 10 * self.steps], np.float32)


class Film(Ramp):
    """Observes pictures: [H, W, 3] with the step in red; `kind` gray: [H, W]; dict: a picture and (step, 10 x step)."""

    action_space = spaces.Discrete(3)

    def __init__(self, length=7, kind="colour", render_mode=None):
        super().__init__(length)
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
        self.kind, self.render_mode = kind, render_mode
        shape = (5, 7) if kind == "gray" else (5, 7, 3)
        picture = spaces.Box(0, 255, shape, np.uint8)
        parts = {"camera": picture, "place": Ramp.observation_space, "action_mask": spaces.MultiBinary(3)}
        self.observation_space = spaces.Dict(parts) if kind == "dict" else picture

    def observe(self):
        picture = np.zeros((5, 7, 3), np.uint8)
        picture[..., 0] = self.steps
        if self.kind == "gray":
            return picture[..., 0]
        mask = np.ones(3, np.int8)
        return {"camera": picture, "place": super().observe(), "action_mask": mask} if self.kind == "dict" else picture

    def render(self):
        picture = np.zeros((33, 41, 3), np.uint8)
        picture[..., 1] = 30 * self.steps
        return picture


def make_ramp(length=7):
    """Return a Ramp; `tests.environments.ramps:make_ramp` in configs."""
    return Ramp(length)


def make_film(length=7, kind="colour", render_mode=None):
    """Return a Film; `tests.environments.ramps:make_film` in configs."""
    return Film(length, kind, render_mode)


class Bystander(gymnasium.Wrapper):
    """A wrapper that nobody knows, so that its episodes must be replayed."""
