"""Names: families, users' own factories, and what an environment says about itself through its layers."""

import functools
import importlib
import re
import subprocess
import sys
import textwrap

import gymnasium
import pytest
import torch

from rl_lab.config.allow_list import AllowList
from rl_lab.core import ConfigError, EnvironmentFault, split_reference
from rl_lab.environments.gymnasium import GymnasiumEnv
from rl_lab.environments.hosting.recipe import Factory
from rl_lab.environments.hosting.registry import FAMILIES, find_recipe
from tests.environments import zoo
from tests.environments.rollouts import assert_equal, random_actions

torch.set_num_threads(1)
ZOO = "tests.environments.zoo"


@pytest.mark.parametrize(
    ("name", "family", "given"),
    [
        ("dm_control/cartpole-swingup", "dm_control", "dm_control/cartpole-swingup"),
        ("dm_control/cartpole/swingup", "dm_control", "dm_control/cartpole-swingup"),
        ("ALE/Pong-v5", "atari", "ALE/Pong-v5"),
        ("BabyAI-GoToLocal-v0", "minigrid", "BabyAI-GoToLocal-v0"),
        ("CarRacing-fast", "car_racing", "CarRacing-fast"),
        ("gym_pusht/PushT-v0", "pusht", "gym_pusht/PushT-v0"),
    ],
)
def test_a_family_is_found_by_its_name(name, family, given):
    recipe = find_recipe(name, {"size": 3}, ())
    assert recipe.source == Factory(f"rl_lab.environments.{family}:make_env", (given,))
    assert (recipe.id, recipe.kwargs) == (given, {"size": 3})


def test_a_layer_that_remembers_earlier_episodes_cannot_be_replayed():
    assert GymnasiumEnv("Zoo/Echo-v0", 1, wrappers=[zoo.Plain]).spec.exact_resume
    assert not GymnasiumEnv("Zoo/Echo-v0", 1, wrappers=[zoo.Remembering]).spec.exact_resume


def test_stock_ids_stay_with_gymnasium():
    assert find_recipe("CarRacing-v3", {}, ()).is_gymnasiums_own
    assert find_recipe("tests.environments.zoo:Zoo/Echo-v0", {}, ()).id == "Zoo/Echo-v0"


def test_families_and_wrappers_bring_no_torch_into_a_worker():
    modules = sorted({reference.partition(":")[0] for reference in FAMILIES.values()})
    modules += [f"rl_lab.environments.{name}" for name in ("exact.state", "wrappers.wrapping", "wrappers.pixels")]
    command = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", command], check=False).returncode == 0


def test_a_factory_gives_what_the_class_gives():
    kwargs = {"length": 4, "wheels": 3}
    env = GymnasiumEnv(f"{ZOO}:make_informer", 2, env_kwargs=kwargs, info_keys=["episode.wheels"])
    registered = GymnasiumEnv("Zoo/Informer-v0", 2, env_kwargs=kwargs, info_keys=["episode.wheels"])
    by_class = GymnasiumEnv(f"{ZOO}:Informer", 2, env_kwargs=kwargs, info_keys=["episode.wheels"])
    assert env.spec.id == f"{ZOO}:make_informer"
    assert env.spec.exact_resume
    for other in (registered, by_class):
        assert_equal([env.reset(0)], [other.reset(0)])
        for action in random_actions(env.spec, 2, 15):
            assert_equal(env.step(action), other.step(action))


def test_a_factory_that_returns_no_environment_is_named():
    expected = f"came out of {ZOO}:make_nothing as a NoneType, not as a gymnasium.Env"
    with pytest.raises(EnvironmentFault, match=expected):
        GymnasiumEnv(f"{ZOO}:make_nothing", 1)


