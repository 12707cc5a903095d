"""What `environments.py` measures of one environment, in other processes: a crash or a hang is no more than a row."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import time
import warnings
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np

COPIES = 2
STEPS_BEFORE = 130  # a state is taken after so many vector steps, in the middle of an episode
LIMIT = 200  # env steps: longer episodes are cut, so that resets are among the steps that follow
BATCHED = 4096  # copies
PER_WORKER = 4  # copies
SEED = 7
EXAMPLES = {  # of the options that leave the name to the user and are of one kind whatever it is
    "atari": "ALE/Pong-v5",
    "atari_fast": "ALE/Pong-v5",
    "dm_control": "dm_control/cartpole-swingup",
    "minigrid": "MiniGrid-Empty-5x5-v0",
}
PATIENCE_S = 30.0  # for the steps of one environment: pictures by software take longer than that
TIMEOUT_S = 180.0  # a process that does not answer for so long hangs


@dataclass(frozen=True)
class Subject:
    """One environment: an option of configs/environment, or a name that GymnasiumEnv takes."""

    family: str
    name: str
    is_packaged: bool = False


@dataclass(frozen=True)
class Saved:
    """What one process hands to the next: a state as a checkpoint holds it, and what followed."""

    kind: str  # of exactness
    info_keys: list[str]
    tensors: dict[str, np.ndarray]
    structure: str  # JSON
    actions: list[np.ndarray]
    digests: list[dict[str, bytes]]
    num_ended: int


class Lane:
    """Two processes: one runs and saves, the other goes on. Both are replaced when one dies or hangs."""

    def __init__(self) -> None:
        self._pools: list[ProcessPoolExecutor] = []

    def call(self, which: int, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what the function returns there; raises RuntimeError with one line."""
        if not self._pools:
            context = get_context("spawn")
            self._pools = [ProcessPoolExecutor(1, mp_context=context, initializer=_prepare) for _ in range(2)]
        try:
            future = self._pools[which].submit(function, *arguments)
            error = future.exception(TIMEOUT_S)
        except TimeoutError:
            self.close()
            raise RuntimeError(f"took longer than {TIMEOUT_S:.0f} s") from None
        if isinstance(error, BrokenExecutor):
            self.close()
            raise RuntimeError("ended its process")
        if error is not None:
            raise RuntimeError(" ".join(f"{type(error).__name__}: {error}".split()))
        return future.result()

    def close(self) -> None:
        """End both processes, at once."""
        for pool in self._pools:
            for process in list((pool._processes or {}).values()):
                process.kill()
            pool.shutdown(wait=False, cancel_futures=True)
        self._pools = []


def _prepare() -> None:
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)


def subjects() -> list[Subject]:
    """Return the packaged options and every registered environment of every family."""
    from rl_lab.config.trees import group_files

    packaged = [Subject("packaged", name, True) for name in group_files("environment")]
    return packaged + [Subject(family, name) for family, list_names in FAMILIES.items() for name in list_names()]


def _gymnasium() -> list[str]:
    import gymnasium

    return [name for name, spec in gymnasium.registry.items() if str(spec.entry_point).startswith("gymnasium.envs.")]


def _registered_by(module: str, *prefixes: str) -> list[str]:
    import gymnasium

    if importlib.util.find_spec(module) is None:
        return []
    importlib.import_module(module)
    return [name for name in gymnasium.registry if name.startswith(prefixes)]


def _dm_control() -> list[str]:
    if importlib.util.find_spec("dm_control") is None:
        return []
    from rl_lab.environments.dm_control import import_suite

    return [f"dm_control/{domain}-{task}" for domain, task in import_suite().ALL_TASKS]


def _robotics() -> list[str]:
    if importlib.util.find_spec("gymnasium_robotics") is None:
        return []
    from rl_lab.environments.robotics import make_env, task_names

    make_env("FetchReach-v4")  # which registers the others
    return task_names()


FAMILIES: dict[str, Callable[[], list[str]]] = {
    "Gymnasium": _gymnasium,
    "dm_control": _dm_control,
    "Atari": lambda: _registered_by("ale_py", "ALE/"),
    "MiniGrid": lambda: _registered_by("minigrid", "MiniGrid-", "BabyAI-"),
    "CarRacing": lambda: ["CarRacing-fast"],
    "PushT": lambda: ["gym_pusht/PushT-v0"],
    "Robotics": _robotics,
}


def depends_on_name(subject: Subject) -> bool:
    """Return whether nothing can be said of an option before the user has given a name."""
    from omegaconf import OmegaConf

    from rl_lab.config.trees import group_files

    if not subject.is_packaged or subject.name in EXAMPLES:
        return False
    return OmegaConf.is_missing(OmegaConf.load(group_files("environment")[subject.name]), "name")


