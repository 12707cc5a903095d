"""Every packaged and every registered environment goes on in a new process as it would have in the old one.

`benchmarks/environments.py` sweeps the families that are too many for here (all of dm_control, Atari, BabyAI).
"""

import importlib.util
from pathlib import Path

import gymnasium
import pytest
from omegaconf import OmegaConf

import rl_lab
from tests.environments.conformance import Case, check_exact

CONFIGS = Path(rl_lab.__file__).parent / "configs" / "environment"
STEPS = 300  # vector steps that are compared
# Where 300 steps would take half a second or more: fewer, with episodes cut so that resets are among them all the same.
FEWER = {
    "native, in workers": 18,
    "in workers": 60,
    "_pixels": 6,
    "pixels": 12,
    "CarRacing-v3": 6,
    "CarRacing-fast": 30,
    "ALE/": 18,
    "gym_pusht/": 30,
    "gym_aloha/": 30,
    "cell/": 45,
    "Fetch": 45,
    "BabyAI-": 45,
    "MiniGrid-": 90,
    "dm_control/": 30,
    "Humanoid": 90,
    "legged_": 45,
    "BipedalWalker": 90,
}
PACKAGES = {
    **{"ALE/": "ale_py", "MiniGrid-": "minigrid", "BabyAI-": "minigrid", "gym_pusht/": "gym_pusht"},
    "Fetch": "gymnasium_robotics",
    "gym_aloha/": "gym_aloha",
    "cell/": "mujoco",
}
PIXELS = ["grayscale", {"resize": 32}, {"frame_stack": 3}]
STACKS = {
    "limits and repeats": {"name": "HalfCheetah-v5", "wrappers": [{"time_limit": 150}, {"action_repeat": 2}]},
    "noise and delay": {
        "name": "Ant-v5",
        "wrappers": [
            {"observation_noise": 0.1},
            {"action_noise": 0.1},
            {"reward_noise": 1.0},
            {"observation_delay": 2},
        ],
    },
    "statistics": {
        "name": "LunarLander-v3",
        "wrappers": [{"sticky_actions": 0.25}, {"clip_reward": 1}, {"frame_stack": 2}, "episode_statistics"],
        "info_keys": ["episode.return", "episode.length"],
    },
    "actions": {"name": "Pendulum-v1", "wrappers": [{"clip_actions": 1.5}, "rescale_actions", {"frame_stack": 2}]},
    "lives and pixels": {
        "name": "ALE/Breakout-v5",
        "env_kwargs": {"preprocessing": False},
        "wrappers": ["life_loss", {"clip_reward": "sign"}, *PIXELS],
    },
    "replayed pixels": {"name": "CarRacing-fast", "wrappers": [{"action_repeat": 2}, *PIXELS]},
    "foreign wrapper": {"name": "Hopper-v5", "wrappers": [gymnasium.wrappers.FlattenObservation, {"frame_stack": 2}]},
}


WORKERS = {"backend": "process", "num_workers": 1}  # `test_process_pool` has more of them
IN_WORKERS = {
    "native, in workers": {"name": "ALE/Breakout-v5", "env_kwargs": {"life_loss": True}, **WORKERS},
    "replayed, in workers": {"name": "LunarLander-v3", **WORKERS},
}


def case(label, config):
    name = str(config.get("name", ""))
    steps = next((number for part, number in FEWER.items() if part in f"{label} {name}"), STEPS)
    return Case(label, config, steps, is_in_workers=label in IN_WORKERS)


def is_installed(config):
    name = str(config.get("name", ""))
    return all(importlib.util.find_spec(package) for prefix, package in PACKAGES.items() if name.startswith(prefix))


def composed(name):
    """Return a config of the package with what it inherits."""
    own = OmegaConf.load(CONFIGS / f"{name}.yaml")
    bases = [composed(base) for base in own.pop("defaults", []) if base != "_self_"]
    return OmegaConf.merge(*bases, own)


def packaged():
    """Return the configs of the package that name an environment."""
    found = {path.stem: OmegaConf.to_container(composed(path.stem)) for path in sorted(CONFIGS.glob("*.yaml"))}
    return {name: config for name, config in found.items() if "???" not in config.values()}


def registered():
    """Return the newest version of what gymnasium itself registers and the package does not already configure."""
    packages = ("classic_control", "toy_text", "box2d", "mujoco")
    newest = {}
    for spec in gymnasium.registry.values():
        if str(spec.entry_point).startswith(tuple(f"gymnasium.envs.{package}" for package in packages)):
            newest[spec.name] = max(newest.get(spec.name, spec), spec, key=lambda each: each.version)
    configured = {config.get("name") for config in packaged().values() if not config.get("wrappers")}
    return {spec.id: {"name": spec.id} for spec in newest.values() if spec.id not in configured}


HIDDEN = {"env_kwargs": {"how": "hidden counter"}}
ZOO = "tests.environments.zoo:Zoo/Unrepeatable-v0"
INEXACT = {
    "says so": {"name": ZOO, **HIDDEN},
    "claims to be": {"name": ZOO, **HIDDEN, "exact_resume": True},
    "ignores its seed": {"name": ZOO},
    "unknown": {"name": "CartPole-v9"},
}


@pytest.fixture(scope="module")
def results():
    """Check all at once: the two processes start only once."""
    cases = {**packaged(), **registered(), **STACKS, **IN_WORKERS, **INEXACT}
    found = check_exact([case(label, config) for label, config in cases.items() if is_installed(config)])
    return {result.name: result for result in found}


def of(results, names):
    return [results[name] for name in names if name in results]


def test_packaged_environments_are_exact(results):
    found = of(results, packaged())
    assert [result for result in found if not result.is_exact or result.num_ended == 0] == []
    expected = {"cartpole": "native", "humanoid": "native", "lunarlander": "replay", "tensor_cartpole": "arrays"}
    assert {name: results[name].how for name in expected} == expected


def test_registered_environments_are_exact(results):
    found = of(results, registered())
    assert [result for result in found if not result.is_exact or result.num_ended == 0] == []
    assert {"FrozenLake-v1", "Blackjack-v1", "Taxi-v4"} <= {result.name for result in found}


def test_stacks_of_wrappers_are_exact(results):
    assert [result for result in of(results, STACKS) if not result.is_exact or result.num_ended == 0] == []
    expected = {"noise and delay": "native", "statistics": "replay", "foreign wrapper": "replay"}
    assert {name: results[name].how for name in expected} == expected


def test_environments_in_worker_processes_are_exact(results):
    found = of(results, IN_WORKERS)
    assert [result for result in found if not result.is_exact or result.num_ended == 0] == []
    assert all(result.name.startswith(result.how) for result in found)
    assert found


def test_what_is_not_exact_is_found_out(results):
    messages = {result.name: result.message for result in of(results, INEXACT)}
    assert not any(result.is_exact for result in of(results, INEXACT))
    assert "cannot be restored" in messages["says so"]
    assert "another observation" in messages["claims to be"]
    assert "cannot be reset to a seed" in messages["ignores its seed"]
    assert "unknown environment.name 'CartPole-v9'" in messages["unknown"]
