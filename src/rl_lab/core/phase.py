"""One stretch of a curriculum, as the scheduler runs it and the workflow sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from rl_lab.core.errors import unknown_name

COLLECT = "collect"
EVALUATE = "evaluate"
BUILT_IN_HOOKS = (COLLECT, EVALUATE)
Unit = Literal["steps", "updates", "cycles"]
PhaseType = Literal["online", "offline", "eval_only"]


@dataclass(frozen=True)
class HookCall:
    """An entry of `workflow_hooks`: run `name` `times` times per cycle, or only when its clock is due."""

    name: str
    times: int = 1  # for `collect`: vector steps
    every_steps: int | None = None  # env steps
    every_updates: int | None = None  # gradient updates
    is_update: bool = False  # else it collects, evaluates or only looks


@dataclass(frozen=True)
class Phase:
    """A phase of `training.phases`. `phase["key"]` reads a field or one of the free keys of its YAML."""

    name: str
    type: PhaseType
    hooks: tuple[HookCall, ...]
    unit: Unit
    duration: int
    buffer: str | None = None
    train_ratio: float | None = None  # runs of the update hooks per env step; None: once per cycle
    progress: float = 0.0  # 0 at the start of the phase, 1 at its end
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def __getitem__(self, key: str) -> Any:
        if key in self.options:
            return self.options[key]
        if key in Phase.__dataclass_fields__:
            return self.__getattribute__(key)
        raise KeyError(unknown_name(f"key of phase {self.name!r}", key, [*self.options, *Phase.__dataclass_fields__]))

    def get(self, key: str, default: Any = None) -> Any:
        """Return `phase[key]`, or `default` when the phase has no such key."""
        return self[key] if key in self.options or key in Phase.__dataclass_fields__ else default