def _config(subject: Subject) -> Any:
    from rl_lab.cli.env_config import read_environment

    overrides = ["experiment.device=cpu"]
    if subject.is_packaged and subject.name in EXAMPLES:
        overrides.append(f"environment.name={EXAMPLES[subject.name]}")
    return read_environment(subject.name, overrides)


def _in_one_process(config: Any) -> dict[str, Any]:
    """Return the arguments that keep an environment out of worker processes."""
    changes = {"backend": "sync", "on_crash": "raise", "timeout_s": None}
    return {key: value for key, value in changes.items() if key in config.arguments}


def _build_cut(subject: Subject, info_keys: list[str]) -> Any:
    """Build copies that end often enough for resets to be among the steps and report these numbers."""
    config = _config(subject)
    changes = _in_one_process(config)
    if "wrappers" in config.arguments:
        changes |= {"wrappers": [*(config.node.get("wrappers") or []), {"time_limit": LIMIT}], "info_keys": info_keys}
    elif config.node.get("max_episode_steps"):
        changes |= {"max_episode_steps": min(config.node["max_episode_steps"], LIMIT)}
    return config.build(num_envs=COPIES, **changes)


def _info_keys(subject: Subject) -> list[str]:
    """Return the names of all numbers in the infos of a few steps."""
    from rl_lab.environments.checking.recording import number_infos

    make = _config(subject).single()
    return [] if make is None else number_infos(make(), SEED)


def survey(subject: Subject) -> str:
    """Return whether the environment, as its config has it, says that it resumes exactly."""
    from rl_lab.environments.checking.exactness import exactness

    config = _config(subject)
    env = config.build(num_envs=1, **_in_one_process(config))
    env.reset(SEED)
    kind = exactness(env)
    env.close()
    return kind


def save(subject: Subject, steps: int) -> Saved:
    """Run into an episode, save, and record the steps that follow: fewer where they take too long."""
    from rl_lab.environments.checking.exactness import NOT_EXACT, exactness
    from rl_lab.environments.checking.random_actions import RandomActions
    from rl_lab.environments.checking.recording import step_digests
    from rl_lab.tracking.state_codec import encode

    info_keys = _info_keys(subject)
    env = _build_cut(subject, info_keys)
    obs, choose = env.reset(SEED), RandomActions(env, SEED)
    kind = exactness(env)
    if kind == NOT_EXACT:
        env.close()
        return Saved(kind, info_keys, {}, "", [], [], 0)
    end = time.monotonic() + PATIENCE_S / 4
    for _ in range(STEPS_BEFORE):
        obs = env.step(choose(obs)).observations
        if time.monotonic() > end:
            break
    tensors, structure = encode(env.get_state())
    actions, digests, num_ended = [], [], 0
    end = time.monotonic() + PATIENCE_S
    while len(actions) < steps and time.monotonic() < end:
        actions.append(choose(obs))
        step = env.step(actions[-1].clone())
        digests.append(step_digests(step))
        obs, num_ended = step.observations, num_ended + int((step.terminated | step.truncated).sum())
    env.close()
    arrays = {name: tensor.numpy().copy() for name, tensor in tensors.items()}
    sent = [action.numpy() for action in actions]
    return Saved(kind, info_keys, arrays, json.dumps(structure), sent, digests, num_ended)


def go_on(subject: Subject, saved: Saved) -> str:
    """Restore in this process and return the first difference, nothing when every step is the same to the bit."""
    import torch

    from rl_lab.environments.checking.recording import step_digests
    from rl_lab.tracking.state_codec import decode

    env = _build_cut(subject, saved.info_keys)
    tensors = {name: torch.from_numpy(array) for name, array in saved.tensors.items()}
    env.set_state(decode(json.loads(saved.structure), tensors))
    for index, (action, expected) in enumerate(zip(saved.actions, saved.digests, strict=True), 1):
        found = step_digests(env.step(torch.from_numpy(action)))
        if found != expected:
            env.close()
            fields = [name for name in expected if found[name] != expected[name]]
            return f"{', '.join(fields)} differ at step {index}"
    env.close()
    return ""


def speeds(subject: Subject, seconds: float) -> dict[str, float]:
    """Return env steps/s by way of stepping; of one that is not packaged only of a single copy."""
    from rl_lab.environments.checking.bench import steps_per_s
    from rl_lab.environments.tensor_env import TensorEnv

    config = _config(subject)

    def measure(num_envs: int, **changes: Any) -> float:
        env = config.build(num_envs=num_envs, **changes)
        try:
            return round(steps_per_s(env, seconds), 1)
        finally:
            env.close()

    found = {"single": measure(1, **_in_one_process(config))}
    if not subject.is_packaged:
        return found
    found["sync 8"] = measure(8, **_in_one_process(config))
    if "backend" in config.arguments:
        workers = os.cpu_count() or 1
        found["processes"] = measure(PER_WORKER * workers, backend="process", num_workers=workers)
    if issubclass(config.target, TensorEnv):
        found["batched"] = measure(BATCHED)
    return found
