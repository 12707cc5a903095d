"""What a search in rounds has decided, on disk: who takes part in which round, who came of whom, and the scores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rl_lab.core.durable import reason
from rl_lab.core.errors import RunDirectoryError
from rl_lab.tracking.atomic import replace_file
from rl_lab.tuning.sweep_directory import Trial

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Member:
    """A run that takes part."""

    run: str
    values: dict[str, Any]
    parent: str | None = None  # the run that it began as a copy of
    checkpoint: str | None = None  # that it began with

    @property
    def trial(self) -> Trial:
        """Return it as those know it who run it."""
        return Trial(self.run, self.values)


@dataclass(frozen=True)
class Round:
    """All members train until the same number of env steps, and are compared there."""

    number: int
    until: int | None  # env steps; None: to their end
    members: tuple[Member, ...]
    scores: tuple[float | None, ...] | None = None  # once all are there; of a member: None if it has failed


class RoundsFile:
    """`rounds.json` in the directory of a search. A decision is written whole, before anything follows from it."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "rounds.json"
        self.rounds: list[Round] = self._read() if self.path.is_file() else []

    def begin(self, members: Sequence[Member], until: int | None) -> None:
        """Write down who takes part in the first round."""
        self._write([Round(0, until, tuple(members))])

    def decide(self, scores: Sequence[float | None], following: Sequence[Member] | None, until: int | None) -> None:
        """Write down the scores of the newest round and who takes part in the next; None: it was the last."""
        newest = replace(self.rounds[-1], scores=tuple(scores))
        more = [] if following is None else [Round(newest.number + 1, until, tuple(following))]
        self._write([*self.rounds[:-1], newest, *more])

    def _write(self, rounds: list[Round]) -> None:
        content = {"schema_version": SCHEMA_VERSION, "rounds": [asdict(each) for each in rounds]}
        try:
            replace_file(self.path, json.dumps(content, indent=1) + "\n")
        except OSError as error:
            raise RunDirectoryError(f"cannot write {self.path}: {reason(error)}") from error
        self.rounds = rounds

    def _read(self) -> list[Round]:
        try:
            content = json.loads(self.path.read_text())
            version, rows = content["schema_version"], content["rounds"]
            rounds = [Round(**row | {"members": tuple(Member(**each) for each in row["members"])}) for row in rows]
        except OSError as error:
            raise RunDirectoryError(f"cannot read {self.path}: {reason(error)}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise RunDirectoryError(f"{self.path} is damaged: {error}") from error
        if version != SCHEMA_VERSION or not rounds:
            raise RunDirectoryError(f"{self.path} has schema_version {version}; this lab reads {SCHEMA_VERSION}")
        return [replace(each, scores=None if each.scores is None else tuple(each.scores)) for each in rounds]
