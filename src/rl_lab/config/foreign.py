"""What reading other systems' configs has in common: options that must be known, and where values go in the lab."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rl_lab.core.errors import ConfigError, unknown_name

Compose = Callable[[list[str]], DictConfig]


@dataclass(frozen=True)
class Placed:
    """A whole run of another system in the lab's blocks."""

    groups: list[str]  # configs to begin with
    name: str  # of the run, when nobody gives one
    values: dict[str, Any]  # by dotted path


class Options:
    """The `config` of a node: whoever takes a key makes it known, and what nobody takes is refused."""

    def __init__(self, path: str, values: Any) -> None:
        self.path, self._values = path, as_block(path, values)
        self._known: set[str] = set()

    def __contains__(self, key: str) -> bool:
        """Return whether the key is given."""
        return key in self._values

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


def as_block(path: str, value: Any) -> Mapping[str, Any]:
    """Return `value` when it is a mapping; null is an empty one."""
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(f"{path}: must be a block, not {value!r}")
    return value or {}


def read_block(key: str, given: Any) -> Mapping[str, Any]:
    """Return the block itself: as it stands in the config, or what the JSON or YAML file of this path holds."""
    if not isinstance(given, str):
        return as_block(key, given)
    try:
        text = Path(given).expanduser().read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{key}: cannot read {given!r}: {error}") from error
    try:
        return as_block(key, json.loads(text))  # which knows infinities as Python writes them
    except json.JSONDecodeError:
        pass
    try:
        return as_block(key, OmegaConf.to_container(OmegaConf.create(text)))
    except (YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{key}: {given!r} is neither JSON nor YAML: {str(error).splitlines()[0]}") from error


def plain(given: Any) -> Any:
    """Return what stands in a config as plain Python."""
    return OmegaConf.to_container(given, resolve=True) if OmegaConf.is_config(given) else given


def laid_under(config: DictConfig, placed: Placed, compose: Compose) -> DictConfig:
    """Return a foreign run's config: its groups, what `config` says besides, and its own values on top."""
    base = compose(placed.groups)
    OmegaConf.set_struct(base, False)
    merged = OmegaConf.merge(base, {"experiment": {"name": placed.name}}, config)
    assert isinstance(merged, DictConfig)
    for path, value in placed.values.items():
        OmegaConf.update(merged, path, value, force_add=True)
    return merged
