"""From the name in a config to a gymnasium environment, with answers to what can be wrong about the name."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import gymnasium
import numpy as np

from rl_lab.core import ConfigError, EnvironmentFault, unknown_name
from rl_lab.environments.foreign import Watch, one_line
from rl_lab.environments.gymnasium_actions import ActionCodec
from rl_lab.environments.gymnasium_codec import ObservationCodec
from rl_lab.environments.gymnasium_member import Member
from rl_lab.environments.gymnasium_recipe import Recipe, Wrapper

PLUGINS = {"ALE/": "ale_py", "MiniGrid-": "minigrid", "BabyAI-": "minigrid"}  # id prefix -> module that registers it
EXTRAS = {"box2d": "box2d", "mujoco": "mujoco", "ale_py": "atari", "minigrid": "minigrid", "pygame": "box2d"}
PROBE_STEPS = 8  # per episode of the repeatability probe


class _NotRepeatable(RuntimeError):
    """Two copies of an environment did not behave the same, or raised."""


def find_recipe(name: str, kwargs: Mapping[str, Any], wrappers: Sequence[Wrapper]) -> Recipe:
    """Return how to make the registered id or `module:Id`; raises ConfigError with the nearest ids."""
    module, _, registered = name.rpartition(":")
    module = module or next((module for prefix, module in PLUGINS.items() if name.startswith(prefix)), "")
    if module:
        with Watch(lambda error: _importing_error(name, module, error)):
            importlib.import_module(module)  # which registers its ids
    try:
        spec = copy.deepcopy(gymnasium.spec(registered))
    except gymnasium.error.Error as error:
        raise _unknown_id(name) from error
    spec.order_enforce = False  # the lab resets before it steps; one call less per step
    return Recipe(spec, dict(kwargs), tuple(wrappers))


def make_sample(recipe: Recipe) -> gymnasium.Env[Any, Any]:
    """Make one environment to learn its spaces; raises ConfigError when its arguments or packages are wrong."""
    with Watch(lambda error: _making_error(recipe.spec.id, error)):
        return recipe.make()


def is_repeatable(recipe: Recipe, observation: ObservationCodec, action: ActionCodec) -> bool:
    """Return whether a second copy repeats an episode of a first one to the bit.

    Gymnasium's own environments do (the tests show it); others are tried for three short episodes of random actions.
    """
    if recipe.spec.nondeterministic:
        return False
    if recipe.is_gymnasiums_own and not recipe.wrappers:
        return True
    try:
        with Watch(lambda error: _NotRepeatable(str(error))):
            return _probe(recipe, observation, action)
    except _NotRepeatable:
        return False


def _probe(recipe: Recipe, observation: ObservationCodec, action: ActionCodec) -> bool:
    first, second = Member(recipe, is_exact=True), Member(recipe, is_exact=True)
    sample = recipe.make()
    sample.action_space.seed(0)
    arrays = observation.empty(2)
    obs = first.start(0)
    for step in range(1, 3 * PROBE_STEPS):
        chosen = sample.action_space.sample()
        first.log(np.array(chosen)[()])  # before the step, which may write into it
        obs, _, terminated, truncated, _ = first.step(chosen)
        if terminated or truncated or step % PROBE_STEPS == 0:
            obs = first.restart()
    observation.write(observation.target(arrays), 0, obs)
    observation.write(observation.target(arrays), 1, second.set_state(first.get_state(action), action))
    for env in (first, second, sample):
        env.close()
    return all(array[0].tobytes() == array[1].tobytes() for array in arrays.values())


def _importing_error(name: str, module: str, error: Exception) -> Exception:
    if module in EXTRAS:
        return _making_error(name, error)
    return ConfigError(f"environment.name {name!r}: the module {module!r} {one_line(error)}")


def _unknown_id(name: str) -> ConfigError:
    known = list(gymnasium.registry)
    near = get_close_matches(name, known, n=5, cutoff=0.5) or sorted(known)[:5]
    return ConfigError(unknown_name("environment.name", name, near) + f" of {len(known)} registered ones, or module:Id")


def _making_error(name: str, error: Exception) -> Exception:
    text = " ".join(str(error).split())
    if isinstance(error, ImportError | gymnasium.error.DependencyNotInstalled):
        extra = next((extra for package, extra in EXTRAS.items() if package in text.lower()), None)
        mend = f"pip install 'rl-lab[{extra}]'" if extra else "install the package it needs"
        return ConfigError(f"environment.name {name!r} needs a package that is not installed: {mend} ({text})")
    if isinstance(error, TypeError):
        return ConfigError(f"environment.env_kwargs does not fit {name!r}: {text}")
    return EnvironmentFault(f"environment {name!r} could not be made: it {one_line(error)}")
