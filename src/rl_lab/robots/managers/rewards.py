"""The reward of a step: a weighted sum of terms, each of which is logged as its mean over the episode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rl_lab.core import ConfigError, unknown_name
from rl_lab.robots.managers.episode_means import EpisodeMeans
from rl_lab.robots.managers.terms import check_keys, flag, functions_of, number, read_terms
from rl_lab.robots.mdp.rewards import MODULES, least_feet
from rl_lab.robots.mdp.state import RobotFacts, RobotState

KEYS = ("terms", "only_positive", "scale_by_dt")
SENSORS = {"angular_momentum": "angular_momentum", "self_collision": "self_contact"}  # that a scene has for terms only
AFTER_CLIP = "termination"  # a fall costs even where the rest was cut at 0


def sensors_of(config: Mapping[str, Any]) -> set[str]:
    """Return the extra sensors that the terms of a config read."""
    terms = {name: entry for name, entry in (config.get("terms") or {}).items() if isinstance(entry, Mapping)}
    functions = [str(entry.get("function", name)) for name, entry in terms.items()]
    return {SENSORS[function] for function in functions if function in SENSORS}


class RewardManager:
    """Sums the terms; `episode` has the mean of each weighted term, before the factor dt."""

    def __init__(self, config: Mapping[str, Any], facts: RobotFacts, num_envs: int) -> None:
        path = "environment.rewards"
        check_keys(path, config, KEYS)
        options = {"weight": 1.0}
        self.terms = read_terms(
            f"{path}.terms", config.get("terms") or {}, functions_of(MODULES), facts, options=options
        )
        weights = [number(f"{path}.terms.{term.name}.weight", term.options["weight"]) for term in self.terms]
        self.terms = [term for term, weight in zip(self.terms, weights, strict=True) if weight != 0.0]
        for term in self.terms:
            if len(facts.feet) < (least := least_feet(term.function)):
                raise ConfigError(
                    f"{path}.terms.{term.name}: needs {least} or more feet, this robot has {len(facts.feet)}"
                )
        if not self.terms:
            raise ConfigError(f"{path}.terms: needs at least one term with a weight")
        device = facts.default_pos.device
        self.weights = torch.tensor([weight for weight in weights if weight != 0.0], device=device).unsqueeze(-1)
        self._dt = facts.dt if flag(f"{path}.scale_by_dt", config.get("scale_by_dt", True)) else 1.0
        self._only_positive = flag(f"{path}.only_positive", config.get("only_positive", False))
        self._is_after = torch.tensor([[t.function.__name__ == AFTER_CLIP] for t in self.terms], device=device)
        self.episode = EpisodeMeans([f"reward/{term.name}" for term in self.terms], num_envs, device)

    def __call__(self, state: RobotState) -> Tensor:
        """Return the rewards [N] of a step that led to `state`."""
        values = torch.stack([term(state) for term in self.terms]) * self.weights
        self.episode.add(values)
        if not self._only_positive:
            return values.sum(0) * self._dt
        clipped = torch.where(self._is_after, 0.0, values).sum(0).clamp_min(0.0)
        return (clipped + torch.where(self._is_after, values, 0.0).sum(0)) * self._dt

    def row(self, name: str) -> tuple[str, float]:
        """Return the name under which a term is logged, and its weight."""
        names = [term.name for term in self.terms]
        if name not in names:
            raise ConfigError("environment.commands.curriculum.reward: " + unknown_name("reward term", name, names))
        return f"reward/{name}", float(self.weights[names.index(name)])