PLUGIN = """\
    import gymnasium
    import numpy as np

    class Ramp(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 100, (1,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def __init__(self, slope):
            self._slope, self._height = slope, 0.0

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self._height = 0.0
            return np.zeros(1, np.float32), {}

        def step(self, action):
            self._height += self._slope
            return np.array([self._height], np.float32), self._height, self._height > 9, False, {"height": self._height}

    def make(slope):
        return Ramp(slope)
"""
RUN = """\
import sys
import torch
from rl_lab.config.allow_list import AllowList, load_plugins
from rl_lab.config.targets import Targets
from rl_lab.core import ConfigError

if __name__ == "__main__":
    node = {
        "_target_": "rl_lab.environments.gymnasium.GymnasiumEnv", "name": "own_envs:make", "num_envs": 2,
        "env_kwargs": {"slope": 2.5}, "info_keys": ["height"], "backend": "process", "num_workers": 1,
        "wrappers": [{"time_limit": 3}],
    }
    try:
        Targets(AllowList()).allow_list.check_tree(node, "environment")
    except ConfigError as error:
        print(error)
    targets = Targets(AllowList(load_plugins([sys.argv[1]])))
    targets.allow_list.check_tree(node, "environment")
    env = targets.instantiate("environment", targets.check("environment", node, supplied=("device",)), device="cpu")
    env.reset(0)
    steps = [env.step(torch.zeros(2, dtype=torch.int64)) for _ in range(3)]
    print([step.infos["height"].tolist() for step in steps], steps[2].truncated.tolist(), env.spec.max_episode_steps)
    env.close()
"""


def test_a_users_factory_comes_from_a_plugin_through_the_allow_list_into_workers(tmp_path):
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "own_envs.py").write_text(textwrap.dedent(PLUGIN))
    script = tmp_path / "run.py"
    script.write_text(RUN)
    command = [sys.executable, script, tmp_path / "plugins" / "own_envs.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    refused, outcome = done.stdout.splitlines()
    assert refused.startswith("environment.name: module 'own_envs' is not allowed (choices: ")
    assert outcome == "[[2.5, 2.5], [5.0, 5.0], [7.5, 7.5]] [True, True] 3"


@pytest.mark.parametrize(
    "name",
    [
        *("this:1", "this: x", " this:x", "this::x", "this:x:y", "this://x", "this:\nx", "\uff54\uff48\uff49\uff53:x"),
        *("MiniGrid-this:x", "gym_pusht/this:x", "a b:x", "../this:x", ":this", "cuda:0", "cuda:this:x"),
    ],
)
def test_nothing_is_imported_that_the_allow_list_did_not_see(name, monkeypatch):
    imported = []
    monkeypatch.setattr(importlib, "import_module", imported.append)
    with pytest.raises(ConfigError) as caught:
        find_recipe(name, {}, ())
    assert "\n" not in str(caught.value)
    monkeypatch.undo()
    reference = split_reference(name)
    assert set(imported) == (set() if reference is None else {reference.module})
    if reference is not None:
        with pytest.raises(ConfigError, match=f"module '{reference.module}' is not allowed"):
            AllowList().check_tree({"name": name})


def test_frames_per_step_are_multiplied_over_the_layers():
    assert GymnasiumEnv("CartPole-v1", 1).spec.action_repeat == 1
    twice = functools.partial(zoo.Repeater, frames=2)
    env = GymnasiumEnv("CartPole-v1", 1, wrappers=[twice, {"time_limit": 7}, functools.partial(zoo.Repeater, frames=3)])
    assert env.spec.action_repeat == 6
    assert env.spec.max_episode_steps == 3  # 7 steps of the layer inside are 7 / 3 of the outermost, rounded up
    repeated = GymnasiumEnv("Pendulum-v1", 1, wrappers=[{"action_repeat": 4}])
    assert (repeated.spec.action_repeat, repeated.spec.max_episode_steps) == (4, 50)


@pytest.mark.parametrize(
    ("when", "message"),
    [
        ("copy", r"\(copy \d, .*being made\) has the observation space Box.*, but the first copy made had Box"),
        (
            "reset",
            r"\(copy 0, .* 1, reset\) changed its action space at a reset from Discrete.2. to Discrete.3.",
        ),
    ],
)
def test_spaces_that_change_are_a_fault(when, message):
    with pytest.raises(EnvironmentFault, match=message) as caught:  # noqa: PT012
        env = GymnasiumEnv("Zoo/Shifting-v0", 2, env_kwargs={"when": when}, exact_resume=False)
        env.reset(0)
        env.step(torch.zeros(2, dtype=torch.int64))
    assert "\n" not in str(caught.value)


def test_the_nearest_names_are_offered():
    for wrong, near in {
        "LunarLandr-v3": "LunarLander-v3",
        "dm_control_cartpole-swingup": "dm_control/cartpole-swingup",
    }.items():
        with pytest.raises(ConfigError, match=re.escape(f"did you mean {near!r}?")):
            GymnasiumEnv(wrong, 1)
    assert "CarRacing-fast" not in gymnasium.registry
