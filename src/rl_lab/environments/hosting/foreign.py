"""Environments are foreign code, which may raise anything; a run answers with one line that says who and when.

Knows no torch: what a worker process or an environment family imports must not bring it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any


class Watch:
    """Turns every error raised inside its block into the one that `describe` makes of it; interrupts pass."""

    def __init__(self, describe: Callable[[Exception], Exception]) -> None:
        self._describe = describe

    def __enter__(self) -> None:
        """Begin to watch."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(error, Exception):
            raise self._describe(error) from error


class BadOutcome(ValueError):
    """Foreign code returned what it may not; the message is a sentence without its subject."""


def one_line(error: Exception) -> str:
    """Return what happened, as the rest of a sentence on one line."""
    text = " ".join(str(error).split())
    return text if isinstance(error, BadOutcome) else f"raised {type(error).__name__}: {text}"


def config_error(message: str) -> Exception:
    """Return a ConfigError; `core` comes late because it brings torch, and only a wrong config needs it."""
    from rl_lab.core import ConfigError

    return ConfigError(message)


def environment_fault(message: str) -> Exception:
    """Return an EnvironmentFault; `core` comes late here too."""
    from rl_lab.core import EnvironmentFault

    return EnvironmentFault(message)


def unknown_environment(name: str, choices: Iterable[object]) -> Exception:
    """Return the ConfigError for a name that is not among the choices, the nearest one first."""
    from rl_lab.core import ConfigError, unknown_name

    return ConfigError(unknown_name("environment.name", name, choices))


def load_package(package: str, name: str, extra: str) -> Any:
    """Import an optional package for the environment `name`; raises a ConfigError that names the extra."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        text = " ".join(str(error).split())
        raise config_error(missing_package(name, extra, text)) from error


def missing_package(name: str, extra: str | None, text: str) -> str:
    """Return the line that says what to install."""
    mend = f"pip install 'rl-lab[{extra}]'" if extra else "install the package it needs"
    return f"environment.name {name!r} needs a package that is not installed: {mend} ({text})"
