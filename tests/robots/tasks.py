"""Small robot tasks for tests: the packaged ones with few worlds and short episodes."""

import yaml

from rl_lab.config.trees import CONFIGS
from rl_lab.robots.legged_env import LeggedEnv


def task(name="legged_quadruped", num_envs=4, **changes):
    """Return a packaged task; a change that is a dict is merged into the task's own, key by key."""
    config = _load(name)
    for key, value in {"num_envs": num_envs, **changes}.items():
        config[key] = _merged(config.get(key), value)
    config["simulation"] = {**config["simulation"], "num_threads": 1}
    return LeggedEnv(**config)


def _load(name):
    text = yaml.safe_load((CONFIGS / "environment" / f"{name}.yaml").read_text())
    config = {}
    for base in text.pop("defaults", []):
        if base != "_self_":
            config = _merged(config, _load(base))
    text.pop("_target_", None)
    return _merged(config, text)


def _merged(old, new):
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}
    return new
