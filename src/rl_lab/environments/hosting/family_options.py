"""Checks of the options that families share; what is wrong with one is a ConfigError that names it. Knows no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from rl_lab.environments.hosting.foreign import config_error

KWARGS = "environment.env_kwargs"


def unknown_task(name: str, known: Iterable[str]) -> Exception:
    """Return the ConfigError for a name that its family does not have; only the nearest of many are listed."""
    known = sorted(known)
    near = get_close_matches(name, known, n=5, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    listed = ", ".join(near or known[:5])
    return config_error(f"unknown environment.name {name!r}{hint} (choices: {listed} of {len(known)})")


def check_choice(option: str, value: object, choices: Iterable[object]) -> None:
    """Raise ConfigError unless `value` is one of the choices."""
    choices = tuple(choices)
    if value not in choices:
        known = ", ".join("null" if choice is None else str(choice) for choice in choices)
        raise config_error(f"{KWARGS}.{option} is {value!r} (choices: {known})")


def check_at_least(option: str, value: float, low: float) -> None:
    """Raise ConfigError unless `value` is `low` or more."""
    if not value >= low:
        raise config_error(f"{KWARGS}.{option} must be {low} or more, got {value}")


def check_within(option: str, value: float, low: float, high: float) -> None:
    """Raise ConfigError unless `value` is `low` to `high`."""
    if not low <= value <= high:
        raise config_error(f"{KWARGS}.{option} must be {low:g} to {high:g}, got {value}")


def height_and_width(option: str, size: int | Sequence[int]) -> tuple[int, int]:
    """Return the two numbers of a size that may be given as one."""
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or min(pair) < 1:
        raise config_error(f"{KWARGS}.{option} must be one number or a height and a width, 1 or more, got {size}")
    return pair[0], pair[1]
