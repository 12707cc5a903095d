"""Caps on a composed config: `budget=tiny` makes any experiment short enough for CI."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError

from rl_lab.config.resolvers import DIMS


def apply_caps(config: DictConfig) -> DictConfig:
    """Lower every number that a pattern of `budget.caps` matches to its cap; `*` stands for any key or index.

    What is computed from other options comes second: it stays computed where those have been lowered enough. What
    waits for the environment's spec is lowered when it is known.
    """
    caps = OmegaConf.select(config, "budget.caps") or {}
    for is_computed in (False, True):
        for pattern, cap in caps.items():
            for parent, key in list(_matches(config, pattern.split("."))):
                if OmegaConf.is_interpolation(parent, key) == is_computed:
                    _lower(parent, key, cap)
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


def _lower(parent: Any, key: Any, cap: Any) -> None:
    """Put a cap in the place of a larger number."""
    if OmegaConf.is_missing(parent, key):
        return
    try:
        value = parent[key]
    except InterpolationResolutionError as error:
        if f"'{DIMS}" in str(error):
            computed = OmegaConf.to_container(parent, resolve=False)[key]  # type: ignore[index]
            parent[key] = f"${{min:{cap},{computed}}}"
        return
    if isinstance(value, int | float) and not isinstance(value, bool) and value > cap:
        parent[key] = cap
