"""From the ID of `lab env` to an environment: the same composing, checking and building as for a run."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import torch

from rl_lab.config.allow_list import AllowList, load_plugins
from rl_lab.config.compose import compose, resolve
from rl_lab.config.device import prepare_torch
from rl_lab.config.overrides import parse_overrides
from rl_lab.config.schema import ExperimentConfig, LabConfig
from rl_lab.config.signatures import signature_of
from rl_lab.config.targets import Targets
from rl_lab.config.trees import group_files
from rl_lab.config.typed_values import coerce_model
from rl_lab.core.environment import VectorEnv
from rl_lab.core.errors import ConfigError, unknown_name
from rl_lab.environments.gymnasium import GymnasiumEnv
from rl_lab.environments.hosting.registry import find_recipe
from rl_lab.environments.wrappers.wrapping import build_wrappers

ANY_GYMNASIUM = "gymnasium"  # the option of the group `environment` that takes any name
_OPTION = re.compile(r"[a-z0-9_]+")  # how options are called; the ids of environments look otherwise
_NO_RUN = ("experiment.name=env", "training.total_timesteps=1", "training.phases=[]")  # a run's, which there is not


@dataclass(frozen=True)
class EnvConfig:
    """A checked `environment` block."""

    node: Mapping[str, Any]
    target: Callable[..., Any]
    targets: Targets
    device: torch.device

    @property
    def arguments(self) -> set[str]:
        """Return the names of the arguments that the environment takes."""
        return set(signature_of(self.target).arguments)

    def build(self, **changes: Any) -> VectorEnv:
        """Build the environment, with some arguments other than the block says."""
        env: VectorEnv = self.targets.instantiate("environment", {**self.node, **changes}, device=self.device)
        return env

    def single(self) -> Callable[[], gymnasium.Env[Any, Any]] | None:
        """Return how to make the one environment that the copies are made of; None when there is none."""
        if self.target is not GymnasiumEnv:
            return None
        given = self.targets.instantiate("environment", {**self.node, "_partial_": True}).keywords
        wrappers = build_wrappers(given.get("wrappers") or ())
        return find_recipe(given["name"], given.get("env_kwargs") or {}, wrappers).make


def read_environment(
    name: str, overrides: Sequence[str], plugins: Sequence[str] = (), config_dir: str | Path | None = None
) -> EnvConfig:
    """Compose and check the block of an option of the group `environment`, or of any name that gymnasium can make."""
    targets = Targets(AllowList(load_plugins(plugins)))
    texts = [_in_block(text) for text in overrides]
    tree = resolve(compose([*_choose(name, config_dir), *_NO_RUN, *texts], config_dir))
    targets.allow_list.check_tree(tree["environment"], "environment")
    node = targets.check("environment", tree["environment"], supplied=("device",), base=VectorEnv)
    device = prepare_torch(coerce_model("experiment", tree["experiment"], ExperimentConfig))
    return EnvConfig(node, targets.load("environment", node), targets, device)


def _choose(name: str, config_dir: str | Path | None) -> list[str]:
    options = group_files("environment", config_dir)
    if name in options:
        return [f"+environment={name}"]
    if _OPTION.fullmatch(name) or not name:
        raise ConfigError(
            unknown_name("environment", name, options) + "; or a name such as CartPole-v1, module:function"
        )
    escaped = name.replace("\\", "\\\\").replace("'", "\\'")
    return [f"+environment={ANY_GYMNASIUM}", f"environment.name='{escaped}'"]


def _in_block(text: str) -> str:
    """Let `num_envs=4` mean `environment.num_envs=4`; keys of other blocks stay what they are."""
    key = parse_overrides([text])[0].key_or_group
    if key.partition(".")[0] in LabConfig.model_fields:
        return text
    mark = text[: len(text) - len(text.lstrip("+~"))]
    return f"{mark}environment.{text[len(mark) :]}"
