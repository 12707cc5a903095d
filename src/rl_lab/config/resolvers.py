"""Arithmetic in YAML: `${add:${_dims.observation},${_dims.action}}`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from omegaconf import OmegaConf


def _div(a: float, b: float) -> float:
    """Divide; a whole result stays a whole number, so that sizes can be halved."""
    quotient = a / b
    return int(quotient) if isinstance(a, int) and isinstance(b, int) and a % b == 0 else quotient


DIMS = "_dims"  # block of the sizes that the environment's spec says

RESOLVERS: dict[str, Callable[..., Any]] = {
    "add": lambda *values: sum(values),
    "sub": lambda a, b: a - b,
    "mul": lambda *values: math.prod(values),
    "div": _div,
    "ceil_div": lambda a, b: -(-a // b),  # how often, to come to so many
    "max": lambda *values: max(values),
    "min": lambda *values: min(values),
    "len": len,
}


def register_resolvers() -> None:
    """Make the resolvers known to OmegaConf; calling it again changes nothing."""
    for name, function in RESOLVERS.items():
        OmegaConf.register_new_resolver(name, function, replace=True)
