"""Exact state across processes: one process runs into episodes, saves and goes on; a second one restores and goes on.

Both are given the same actions, and every observation, reward, flag, final observation and number in the infos is
compared to the bit. States travel as a checkpoint holds them. Free of pytest, so that scripts can use it.
"""

import importlib
import json
import multiprocessing
import os
import warnings
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch

from rl_lab.core import tree_map
from rl_lab.environments.checking.random_actions import RandomActions
from rl_lab.environments.checking.recording import number_infos, step_digests
from rl_lab.environments.gymnasium import GymnasiumEnv
from rl_lab.environments.hosting.registry import find_recipe
from rl_lab.environments.wrappers.wrapping import build_wrappers
from rl_lab.tracking.state_codec import decode, encode

GYMNASIUM = "rl_lab.environments.gymnasium.GymnasiumEnv"
NUM_ENVS = 2


@dataclass(frozen=True)
class Case:
    """An environment as a config gives it, and how many vector steps to compare after the restore."""

    name: str
    config: Mapping[str, object]
    steps: int
    is_in_workers: bool = False  # whether a config's backend counts


@dataclass(frozen=True)
class Result:
    """What came of a case; `how` is native, replay, arrays or no."""

    name: str
    is_exact: bool
    how: str
    message: str
    num_ended: int = 0  # episodes that ended among the compared steps


@dataclass(frozen=True)
class Saved:
    """What the first process hands over."""

    how: str
    tensors: dict[str, np.ndarray]
    structure: str  # JSON
    info_keys: list[str]
    actions: list[np.ndarray | dict[str, np.ndarray]] = field(default_factory=list)
    digests: list[dict[str, bytes]] = field(default_factory=list)
    num_ended: int = 0


def check_exact(entries, steps=600):
    """Return one Result per entry: a name that GymnasiumEnv takes, a config of an environment, or a Case."""
    cases = [_case(entry, steps) for entry in entries]
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(1, mp_context=context, initializer=_prepare) as first,
        ProcessPoolExecutor(1, mp_context=context, initializer=_prepare) as second,
    ):
        saving = [first.submit(_save, case) for case in cases]
        going_on = [second.submit(_go_on, case, future.result()) for case, future in zip(cases, saving, strict=True)]
        return [future.result() for future in going_on]


def _case(entry, steps):
    if isinstance(entry, Case):
        return entry
    config = {"name": entry} if isinstance(entry, str) else dict(entry)
    label = entry if isinstance(entry, str) else str(config.get("name") or config["_target_"])
    return Case(label, config, steps)


def _prepare():
    os.environ.setdefault("MUJOCO_GL", "egl")
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)


def _build(case, info_keys=None):
    arguments = {key: value for key, value in case.config.items() if key != "_target_"}
    module, _, name = str(case.config.get("_target_", GYMNASIUM)).rpartition(".")
    kind = vars(importlib.import_module(module))[name]
    if kind is GymnasiumEnv:
        # Cut long episodes, so that resets are among the steps.
        arguments["wrappers"] = [*arguments.get("wrappers", ()), {"time_limit": max(case.steps // 3, 2)}]
        if not case.is_in_workers:
            arguments["backend"] = "sync"  # both give the same state
        arguments["info_keys"] = _info_keys(arguments) if info_keys is None else info_keys
    elif "max_episode_steps" in arguments:
        arguments["max_episode_steps"] = min(arguments["max_episode_steps"], max(case.steps // 3, 2))
    elif "episode_s" in arguments:
        arguments["episode_s"] = min(arguments["episode_s"], 0.01 * max(case.steps // 3, 2))  # of 10 or 20 ms each
    return kind(**arguments | {"num_envs": NUM_ENVS})


def _info_keys(arguments):
    """Return the names of all numbers in the infos of a few steps."""
    recipe = find_recipe(arguments["name"], arguments.get("env_kwargs") or {}, build_wrappers(arguments["wrappers"]))
    return sorted({*(arguments.get("info_keys") or ()), *number_infos(recipe.make(), seed=0)})


def _save(case):
    """Run into an episode, save, and record the steps that follow; return a message when that cannot be done."""
    try:
        env = _build(case)
        if not env.spec.exact_resume:
            return "it says that it cannot be restored"
        obs, choose = env.reset(5), RandomActions(env, 5)
        for _ in range(max(case.steps // 5, 2)):
            obs = env.step(choose(obs)).observations
        state = env.get_state()
        tensors, structure = encode(state)
        arrays = {name: tensor.numpy().copy() for name, tensor in tensors.items()}
        info_keys = list(env._info_keys) if isinstance(env, GymnasiumEnv) else []
        saved = Saved(_how(env, state), arrays, json.dumps(structure), info_keys)
        num_ended = 0
        for _ in range(case.steps):
            saved.actions.append(tree_map(torch.Tensor.numpy, choose(obs)))
            step = env.step(_tensors(saved.actions[-1]))
            saved.digests.append(step_digests(step))
            obs, num_ended = step.observations, num_ended + int((step.terminated | step.truncated).sum())
        env.close()
    except (ValueError, TypeError, RuntimeError, OSError, LookupError, AssertionError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return Saved(**vars(saved) | {"num_ended": num_ended})


def _tensors(action):
    return tree_map(lambda array: torch.from_numpy(array.copy()), action)


def _how(env, state):
    if not isinstance(env, GymnasiumEnv):
        return "arrays"
    return "native" if "native" in state["members"][0] else "replay"


def _go_on(case, saved):
    """Restore in this process, in objects that were used before, and compare."""
    if isinstance(saved, str):
        return Result(case.name, False, "no", saved)
    difference = ""
    try:
        env = _build(case, saved.info_keys)
        env.reset(6)
        for action in saved.actions[:2]:
            env.step(_tensors(action))
        tensors = {name: torch.from_numpy(array) for name, array in saved.tensors.items()}
        env.set_state(decode(json.loads(saved.structure), tensors))
        for index, (action, expected) in enumerate(zip(saved.actions, saved.digests, strict=True), 1):
            found = step_digests(env.step(_tensors(action)))
            if found != expected:
                fields = ", ".join(name for name in expected if found[name] != expected[name])
                difference = f"{fields} differ at step {index}"
                break
        env.close()
    except (ValueError, TypeError, RuntimeError, OSError, LookupError, AssertionError, AttributeError) as error:
        difference = f"{type(error).__name__}: {error}"
    return Result(case.name, not difference, saved.how, difference, saved.num_ended)
