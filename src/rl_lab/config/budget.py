"""Caps on a composed config: `budget=tiny` makes any experiment short enough for CI."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError


def apply_caps(config: DictConfig) -> DictConfig:
    """Lower every number that a pattern of `budget.caps` matches to its cap; `*` stands for any key or index.

    What is computed from other options comes second: it stays computed where those have been lowered enough.
    """
    caps = OmegaConf.select(config, "budget.caps") or {}
    for is_computed in (False, True):
        for pattern, cap in caps.items():
            for parent, key in list(_matches(config, pattern.split("."))):
                value = _number(parent, key) if OmegaConf.is_interpolation(parent, key) == is_computed else None
                if value is not None and value > cap:
                    parent[key] = cap
    return config


def _matches(node: Any, parts: Sequence[str]) -> Iterator[tuple[Any, Any]]:
    """Yield (container, key) of every entry that the pattern names."""
    first, *rest = parts
    for key in _keys(node, first):
        if not rest:
            yield node, key
        elif not OmegaConf.is_missing(node, key) and not OmegaConf.is_interpolation(node, key):
            yield from _matches(node[key], rest)


def _keys(node: Any, part: str) -> list[Any]:
    if isinstance(node, ListConfig):
        return (
            list(range(len(node))) if part == "*" else [int(part)] if part.isdigit() and int(part) < len(node) else []
        )
    if isinstance(node, DictConfig):
        return list(node) if part == "*" else [part] if part in node else []
    return []


def _number(parent: Any, key: Any) -> float | None:
    """Return the value when it is a number by now; what waits for the environment's spec is not capped."""
    if OmegaConf.is_missing(parent, key):
        return None
    try:
        value = parent[key]
    except InterpolationResolutionError:
        return None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
