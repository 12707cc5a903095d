"""Atari games by ale-py's own vector environment: emulators and preprocessing in C++ threads, without exact resume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_lab.core import (
    Actions,
    Box,
    ConfigError,
    Discrete,
    EnvironmentFault,
    EnvSpec,
    Observation,
    State,
    Step,
    VectorEnv,
    unknown_name,
)
from rl_lab.environments.atari import EXTRA, FRAME_SKIP, rom_of
from rl_lab.environments.hosting.family_options import check_at_least, height_and_width
from rl_lab.environments.hosting.foreign import load_package

Array = NDArray[Any]


@dataclass(frozen=True)
class AtariOptions:
    """What `env_kwargs` may hold; the names are those of the exact family."""

    frame_skip: int = FRAME_SKIP
    repeat_action_probability: float = 0.25
    full_action_space: bool = False
    max_frames: int = 108_000
    noop_max: int = 30
    size: int | Sequence[int] = 84
    frame_stack: int = 4
    life_loss: bool = False
    clip_reward: bool = False


class AtariFastEnv(VectorEnv):
    """`num_envs` copies of `ALE/<Game>-v5` that see the same as those of the family `atari`, uint8 [frame_stack, H, W].

    The emulators give no state, so a run cannot be resumed exactly, and says so. Differences to the exact family:
    no-ops do not count among the frames of the time limit, the next life begins without one, and the newest picture of
    a final observation may be a few frames old.

    Args:
        name: A game such as ALE/Pong-v5.
        num_envs: Copies that step together.
        device: Where the tensors live; the lab gives it.
        env_kwargs: frame_skip, repeat_action_probability, full_action_space, max_frames, noop_max, size, frame_stack,
            life_loss and clip_reward, as in the exact family.
        num_threads: Of the emulators; null: one per CPU.
    """

    def __init__(
        self,
        name: str,
        num_envs: int,
        *,
        device: torch.device | str = "cpu",
        env_kwargs: Mapping[str, Any] | None = None,
        num_threads: int | None = None,
    ) -> None:
        options = _options(env_kwargs or {})
        if num_envs < 1 or (num_threads is not None and num_threads < 1):
            raise ConfigError(f"environment.num_envs and num_threads must be 1 or more, got {num_envs}, {num_threads}")
        self.num_envs, self.device, self._frame_stack = num_envs, torch.device(device), options.frame_stack
        self._games = _make_games(name, num_envs, options, num_threads or 0)
        self.spec = EnvSpec(
            id=name,
            observation=Box(self._games.single_observation_space.shape, torch.uint8, 0, 255),
            action=Discrete(int(self._games.single_action_space.n)),
            max_episode_steps=options.max_frames // options.frame_skip,
            exact_resume=False,
            action_repeat=options.frame_skip,
        )
        self._age = np.zeros(num_envs, np.int64)  # steps since each episode began
        self._lives = np.zeros(num_envs, np.int64)
        self._steps = 0

    def reset(self, seed: int) -> Observation:
        """Start every copy anew; the same seed gives the same episodes."""
        seeds = np.random.SeedSequence(seed).generate_state(self.num_envs) >> 1  # the emulator takes 31 bits
        pictures, info = self._games.reset(seed=seeds.astype(np.int64))
        self._age, self._lives, self._steps = np.zeros_like(self._age), info["lives"], 0
        self._forget(pictures, self._age)
        return self._to_tensor(pictures)

    def step(self, actions: Actions) -> Step:
        """Step every copy; one that ends its episode is reset within the same call."""
        pictures, rewards, terminated, truncated, info = self._games.step(self._to_array(actions))
        truncated &= ~terminated
        ended, age = terminated | truncated, self._age + 1
        finals = self._finals(pictures, info, terminated, truncated) if ended.any() else None
        self._age, self._lives, self._steps = np.where(ended, 0, age), info["lives"], self._steps + 1
        self._forget(pictures, self._age)
        obs = self._to_tensor(pictures)
        final = obs if finals is None else self._to_tensor(finals)
        flags = self._to_tensor(terminated), self._to_tensor(truncated)
        return Step(obs, self._to_tensor(rewards.astype(np.float32)), flags[0], flags[1], final)

    def get_state(self) -> State:
        """Return which game it was and how far it had come: all that a new start needs."""
        return {"id": self.spec.id, "num_envs": self.num_envs, "steps": self._steps}

    def set_state(self, state: State) -> None:
        """Raise EnvironmentFault: the emulators cannot be restored."""
        raise EnvironmentFault(
            f"environment {self.spec.id!r} cannot be restored: ale-py's vector environment gives no state; "
            "environment=atari is exactly resumable"
        )

    def close(self) -> None:
        """Free the emulators."""
        self._games.close()

    def _finals(self, pictures: Array, info: Mapping[str, Array], terminated: Array, truncated: Array) -> Array:
        """Return what the step led to. `final_obs` holds nothing where only a life was lost: that game goes on."""
        is_over = truncated | (terminated & (info["lives"] >= self._lives))
        finals = pictures.copy()
        finals[is_over] = info["final_obs"][is_over]
        self._forget(finals, self._age + 1)
        return finals

    def _forget(self, pictures: Array, age: Array) -> None:
        """Repeat the first picture of a young episode where its stack holds nothing yet, or another episode."""
        for row in np.flatnonzero(age < self._frame_stack - 1):
            first = self._frame_stack - 1 - age[row]
            pictures[row, :first] = pictures[row, first]

    def _to_array(self, actions: Actions) -> Array:
        assert isinstance(self.spec.action, Discrete)
        assert isinstance(actions, Tensor)
        array: Array = actions.detach().cpu().numpy()
        if array.shape != (self.num_envs,):
            raise ValueError(f"actions for {self.spec.id!r} have shape {array.shape} instead of {(self.num_envs,)}")
        if array.min() < 0 or array.max() >= self.spec.action.n:  # the emulator would not notice
            raise EnvironmentFault(f"environment {self.spec.id!r} has {self.spec.action.n} actions, got {array}")
        return array.astype(np.int64)

    def _to_tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self.device)


def _options(env_kwargs: Mapping[str, Any]) -> AtariOptions:
    known = [field.name for field in fields(AtariOptions)]
    unknown = sorted(set(env_kwargs) - set(known))
    if unknown:
        raise ConfigError(unknown_name("environment.env_kwargs", unknown[0], known))
    options = AtariOptions(**env_kwargs)
    for name, low in (("frame_skip", 1), ("frame_stack", 1), ("noop_max", 0), ("max_frames", 1)):
        check_at_least(name, env_kwargs.get(name, low), low)
    return options


def _make_games(name: str, num_envs: int, options: AtariOptions, num_threads: int) -> Any:
    height, width = height_and_width("size", options.size)
    game = rom_of(name)
    return load_package("ale_py.vector_env", name, EXTRA).AtariVectorEnv(
        game,
        num_envs,
        num_threads=num_threads,
        max_num_frames_per_episode=options.max_frames,
        repeat_action_probability=options.repeat_action_probability,
        full_action_space=options.full_action_space,
        autoreset_mode="SameStep",
        img_height=height,
        img_width=width,
        stack_num=options.frame_stack,
        frameskip=options.frame_skip,
        noop_max=options.noop_max,
        life_loss_info=options.life_loss,
        reward_clipping=options.clip_reward,
        use_fire_reset=False,
    )
