"""A config that can no longer change: frozen, hashed, versioned."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from rl_lab.config.schema import BLOCKS, SCHEMA_VERSION
from rl_lab.core.errors import ConfigError

Frozen = Mapping[str, Any]

# Where things are written and shown does not change what is computed.
NOT_HASHED = (
    ("experiment", "root"),
    ("experiment", "tags"),
    ("logging", "terminal"),
    ("logging", "tensorboard"),
    ("logging", "csv"),
    ("logging", "wandb"),
    ("alerts", "channels"),
    ("alerts", "file"),
    ("alerts", "webhook"),
    ("logging", "hash_chain"),
    ("transport", "samplers"),
)

# MIGRATIONS[i] turns a config of version i + 1 into one of version i + 2.
MIGRATIONS: tuple[Callable[[dict[str, Any]], dict[str, Any]], ...] = ()


def freeze(tree: Any) -> Any:
    """Return a copy that cannot be written to: dicts become read-only, lists tuples."""
    if isinstance(tree, Mapping):
        return MappingProxyType({key: freeze(value) for key, value in tree.items()})
    return tuple(freeze(value) for value in tree) if isinstance(tree, list | tuple) else tree


def thaw(tree: Any) -> Any:
    """Return a plain copy of what `freeze` returned: dicts and lists, as YAML and JSON want them."""
    if isinstance(tree, Mapping):
        return {key: thaw(value) for key, value in tree.items()}
    return [thaw(value) for value in tree] if isinstance(tree, list | tuple) else tree


def config_hash(config: Mapping[str, Any]) -> str:
    """Return the sha256 of what decides the numbers of a run; equal hashes compute the same."""
    tree = thaw(config)
    for block, key in NOT_HASHED:
        tree.get(block, {}).pop(key, None)
    canonical = json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def migrate(config: Mapping[str, Any], source: str = "the config") -> dict[str, Any]:
    """Return `config` in today's layout, with today's options at their defaults; that of a newer lab is refused."""
    tree = thaw(config)
    version = tree.get("schema_version", SCHEMA_VERSION)
    if not isinstance(version, int) or not 1 <= version <= SCHEMA_VERSION:
        raise ConfigError(f"{source}: schema_version {version!r} is not known (this lab reads 1 to {SCHEMA_VERSION})")
    for step in MIGRATIONS[version - 1 :]:
        tree = step(tree)
    return {**{block: _filled(block, values) for block, values in tree.items()}, "schema_version": SCHEMA_VERSION}


def _filled(block: str, values: Any) -> Any:
    """Return a block with the options that were added since, as runs have always had them."""
    if block not in BLOCKS or not isinstance(values, Mapping):
        return values
    fields = BLOCKS[block].model_fields
    return {key: thaw(field.default) for key, field in fields.items() if not field.is_required()} | dict(values)
