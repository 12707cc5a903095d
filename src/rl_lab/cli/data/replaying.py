"""Recorded actions once more in a simulated environment, without a policy: how far does it end from where it was?

A cell is brought to the recorded start by what was observed there. Other environments begin with a seed, and the
distance at the start tells how little that says. A real robot is never moved by this.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from rl_lab.buffers.datasets.format import Array, Episode, named
from rl_lab.cli.data.choosing import reject_existing
from rl_lab.cli.data.films import without_ending
from rl_lab.core.errors import UsageError
from rl_lab.environments.hosting.actions import MixedAction, action_codec
from rl_lab.environments.hosting.codec import OBSERVATION, ObservationCodec, observation_codec
from rl_lab.human.cell.env import CellEnv, SimulatedCellEnv
from rl_lab.tracking.film import Film


def replay_episode(
    make: Callable[[], gymnasium.Env[Any, Any]],
    episode: Episode,
    *,
    seed: int = 0,
    rescale: bool | None = None,
    film: Path | None = None,
    fps: float = 10.0,
) -> dict[str, Any]:
    """Give the recorded actions to an environment and return how far what was seen is from what was recorded."""
    pictures = None if film is None else Film(without_ending(film), fps)
    if pictures is not None:
        reject_existing(pictures.path)
    env = make()
    try:
        codec, rows = observation_codec(env.observation_space), _action_rows(env, episode, rescale)
        seen = [_encoded(codec, _begin(env, episode, seed))]
        ended = "not at all"
        for step, action in enumerate(rows):
            _film(pictures, env)
            observation, _, terminated, truncated, info = env.step(action)
            seen.append(_encoded(codec, observation))
            if terminated or truncated:
                ended = f"{'terminated' if terminated else 'truncated'} after {step + 1} steps"
                break
        path = None if pictures is None else pictures.close()
    finally:
        env.close()
    success = info.get("is_success")
    facts = {"ended": ended, "is_success": None if success is None else bool(success), "film": path and str(path)}
    return {"steps": len(seen) - 1, "of": len(episode), **facts, "deviation": _deviation(episode, seen)}


def _begin(env: gymnasium.Env[Any, Any], episode: Episode, seed: int) -> Any:
    """Start where the episode started, as far as that can be told."""
    base = env.unwrapped
    if isinstance(base, CellEnv) and not isinstance(base, SimulatedCellEnv):
        raise UsageError("replay moves no real robot: only simulated cells are given recorded actions")
    observation, _ = env.reset(seed=seed)
    if isinstance(env, SimulatedCellEnv):
        first = episode.observations
        return env.begin_at({k: a[0] for k, a in first.items()} if isinstance(first, dict) else first[0])
    return observation


def _action_rows(env: gymnasium.Env[Any, Any], episode: Episode, rescale: bool | None) -> Any:
    codec = action_codec(env.action_space, rescale)
    if isinstance(codec, MixedAction) or isinstance(episode.actions, dict):
        raise UsageError("replay takes actions that are one array, not a dict of them")
    if episode.actions.shape[1:] != codec.shape:
        found, wanted = list(episode.actions.shape[1:]), list(codec.shape)
        raise UsageError(f"the recorded actions are {found}, the environment takes {wanted}: is it of another robot?")
    return codec.rows(episode.actions)[0]


def _encoded(codec: ObservationCodec, observation: Any) -> dict[str, Array]:
    """Return an observation under the names that files have."""
    arrays = codec.empty(1)
    codec.write(codec.target(arrays), 0, observation)
    return {f"observations/{n}" if n != OBSERVATION else "observations": array[0] for n, array in arrays.items()}


def _deviation(episode: Episode, seen: list[dict[str, Array]]) -> dict[str, Any]:
    """Return by array how far it is from the recorded one: at the start, at the end and at most; pictures are not."""
    found = {}
    finals = named(episode.final_observation)
    for name, recorded in named(episode.observations).items():
        if recorded.dtype == np.uint8 or name not in seen[0]:
            continue
        whole = (
            np.concatenate([recorded, np.asarray(finals[name])[None]]) if episode.has_final_observation else recorded
        )
        steps = min(len(whole), len(seen))
        away = np.abs(np.stack([row[name] for row in seen[:steps]]) - whole[:steps]).reshape(steps, -1).max(1)
        found[name] = {"start": float(away[0]), "end": float(away[-1]), "max": float(away.max())}
    if not found:
        raise UsageError(f"the episode shows none of the numbers that the environment shows: {', '.join(seen[0])}")
    return found


def _film(pictures: Film | None, env: gymnasium.Env[Any, Any]) -> None:
    if pictures is not None:
        picture = env.render()
        if picture is None:
            raise UsageError("the environment draws no pictures (env_kwargs.render_mode=rgb_array)")
        pictures.add(torch.from_numpy(np.ascontiguousarray(picture)))
