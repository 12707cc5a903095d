"""The runs under a root: finding, listing and showing them. The index answers, the run directories are the truth."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from rl_lab.core.errors import RunDirectoryError, UsageError
from rl_lab.tracking.filters import COLUMNS, HIGHEST, Condition, Term, conditions, expression, is_term, read_terms
from rl_lab.tracking.groups import shown_name
from rl_lab.tracking.index import Index, Row
from rl_lab.tracking.jsonl import read_rows
from rl_lab.tracking.run_directory import RunDirectory
from rl_lab.tracking.run_names import below, is_at, is_called, is_member, known_names, place_of, unknown_run
from rl_lab.tracking.run_record import SCORE, read_record

_NEWEST_FIRST = "created DESC, run DESC"
_FEW = 500  # runs that a question can name one by one


@dataclass(frozen=True)
class RunInfo:
    """One line of `lab runs list`."""

    path: Path
    id: str
    name: str
    seed: int | None
    status: str  # new, running, done, failed, stopped, killed or damaged
    created: float  # seconds since 1970
    env_steps: int
    updates: int
    score: float | None  # the highest evaluation return
    algorithm: str = ""
    environment: str = ""
    tags: tuple[str, ...] = ()
    pinned: bool = False
    active: float = 0.0  # the last change of its metrics or status, seconds since 1970
    host: str = ""
    git_hash: str = ""
    config_hash: str = ""

    @property
    def shown(self) -> str:
        """Return the name that a table shows."""
        return shown_name(self.path)

    def to_json(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return {**asdict(self), "path": str(self.path)}


def list_runs(root: Path | str) -> list[RunInfo]:
    """Return the runs under `root`, newest first, also those of sweeps and launches; others are passed over."""
    with Index(root) as index:
        return _infos(index, [], _NEWEST_FIRST)


def find_experiments(
    root: Path | str = "experiments", *filters: str, sort: str | None = None, **equal: Any
) -> list[RunInfo]:
    """Return the runs that satisfy all filters, newest first or by `sort`.

    `find_experiments("experiments", "eval/return>3000 since=7d", algorithm="ppo")`; numbers are sorted from the
    highest, words by the alphabet.
    """
    terms = [*read_terms(filters), *(Term(key, "=", _text(value)) for key, value in equal.items())]
    with Index(root) as index:
        return _infos(index, conditions(index, terms), order(index, sort))


def lone_runs(root: Path | str) -> list[RunInfo]:
    """Return the runs under `root` that belong to no sweep and no launch, newest first."""
    there = Path(root).absolute()
    return [run for run in list_runs(root) if not is_member(below(there, str(run.path)) or "")]


def choose_runs(root: Path | str, words: Sequence[str]) -> list[RunInfo]:
    """Return the runs that words name (by directory, id or experiment: all of it); words may also be filters."""
    with Index(root) as index:
        return choose(index, words)[0]


def choose(
    index: Index, words: Sequence[str], sort: str | None = None, *, reverse: bool = False, limit: int | None = None
) -> tuple[list[RunInfo], int]:
    """Return the chosen runs, at most `limit` of them, and how many there are; newest first, or by `sort`."""
    named, terms = _split(index, words)
    where, by = conditions(index, terms), order(index, sort, reverse)
    if not named:
        return _first_of(index, where, by, limit)
    runs, chosen = _infos(index, where, by), dict[Path, RunInfo]()
    for word in named:
        found = [run for run in runs if _is_meant(index.root, run, word)]
        chosen |= {run.path: run for run in found or [_elsewhere(index, word, terms)]}
    return list(chosen.values())[:limit], len(chosen)


def values_of(root: Path | str, runs: Iterable[RunInfo], keys: Sequence[str]) -> list[list[Any]]:
    """Return columns, metrics and config values of runs, in their order; a value that a run lacks is None."""
    with Index(root) as index:
        return values(index, runs, keys)


def values(index: Index, runs: Iterable[RunInfo], keys: Sequence[str]) -> list[list[Any]]:
    """Return the same from an index that is open."""
    chosen, found = list(runs), dict[Path, list[Any]]()
    here = [name for run in chosen if (name := below(index.root, str(run.path))) is not None]
    if here:
        parts = [expression(index, key) for key in keys]
        parameters = [parameter for part in parts for parameter in part.parameters]
        sql = f"SELECT {', '.join(['run', *(part.sql for part in parts)])} FROM runs"
        if len(here) <= _FEW:
            sql, parameters = f"{sql} WHERE run IN ({', '.join('?' * len(here))})", [*parameters, *here]
        found = {index.root / row[0]: [*row[1:]] for row in index.rows(sql, parameters)}
    return [found[run.path] if run.path in found else _values_from_files(run, keys) for run in chosen]


def find_run(root: Path | str, which: str | None = None) -> RunDirectory:
    """Return a run by path, directory name, id, or the newest of an experiment, sweep or launch.

    Without `which` it is the newest; that, and the name of an experiment, never means a run of a sweep or launch.
    """
    there = Path(root).absolute()
    runs = {below(there, str(run.path)) or "": run for run in list_runs(root) if run.status != "damaged"}
    if which is None:
        alone = [run for name, run in runs.items() if not is_member(name)]
        if not alone:
            beside = f" but the {len(runs)} of sweeps and launches: name one, or" if runs else ";"
            raise RunDirectoryError(f"no runs in {there}{beside} `lab train` makes one")
        return RunDirectory.open(alone[0].path)
    called = [run for name, run in runs.items() if is_called(name, run.id, run.name, which)]
    inside = [run for name, run in runs.items() if is_at(name, which)]
    if found := [runs[which]] if which in runs else called or inside:
        return RunDirectory.open(found[0].path)
    if Path(which).exists() or "/" in which:
        return RunDirectory.open(which)
    raise RunDirectoryError(unknown_run(there, which, list(runs), {run.name for run in runs.values()}))


def describe(path: Path | str) -> RunInfo:
    """Return the line of one run from its files alone; a run that cannot be read is listed as damaged."""
    record = read_record(Path(path).absolute())
    progress = record.progress
    return RunInfo(
        path=record.path,
        id=record.id,
        name=record.name,
        seed=record.seed,
        status=record.status,
        created=record.created,
        env_steps=progress.env_steps,
        updates=progress.updates,
        score=progress.highest.get(SCORE),
        algorithm=record.algorithm,
        environment=record.environment,
        tags=record.labels.tags,
        pinned=record.labels.pinned,
        active=record.active,
        host=record.host,
        git_hash=record.git_hash,
        config_hash=record.config_hash,
    )


def show_run(path: Path | str) -> dict[str, Any]:
    """Return all that `lab runs show` prints: the line, manifest, config, checkpoints, last metrics and events."""
    from rl_lab.tracking.checkpoint import CheckpointStore  # needs torch, which a listing does without

    run = RunDirectory.open(path)
    last: dict[str, Any] = {}
    for row in read_rows(run.metrics_file):
        last |= row
    return {
        "run": describe(run.path).to_json(),
        "manifest": run.read_manifest(),
        "config": run.read_config() if run.config_file.is_file() else None,
        "checkpoints": [
            {**asdict(entry), "path": str(entry.path)} for entry in CheckpointStore(run.checkpoints).entries()
        ],
        "metrics": last,
        "events": list(read_rows(run.events_file)),
    }


def order(index: Index, key: str | None, reverse: bool = False) -> str:
    """Return ORDER BY for a key: numbers from the highest, words by the alphabet, what is missing last."""
    if key is None:
        return "created ASC, run ASC" if reverse else _NEWEST_FIRST
    sql = expression(index, key)
    for parameter in sql.parameters:  # a path of keys that are in the index: no stranger's text
        sql = Condition(sql.sql.replace("?", "'" + parameter.replace("'", "''") + "'", 1))
    ((words,),) = index.rows(f"SELECT count(*) FROM runs WHERE typeof({sql.sql}) = 'text'")
    is_descending = (words == 0) != reverse
    return f"{sql.sql} IS NULL, {sql.sql} {'DESC' if is_descending else 'ASC'}, {_NEWEST_FIRST}"


def _infos(index: Index, where: Sequence[Condition], by: str) -> list[RunInfo]:
    test, parameters = _joined(where)
    rows = index.rows(f"SELECT {', '.join(COLUMNS)} FROM runs WHERE {test} ORDER BY {by}", parameters)
    return [_info(index.root, row) for row in rows]


def _first_of(index: Index, where: Sequence[Condition], by: str, limit: int | None) -> tuple[list[RunInfo], int]:
    """Return the first runs and how many there are; the conditions, which may read JSON, are tested once."""
    if limit is None or limit > _FEW:
        runs = _infos(index, where, by)
        return runs[:limit], len(runs)
    test, parameters = _joined(where)
    names = [name for (name,) in index.rows(f"SELECT run FROM runs WHERE {test} ORDER BY {by}", parameters)]
    shown = names[:limit]
    return _infos(index, [Condition(f"run IN ({', '.join('?' * len(shown))})", tuple(shown))], by), len(names)


def _joined(where: Sequence[Condition]) -> tuple[str, list[Any]]:
    cheap_first = sorted(where, key=lambda condition: "json_extract" in condition.sql)
    parameters = [parameter for condition in cheap_first for parameter in condition.parameters]
    return " AND ".join(condition.sql for condition in cheap_first) or "1", parameters


def _info(root: Path, row: Row) -> RunInfo:
    fields = dict(zip(COLUMNS, row, strict=True))
    path, tags, pinned = root / fields.pop("run"), _tags(fields.pop("tags")), fields.pop("pinned") == 1
    return RunInfo(path, **fields, tags=tags, pinned=pinned)


@lru_cache
def _tags(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text))


def _values_from_files(run: RunInfo, keys: Sequence[str]) -> list[Any]:
    """Return the same of a run that is not in the index."""
    record = read_record(run.path)
    highest = {f"{key}{HIGHEST}": value for key, value in record.progress.highest.items()}
    known = {**record.config, **record.progress.last, **highest, **run.to_json(), "run": run.shown}
    return [known.get(key) for key in keys]


def _split(index: Index, words: Sequence[str]) -> tuple[list[str], list[Term]]:
    """Return the words that name runs and the terms of the others; a name may look like a term, `lr=0.1`."""
    known = _known(index) if words else set()
    named = [word for word in words if word in known or not is_term(word.split()[0] if word.split() else word)]
    return named, read_terms(word for word in words if word not in named)


def _elsewhere(index: Index, word: str, terms: Sequence[Term]) -> RunInfo:
    """Return the run at a path outside of the root."""
    if {word, place_of(index.root, word)} & _known(index):
        raise UsageError(f"{word} does not satisfy {' '.join(map(str, terms))}")
    if Path(word).exists() or "/" in word:
        return describe(RunDirectory.open(word).path)
    names, experiments = ({row[0] for row in index.rows(f"SELECT {key} FROM runs")} for key in ("run", "name"))
    raise RunDirectoryError(unknown_run(index.root, word, sorted(names | experiments), experiments))


def _known(index: Index) -> set[str]:
    """Return all that runs, and what they are inside of, can be called by."""
    return {name for row in index.rows("SELECT run, id, name FROM runs") for name in known_names(*row)}


def _is_meant(root: Path, run: RunInfo, word: str) -> bool:
    """Return whether a word is a name of a run, or a path to it or to the sweep or launch that it belongs to."""
    name = below(root, str(run.path)) or ""
    return is_called(name, run.id, run.name, word) or is_at(name, word) or is_at(name, place_of(root, word))


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":")) if isinstance(value, bool | list | tuple) else str(value)
