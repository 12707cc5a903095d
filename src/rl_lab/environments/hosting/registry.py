"""From the name in a config to a gymnasium environment, with answers to what can be wrong about the name."""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import gymnasium
import numpy as np

from rl_lab.core import ConfigError, EnvironmentFault, LabError, split_reference, unknown_name
from rl_lab.environments.exact.state import has_native_state, is_replayable, layers
from rl_lab.environments.hosting.actions import ActionCodec
from rl_lab.environments.hosting.codec import ObservationCodec
from rl_lab.environments.hosting.foreign import Watch, missing_package, one_line
from rl_lab.environments.hosting.member import Member, Signature, signature_of
from rl_lab.environments.hosting.recipe import Env, Factory, Recipe, Registered, Wrapper, load_factory
from rl_lab.environments.universe import is_universe_name, translate

# How a name of each family begins, and the function that is given the name and env_kwargs.
FAMILIES = {
    "dm_control/": "rl_lab.environments.dm_control:make_env",
    "ALE/": "rl_lab.environments.atari:make_env",
    "MiniGrid-": "rl_lab.environments.minigrid:make_env",
    "BabyAI-": "rl_lab.environments.minigrid:make_env",
    "CarRacing-fast": "rl_lab.environments.car_racing:make_env",
    "gym_pusht/": "rl_lab.environments.pusht:make_env",
    "gym_aloha/": "rl_lab.environments.aloha:make_env",
    "Fetch": "rl_lab.environments.robotics:make_env",
    "HandReach": "rl_lab.environments.robotics:make_env",
    "HandManipulate": "rl_lab.environments.robotics:make_env",
    "cell/": "rl_lab.human.cell.tasks:make_env",
}
# Names of families that gymnasium does not register, offered beside its ids for one that is unknown.
EXAMPLES = (
    "dm_control/cartpole-swingup",
    "ALE/Pong-v5",
    "MiniGrid-Empty-5x5-v0",
    "CarRacing-fast",
    "gym_pusht/PushT-v0",
    "gym_aloha/AlohaTransferCube-v0",
    "FetchReach-v4",
    "cell/Insertion-v0",
)
FORMS = "module:Id, module:function, dm_control/<domain>-<task>, ALE/<Game>-v5, universe/domain/task"
EXTRAS = {
    **{"box2d": "box2d", "pygame": "box2d", "mujoco": "mujoco", "dm_control": "mujoco", "ale_py": "atari"},
    **{"ale-py": "atari", "cv2": "atari", "minigrid": "minigrid", "gym_pusht": "pusht", "pymunk": "pusht"},
    **{"gymnasium_robotics": "robotics", "pettingzoo": "robotics"},
}
PROBE_STEPS = 8  # per episode of the repeatability probe


class _NotRepeatable(RuntimeError):
    """Two copies of an environment did not behave the same, or raised."""


def find_recipe(name: str, kwargs: Mapping[str, Any], wrappers: Sequence[Wrapper]) -> Recipe:
    """Return how to make the environment of this name; raises ConfigError with the nearest names."""
    if is_universe_name(name):
        name = translate(name)
    is_plain = ":" not in name
    family = next((function for prefix, function in FAMILIES.items() if is_plain and name.startswith(prefix)), None)
    source = Factory(family, (name,)) if family else _user_source(name)
    registered = source.spec.id if isinstance(source, Registered) else name
    return Recipe(registered, source, dict(kwargs), tuple(wrappers))


def _user_source(name: str) -> Registered | Factory:
    """Return the source of a registered id, of `module:Id` or of `module:function`."""
    reference, registered = split_reference(name), name  # as the allow-list reads it: nothing else is imported
    if reference is not None:
        module, registered = reference
        with Watch(lambda error: _importing_error(name, module, error)):
            importlib.import_module(module)  # which registers its ids
    if reference is not None and registered not in gymnasium.registry and registered.isidentifier():
        entry_point = ":".join(reference)
        with Watch(lambda error: ConfigError(f"environment.name {name!r}: {error}")):
            load_factory(entry_point)
        return Factory(entry_point)
    try:
        spec = copy.deepcopy(gymnasium.spec(registered))
    except gymnasium.error.Error as error:
        raise _unknown_id(name) from error
    spec.order_enforce = False  # the lab resets before it steps; one call less per step
    return Registered(spec)


