"""Which runs others need: every path in a config that leads into a run, whatever the key is called."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rl_lab.tracking.catalogue import RunInfo
from rl_lab.tracking.flat_config import flatten, read_yaml
from rl_lab.tracking.groups import is_link
from rl_lab.tracking.index import Index

_RUN_KEYS = ("training.teacher.run", "training.resume_path")  # these may also give the name of an experiment


def needed_runs(root: Path | str, runs: Sequence[RunInfo], kept: set[Path]) -> set[Path]:
    """Return the runs that kept ones lead to, those that these lead to, and so on; trials of studies are all kept."""
    configs = _configs(root)
    wanted = _Wanted(Path(root), runs)
    new = wanted.by([*(configs[path] for path in kept if path in configs), *_trials(Path(root))])
    needed = set(new)
    while new:
        new = wanted.by([configs[path] for path in new if path in configs]) - needed
        needed |= new
    return needed


class _Wanted:
    """Finds the runs that configs speak of; a word that many say is looked up once."""

    def __init__(self, root: Path, runs: Sequence[RunInfo]) -> None:
        self._by_place = {os.path.realpath(run.path): run.path for run in runs if not is_link(root, run.path)}
        self._by_name: dict[str, set[Path]] = {}
        self._by_experiment: dict[str, set[Path]] = {}
        for run in runs:
            for name in (run.path.name, run.id):
                self._by_name.setdefault(name, set()).add(run.path)
            self._by_experiment.setdefault(run.name, set()).add(run.path)
        self._found: dict[str, set[Path]] = {"": set()}

    def by(self, configs: Sequence[Mapping[str, Any]]) -> set[Path]:
        """Return the runs that these flat configs lead to."""
        found: set[Path] = set()
        for config in configs:
            for key, value in config.items():
                for text in _texts(value):
                    found |= self._of(text)
                    if key in _RUN_KEYS:
                        found |= self._by_experiment.get(text, set())
        return found

    def _of(self, text: str) -> set[Path]:
        if text not in self._found:
            self._found[text] = self._by_name.get(text, set()) | self._around(text)
        return self._found[text]

    def _around(self, text: str) -> set[Path]:
        """Return the run in which a path ends, if the text is one."""
        with suppress(OSError, ValueError):  # such as a text with a zero byte
            place = Path(os.path.realpath(os.path.expanduser(text)))
            inside = [self._by_place.get(str(folder)) for folder in (place, *place.parents)]
            return {path for path in inside if path is not None}
        return set()


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        yield from (text for each in value for text in _texts(each))


def _configs(root: Path | str) -> dict[Path, dict[str, Any]]:
    with Index(root) as index:
        return {index.root / run: json.loads(config) for run, config in index.rows("SELECT run, config FROM runs")}


def _trials(root: Path) -> list[dict[str, Any]]:
    """Return the configs of the trials of studies, which lie a level deeper than other runs."""
    found = []
    for file in root.glob("*/trials/*/config.yaml"):
        with suppress(OSError, UnicodeDecodeError):
            found.append(flatten(read_yaml(file.read_text()) or {}))
    return found
