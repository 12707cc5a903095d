"""Demonstrations that come with the lab, as `packaged/NAME`; nothing is downloaded.

`pusht`: the 206 demonstrations of Diffusion Policy (Chi et al., 2023), see `rl_lab/data/pusht/PROVENANCE.md`.
`pusht_pixels`: the same with the pictures that gym-pusht draws of them, which takes about two minutes.
`two_roads`: straight ways from the middle of MultiGoal to its goal in the east or to that in the west: a mean of both
reaches neither.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from rl_lab.buffers.datasets.format import Array, Episode, EpisodeReader
from rl_lab.core.errors import ConfigError, unknown_name

PREFIX = "packaged/"
# Corners of the block's two bars in its own frame, in the order of `environment_state`.
CORNERS = np.array([(-60, 0), (60, 0), (60, 30), (-60, 30), (-15, 30), (15, 30), (15, 120), (-15, 120)], np.float64)


def open_packaged(name: str) -> EpisodeReader:
    """Open the dataset `packaged/NAME`."""
    key = name.removeprefix(PREFIX)
    if key not in PACKAGED:
        raise ConfigError(unknown_name("packaged dataset", key, PACKAGED))
    return PACKAGED[key](Path(name))


class PushTReader(EpisodeReader):
    """PushT, with all that its environment can show: `state`, `environment_state`, `agent_pos` and, if drawn, `pixels`.

    Rewards were not recorded and are 0; the steps end where the person stopped.
    """

    has_final_observations = False
    steps_per_second = 10.0

    def __init__(self, path: Path, *, draws: bool = False) -> None:
        self.path = path
        with files("rl_lab").joinpath("data/pusht/demonstrations.npz").open("rb") as file, np.load(file) as data:
            self._actions, self._states = data["action"].astype(np.float32), data["state"]
            self._ends = [int(end) for end in data["episode_ends"]]
        self._starts = [0, *self._ends[:-1]]
        self.lengths = [end - start for start, end in zip(self._starts, self._ends, strict=True)]
        self._draw = _painter() if draws else None

    def read(self, number: int) -> Episode:
        """Return one demonstration."""
        return self._read(number, self._draw)

    def glance(self, number: int) -> Episode:
        """Return one demonstration without drawing it."""
        return self._read(number, None)

    def _read(self, number: int, draw: Callable[[Array], Array] | None) -> Episode:
        steps = slice(self._starts[number], self._ends[number])
        states = self._states[steps]
        observations = {"state": states, "environment_state": block_corners(states), "agent_pos": states[:, :2]}
        if draw is not None:
            observations["pixels"] = np.stack([draw(state) for state in states])
        return Episode(
            observations=observations,
            actions=self._actions[steps],
            rewards=np.zeros(len(states), np.float32),
            terminated=False,
            truncated=True,
            final_observation={key: array[-1] for key, array in observations.items()},
            task="push the block onto its goal",
            has_final_observation=False,
        )


def block_corners(states: Array) -> Array:
    """Return the corners of the block [T, 16] in states [T, 5]."""
    cos, sin = np.cos(states[:, 4:].astype(np.float64)), np.sin(states[:, 4:].astype(np.float64))
    turned = np.stack([cos * CORNERS[:, 0] - sin * CORNERS[:, 1], sin * CORNERS[:, 0] + cos * CORNERS[:, 1]], -1)
    return (turned + states[:, None, 2:4]).reshape(len(states), -1).astype(np.float32)


def _painter() -> Callable[[Array], Array]:
    """Return what draws a state [5] as gym-pusht shows it, [3, 96, 96]."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of what it draws with
            module = import_module("gym_pusht.envs.pusht")
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed: pip install 'rl-lab[pusht]'") from error
    env: Any = module.PushTEnv(obs_type="pixels")
    env.reset(seed=0)

    def draw(state: Array) -> Array:
        env.agent.position = tuple(float(x) for x in state[:2])
        env.block.angle = float(state[4])  # which moves the position
        env.block.position = tuple(float(x) for x in state[2:4])
        for body in (env.agent, env.block):
            env.space.reindex_shapes_for_body(body)
        return np.ascontiguousarray(np.moveaxis(env.get_obs(), -1, 0))

    return draw


class TwoRoadsReader(EpisodeReader):
    """Ways of MultiGoal from where its episodes begin to the east or to the west, half of them each.

    A step is 0.5 long and moved by a little noise. All is drawn from one seed.
    """

    NUM_EPISODES, SPEED, NOISE, GOAL, RADIUS = 64, 0.5, 0.05, 5.0, 1.0

    def __init__(self, path: Path) -> None:
        self.path = path
        rng = np.random.default_rng(0)
        self._episodes = [self._walk(rng, -1.0 if number % 2 else 1.0) for number in range(self.NUM_EPISODES)]
        self.lengths = [len(episode) for episode in self._episodes]

    def read(self, number: int) -> Episode:
        """Return one way."""
        return self._episodes[number]

    def _walk(self, rng: np.random.Generator, side: float) -> Episode:
        goal, places, actions = np.array([side * self.GOAL, 0.0]), [0.1 * rng.normal(size=2)], []
        while np.linalg.norm(goal - places[-1]) >= self.RADIUS:
            way = goal - places[-1]
            actions.append(self.SPEED * way / np.linalg.norm(way) + self.NOISE * rng.normal(size=2))
            places.append(places[-1] + actions[-1])
        return Episode(
            observations=np.array(places[:-1], np.float32),
            actions=np.array(actions, np.float32),
            rewards=np.zeros(len(actions), np.float32),
            terminated=True,
            truncated=False,
            final_observation=places[-1].astype(np.float32),
        )


PACKAGED: dict[str, Callable[[Path], EpisodeReader]] = {
    "pusht": PushTReader,
    "pusht_pixels": lambda path: PushTReader(path, draws=True),
    "two_roads": TwoRoadsReader,
}
