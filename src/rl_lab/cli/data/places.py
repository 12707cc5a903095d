"""The environment in which an episode is replayed: one that is named, or that of the run which recorded it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium

from rl_lab.buffers.datasets.format import EpisodeReader
from rl_lab.cli.env_config import EnvConfig, read_environment
from rl_lab.core.errors import RunDirectoryError, UsageError

Maker = Callable[[], gymnasium.Env[Any, Any]]


def find_environment(
    reader: EpisodeReader,
    name: str | None,
    overrides: Sequence[str],
    plugins: Sequence[str],
    config_dir: str | None,
    *,
    draws: bool,
) -> tuple[Maker, bool | None]:
    """Return what makes one copy of the environment, and whether its actions are rescaled."""
    if name is None and overrides:
        raise UsageError(f"{overrides[0]}: overrides are of --env, which is not given")
    config = _of_run(reader, plugins) if name is None else read_environment(name, overrides, plugins, config_dir)
    if draws:
        kwargs = {**(config.node.get("env_kwargs") or {}), "render_mode": "rgb_array"}
        config = EnvConfig({**config.node, "env_kwargs": kwargs}, config.target, config.targets, config.device)
    make = config.single()
    if make is None:
        raise UsageError("replay needs an environment that is made of single copies (GymnasiumEnv)")
    return make, config.node.get("rescale_actions")


def _of_run(reader: EpisodeReader, plugins: Sequence[str]) -> EnvConfig:
    """Return the environment block of the run in whose directory the dataset lies."""
    import torch

    from rl_lab.config.allow_list import AllowList, load_plugins
    from rl_lab.config.resume import read_config
    from rl_lab.config.targets import Targets
    from rl_lab.core.environment import VectorEnv
    from rl_lab.tracking.run_directory import RunDirectory

    for folder in Path(reader.path).absolute().parents:
        if (folder / "config.yaml").exists():
            break
    else:
        raise UsageError(f"--env is needed: {reader.path} lies in no run")
    try:
        config = read_config(RunDirectory.open(folder))
    except RunDirectoryError as error:
        raise UsageError(f"--env is needed: {error}") from error
    targets = Targets(AllowList(load_plugins(list(plugins))))
    targets.allow_list.check_tree(config["environment"], "environment")
    node = targets.check("environment", config["environment"], supplied=("device",), base=VectorEnv)
    return EnvConfig(node, targets.load("environment", node), targets, torch.device("cpu"))
