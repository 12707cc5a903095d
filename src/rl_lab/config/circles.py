"""Finds the config files whose `defaults` lead back to themselves; Hydra follows a circle until Python gives up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

import yaml
from hydra.core.override_parser.types import Override

from rl_lab.core.errors import ConfigError

_SELF = "_self_"


def circle_error(overrides: Sequence[Override], trees: Sequence[Path]) -> ConfigError:
    """Return the error that names the files of a circle, begun with what the command line chooses."""
    chosen = [f"{each.key_or_group}/{each.value()}" for each in overrides if isinstance(each.value(), str)]
    for start in ["config", *chosen]:
        if circle := _circle(start, trees, []):
            return ConfigError(f"defaults lead in a circle: {' -> '.join(map(str, circle))}")
    return ConfigError("defaults of the config files lead in a circle")


def _circle(name: str, trees: Sequence[Path], before: list[str]) -> list[Path]:
    """Return the files of the first circle from a config on; the first of them is named again at the end."""
    file = _file(name, trees)
    if file is None:
        return []
    if name in before:
        around = [_file(each, trees) for each in [*before[before.index(name) :], name]]
        return [each for each in around if each is not None]
    for following in _defaults(name, file):
        if circle := _circle(following, trees, [*before, name]):
            return circle
    return []


def _file(name: str, trees: Sequence[Path]) -> Path | None:
    files = [tree / f"{name}.yaml" for tree in trees]
    return next((file for file in files if file.is_file()), None)


def _defaults(name: str, file: Path) -> Iterator[str]:
    """Yield the configs that a file's defaults name, each with its group in front."""
    try:
        content = yaml.safe_load(file.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return
    entries = content.get("defaults") if isinstance(content, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        pairs = entry.items() if isinstance(entry, dict) else [("", entry)]
        for group, options in pairs:
            for option in options if isinstance(options, list) else [options]:
                if isinstance(option, str) and option != _SELF and not str(group).startswith("override "):
                    yield _joined(name, str(group).removeprefix("optional "), option)


def _joined(name: str, group: str, option: str) -> str:
    """Return an option with its group: that of the file, or below it, unless a slash leads to the top."""
    words = [part.partition("@")[0] for part in (group, option) if part]
    path = PurePosixPath("/", PurePosixPath(name).parent, *words)
    return str(path).lstrip("/").removesuffix(".yaml")
