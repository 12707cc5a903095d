"""How fast an environment steps with random actions, by the number of copies and of worker processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from rl_lab.core import ACTION_MASK, Actions, Observation, VectorEnv
from rl_lab.environments.checking.random_actions import RandomActions
from rl_lab.environments.checking.recording import CheckFailed, watched

SYNC_COPIES = (1, 4, 8, 16)
COPIES_PER_WORKER = (1, 4, 8)
BATCHED_COPIES = (1, 16, 256, 1024, 4096, 16384)
OTHER_COPIES = (1, 4, 8, 16, 32)
WARM_UP_STEPS = 5
PREPARED_ACTIONS = 16  # drawn before the clock runs
GOOD_ENOUGH = 0.9  # of the best speed: fewer copies are worth more than the rest


@dataclass(frozen=True)
class Setting:
    """One way to vectorise."""

    num_envs: int
    backend: str | None = None  # None: the environment knows no backends
    num_workers: int | None = None

    @property
    def overrides(self) -> str:
        """Return the override line of `lab train`."""
        parts = {"backend": self.backend, "num_envs": self.num_envs, "num_workers": self.num_workers}
        return " ".join(f"environment.{key}={value}" for key, value in parts.items() if value is not None)


@dataclass(frozen=True)
class Speed:
    """What was measured for one setting."""

    setting: Setting
    steps_per_s: float  # env steps: vector steps times copies; 0 when it failed
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        return asdict(self.setting) | {"steps_per_s": round(self.steps_per_s, 1), "error": self.error}


MakeSetting = Callable[[Setting], VectorEnv]


def hosted_settings(cpus: int | None = None) -> list[Setting]:
    """Return the settings of an environment that runs one copy after another, here or in workers."""
    count = cpus or os.cpu_count() or 1
    workers = sorted({1, count, *(2**power for power in range(1, count.bit_length()) if 2**power <= count)})
    settings = [Setting(num_envs, "sync") for num_envs in SYNC_COPIES]
    return settings + [Setting(w * each, "process", w) for w in workers for each in COPIES_PER_WORKER]


def batched_settings() -> list[Setting]:
    """Return the settings of an environment that steps all copies as one tensor program."""
    return [Setting(num_envs) for num_envs in BATCHED_COPIES]


def other_settings() -> list[Setting]:
    """Return the settings of a vector environment that is neither."""
    return [Setting(num_envs) for num_envs in OTHER_COPIES]


def bench_environment(make: MakeSetting, settings: Sequence[Setting], seconds: float) -> Iterator[Speed]:
    """Yield the speed of each setting; one that fails says why and the others go on."""
    for setting in settings:
        try:
            with watched():
                speed = Speed(setting, _measure(make, setting, seconds))
        except CheckFailed as failed:
            speed = Speed(setting, 0.0, str(failed))
        yield speed


def _measure(make: MakeSetting, setting: Setting, seconds: float) -> float:
    env = make(setting)
    try:
        return steps_per_s(env, seconds)
    finally:
        env.close()


def steps_per_s(env: VectorEnv, seconds: float, seed: int = 0) -> float:
    """Return the env steps per second of an environment, resets included."""
    obs = env.reset(seed)
    actions = _Actions(env, obs, seed)
    for _ in range(WARM_UP_STEPS):
        obs = env.step(actions(obs)).observations
    _wait(env.device)
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds or count == 0:
        obs = env.step(actions(obs)).observations
        count += 1
        if env.device.type != "cpu" and count % 64 == 0:
            _wait(env.device)  # else the clock would only see the launches
    _wait(env.device)
    return count * env.num_envs / (time.perf_counter() - start)


class _Actions:
    """Actions that were drawn before; only what `action_mask` may forbid is drawn anew at every step."""

    def __init__(self, env: VectorEnv, obs: Observation, seed: int) -> None:
        self._choose = RandomActions(env, seed)
        self._is_masked = isinstance(obs, dict) and ACTION_MASK in obs
        self._prepared: list[Actions] = [self._choose(obs) for _ in range(PREPARED_ACTIONS)]
        self._next = 0

    def __call__(self, obs: Observation) -> Actions:
        if self._is_masked:
            return self._choose(obs)
        self._next = (self._next + 1) % PREPARED_ACTIONS
        return self._prepared[self._next]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def best(speeds: Sequence[Speed]) -> Speed | None:
    """Return the fastest setting, None when all failed."""
    return max((speed for speed in speeds if speed.error is None), key=lambda speed: speed.steps_per_s, default=None)


def recommend(speeds: Sequence[Speed]) -> Speed | None:
    """Return the setting with the fewest copies (then workers) among those that are nearly as fast as the best."""
    top = best(speeds)
    if top is None:
        return None
    near = [s for s in speeds if s.error is None and s.steps_per_s >= GOOD_ENOUGH * top.steps_per_s]
    return min(near, key=lambda speed: (speed.setting.num_envs, speed.setting.num_workers or 0))
