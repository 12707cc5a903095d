"""What the translations of Softlearning's classes share: reading a `config` block, and what comes of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rl_lab.core.errors import ConfigError, unknown_name

OBSERVATION = "${_dims.observation}"


class Options:
    """The `config` of a node: whoever takes a key makes it known, and what nobody takes is refused."""

    def __init__(self, path: str, values: Any) -> None:
        self.path, self._values = path, as_block(path, values)
        self._known: set[str] = set()

    def take(self, key: str, default: Any = None) -> Any:
        """Return a value, or `default` where it is not given."""
        self._known.add(key)
        return self._values.get(key, default)

    def need(self, key: str) -> Any:
        """Return a value that must be given."""
        if key not in self._values:
            raise ConfigError(f"{self.path}.{key}: missing")
        return self.take(key)

    def number(self, key: str, default: float | None = None, *, low: float = -math.inf) -> Any:
        """Return a number of at least `low`; without a default it may be null or left out."""
        value = self.take(key, default)
        if value is None and default is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value < math.inf:
            least = f" of at least {low}" if math.isfinite(low) else ""
            raise ConfigError(f"{self.path}.{key}: must be a number{least}, not {value!r}")
        return value

    def word(self, key: str) -> str:
        """Return a text that must be given."""
        value = self.need(key)
        if not isinstance(value, str):
            raise ConfigError(f"{self.path}.{key}: must be a name, not {value!r}")
        return value

    def flag(self, key: str) -> bool | None:
        """Return true or false, or None where it is not given."""
        value = self.take(key)
        if value is not None and not isinstance(value, bool):
            raise ConfigError(f"{self.path}.{key}: must be true or false, not {value!r}")
        return value

    def sizes(self, key: str, *default: int) -> list[int]:
        """Return a list of sizes; without a default it must be given."""
        value = self.take(key, default) if default else self.need(key)
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{self.path}.{key}: must be a list, not {value!r}")
        return list(value)

    def choose(self, key: str, choices: Mapping[str, str], default: str) -> str:
        """Return what a name stands for."""
        name = self.take(key, default)
        if not isinstance(name, str) or name not in choices:
            raise ConfigError(unknown_name(f"{self.path}.{key}", name, choices))
        return choices[name]

    def only(self, key: str, *allowed: Any) -> None:
        """Refuse a value that has no counterpart here."""
        value = self.take(key, allowed[0])
        if value not in allowed:
            shown = " or ".join(repr(each) for each in allowed)
            raise ConfigError(f"{self.path}.{key}: only {shown} has a counterpart here, not {value!r}")

    def ignore(self, *keys: str) -> None:
        """Accept keys that change nothing here."""
        self._known.update(keys)

    def finish(self) -> None:
        """Raise when a key was given that nobody took."""
        for key in self._values:
            if key not in self._known:
                raise ConfigError(unknown_name(f"key of {self.path}", key, self._known))


@dataclass
class Part:
    """A node of the lab, and values at other places of the config by dotted path."""

    node: dict[str, Any]
    elsewhere: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Surroundings:
    """What a translation must know of the config that the node stands in."""

    features: str = OBSERVATION  # what policy and critics read, as an interpolation
    buffer: str = "replay"  # where collected steps go
    batch_size: int = 256


Translator = Callable[[Options, Surroundings], Part]


def as_block(path: str, value: Any) -> Mapping[str, Any]:
    """Return `value` when it is a mapping; null is an empty one."""
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(f"{path}: must be a block, not {value!r}")
    return value or {}


def translate_node(path: str, node: Any, classes: Mapping[str, Translator], around: Surroundings) -> Part:
    """Return what `{class_name: ..., config: {...}}` is in the lab."""
    block = as_block(path, node)
    name = str(block.get("class_name"))
    if name not in classes:
        raise ConfigError(unknown_name(f"{path}.class_name", name, classes))
    options = Options(f"{path}.config", block.get("config"))
    part = classes[name](options, around)
    options.finish()
    return part