def make_sample(recipe: Recipe) -> Env:
    """Make one environment to learn its spaces; raises ConfigError when its arguments or packages are wrong."""
    with Watch(lambda error: _making_error(recipe.id, error)):
        return recipe.make()


def reject_unseeded(recipe: Recipe, sample: Env, observation: ObservationCodec, exact_resume: bool | None) -> None:
    """Raise ConfigError when the environment takes no seed, or begins differently with the same one.

    Two copies are asked only where nothing else tells: neither those with a native state, nor gymnasium's own, nor what
    cannot be begun anew (robots), nor where the config says whether it can be repeated.
    """
    for layer in layers(sample):
        given = inspect.signature(layer.reset).parameters
        if "seed" not in given and not any(parameter.kind is parameter.VAR_KEYWORD for parameter in given.values()):
            text = (
                f"environment.name {recipe.id!r} cannot be reset to a seed: reset of {type(layer).__name__} takes none"
            )
            raise ConfigError(text)
    is_known = has_native_state(sample) or (recipe.is_gymnasiums_own and not recipe.wrappers)
    if is_known or recipe.is_nondeterministic or not is_replayable(sample) or exact_resume is not None:
        return
    arrays = observation.empty(2)
    try:
        with Watch(lambda error: _NotRepeatable(str(error))):
            for row in range(2):
                member = Member(recipe, signature_of(sample), is_exact=False)
                observation.write(observation.target(arrays), row, member.start(0))
                member.close()
    except _NotRepeatable:
        return  # told where it is reset
    if any(array[0].tobytes() != array[1].tobytes() for array in arrays.values()):
        raise ConfigError(
            f"environment.name {recipe.id!r} cannot be reset to a seed: two copies began differently with the same one "
            "(environment.exact_resume=false takes it as it is)"
        )


def is_repeatable(recipe: Recipe, sample: Env, observation: ObservationCodec, action: ActionCodec) -> bool:
    """Return whether a running episode can be continued in a second copy to the bit.

    Those with a native state and gymnasium's own are (the tests show it); others are tried for three short episodes.
    """
    if has_native_state(sample):
        return True
    if recipe.is_nondeterministic or not is_replayable(sample):
        return False
    if recipe.is_gymnasiums_own and not recipe.wrappers:
        return True
    try:
        with Watch(lambda error: _NotRepeatable(str(error))):
            return _probe(recipe, signature_of(sample), observation, action)
    except _NotRepeatable:
        return False


def _probe(recipe: Recipe, spaces: Signature, observation: ObservationCodec, action: ActionCodec) -> bool:
    first, second = Member(recipe, spaces, is_exact=True), Member(recipe, spaces, is_exact=True)
    generator = np.random.default_rng(0)
    arrays = observation.empty(2)
    obs = first.start(0)
    for step in range(1, 3 * PROBE_STEPS):
        (chosen,), (logged,) = action.rows(action.draw(generator)[None])
        first.log(logged)
        obs, _, terminated, truncated, _ = first.step(chosen)
        if terminated or truncated or step % PROBE_STEPS == 0:
            obs = first.restart()
    observation.write(observation.target(arrays), 0, obs)
    observation.write(observation.target(arrays), 1, second.set_state(first.get_state(action), action))
    for env in (first, second):
        env.close()
    return all(array[0].tobytes() == array[1].tobytes() for array in arrays.values())


def _importing_error(name: str, module: str, error: Exception) -> Exception:
    if module.partition(".")[0] in EXTRAS:
        return _making_error(name, error)
    return ConfigError(f"environment.name {name!r}: the module {module!r} {one_line(error)}")


def _unknown_id(name: str) -> ConfigError:
    known = [*gymnasium.registry, *EXAMPLES]
    near = get_close_matches(name, known, n=5, cutoff=0.5) or sorted(known)[:5]
    known_text = unknown_name("environment.name", name, near)
    return ConfigError(f"{known_text} of {len(gymnasium.registry)} registered ones, or {FORMS}")


def _making_error(name: str, error: Exception) -> Exception:
    if isinstance(error, LabError):
        return error
    text = " ".join(str(error).split())
    if isinstance(error, ImportError | gymnasium.error.DependencyNotInstalled):
        extra = next((extra for package, extra in EXTRAS.items() if package in text.lower()), None)
        return ConfigError(missing_package(name, extra, text))
    if isinstance(error, TypeError):
        return ConfigError(f"environment.env_kwargs does not fit {name!r}: {text}")
    return EnvironmentFault(f"environment {name!r} could not be made: it {one_line(error)}")
