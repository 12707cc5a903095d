"""The arguments of a class or function: their names, types, defaults and documented meaning."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rl_lab.config.typed_values import is_plain


@dataclass(frozen=True)
class Argument:
    """One keyword argument that YAML may give."""

    name: str
    annotation: Any  # inspect.Parameter.empty when there is none
    default: Any  # inspect.Parameter.empty when it must be given

    @property
    def is_required(self) -> bool:
        """Return whether YAML must give it."""
        return self.default is inspect.Parameter.empty

    @property
    def needs_object(self) -> bool:
        """Return whether it takes an object of one class and nothing else, not even None."""
        return isinstance(self.annotation, type) and not is_plain(self.annotation) and self.default is not None

    @property
    def dataclass_type(self) -> type | None:
        """Return the dataclass this argument takes: YAML gives its fields as a nested block."""
        options = (self.annotation, *typing.get_args(self.annotation))
        return next((kind for kind in options if isinstance(kind, type) and dataclasses.is_dataclass(kind)), None)


@dataclass(frozen=True)
class Signature:
    """What a constructor or function takes."""

    arguments: dict[str, Argument]
    takes_any: bool  # has **kwargs, so that names cannot be checked


def signature_of(target: Callable[..., Any]) -> Signature:
    """Read the signature with its annotations resolved."""
    function = target.__init__ if inspect.isclass(target) and not dataclasses.is_dataclass(target) else target
    hints = _hints(function)
    arguments: dict[str, Argument] = {}
    takes_any = False
    for parameter in inspect.signature(target).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            takes_any = True
        elif parameter.kind is not inspect.Parameter.VAR_POSITIONAL:
            annotation = hints.get(parameter.name, inspect.Parameter.empty)
            arguments[parameter.name] = Argument(parameter.name, annotation, parameter.default)
    return Signature(arguments, takes_any)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations; none when one of them names what only a type checker imports."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError:
        return {}


def meanings(target: Callable[..., Any]) -> dict[str, str]:
    """Return the `Args:` (or `Attributes:`) section of the Google docstring as name -> meaning.

    A class that takes the arguments of a base has its section.
    """
    text = inspect.getdoc(target) or ""
    if inspect.isclass(target) and "Args:" not in text and "__init__" not in vars(target):
        text = next((doc for base in target.__mro__ if "Args:" in (doc := inspect.cleandoc(base.__doc__ or ""))), text)
    if inspect.isclass(target) and "Args:" not in text:
        text += "\n" + (inspect.getdoc(vars(target).get("__init__")) or "")
    section = re.search(r"^\s*(?:Args|Attributes):\n(?P<body>(?:[ \t]+.*\n?|\n)*)", text, re.MULTILINE)
    found: dict[str, str] = {}
    name = ""
    for line in section["body"].splitlines() if section else []:
        entry = re.match(r"^\s{2,4}(\w+)(?: \([^)]*\))?: (.*)", line)
        if entry and (not name or not line.startswith(" " * 6)):
            name = entry[1]
            found[name] = entry[2].strip()
        elif name and line.strip():
            found[name] += " " + line.strip()
    return found
