"""The filter grammar of the catalogue: `algorithm=ppo environment~Cheetah eval/return>3000 tag=paper since=7d`.

A word is a key, one of `= != ~ > >= < <=` and a value; a run must satisfy all of them. Keys are columns of the
catalogue, metrics (they have a `/`; the last value, or with `:max` the highest) and dotted keys of the config.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from rl_lab.core.errors import UsageError, unknown_name
from rl_lab.tracking.index import Index

_TERM = re.compile(r"(?P<key>[^=!~<>\s]+)(?P<operator>!=|>=|<=|=|~|>|<)(?P<value>.*)", re.S)
_AGE = re.compile(r"(\d+(?:\.\d+)?)([mhdw])")
_DAY = re.compile(r"\d{4}-?\d{2}-?\d{2}")
_UNIT_S = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}
STATUSES = ("new", "running", "done", "failed", "stopped", "killed", "damaged")
COLUMNS = (
    *("run", "id", "name", "seed", "status", "created", "active", "algorithm", "environment", "host", "git_hash"),
    *("config_hash", "tags", "pinned", "env_steps", "updates", "score"),
)
TIMES = ("created", "active")
HIGHEST = ":max"


@dataclass(frozen=True)
class Term:
    """One condition."""

    key: str
    operator: str
    value: str

    def __str__(self) -> str:
        return f"{self.key}{self.operator}{self.value}"


@dataclass(frozen=True)
class Condition:
    """A piece of SQL with its parameters."""

    sql: str
    parameters: tuple[Any, ...] = ()


def is_term(word: str) -> bool:
    """Return whether a word reads as a condition."""
    return _TERM.fullmatch(word) is not None


def read_terms(words: Iterable[str]) -> list[Term]:
    """Read the conditions in words that may each hold several, apart by spaces."""
    terms = []
    for word in (part for text in words for part in text.split()):
        found = _TERM.fullmatch(word)
        if found is None:
            raise UsageError(
                f"filter {word!r}: expected KEY OPERATOR VALUE, such as algorithm=ppo or 'eval/return>3000'"
            )
        terms.append(Term(**found.groupdict()))
    return terms


def conditions(index: Index, terms: Sequence[Term]) -> list[Condition]:
    """Return the SQL of the terms; a key that no run has is an error that offers the nearest one."""
    return [_condition(index, term) for term in terms]


def expression(index: Index, key: str) -> Condition:
    """Return the SQL that is a key's value in a run."""
    if key in COLUMNS:
        return Condition(f'"{key}"')
    column, name = _home(key)
    path = f'$."{name}"'
    if not index.rows("SELECT 1 FROM runs LIMIT 1"):
        return Condition("NULL")
    if '"' in name or not index.rows(f"SELECT 1 FROM runs WHERE json_type({column}, ?) IS NOT NULL LIMIT 1", (path,)):
        kind = "metric" if "/" in key else "key"
        raise UsageError(_shortened(kind, key, known_keys(index)))
    return Condition(f"json_extract({column}, ?)", (path,))


def known_keys(index: Index) -> list[str]:
    """Return all that can be asked for."""
    found = []
    for column in ("last", "config"):
        found += [name for (name,) in index.rows(f"SELECT DISTINCT key FROM runs, json_each(runs.{column}) ORDER BY 1")]
    return [*COLUMNS, "tag", "since", "until", *found]


def _home(key: str) -> tuple[str, str]:
    if "/" in key:
        return ("highest", key.removesuffix(HIGHEST)) if key.endswith(HIGHEST) else ("last", key)
    return "config", key


def _shortened(kind: str, key: str, known: Sequence[str]) -> str:
    """Return the message of an unknown key: of hundreds of keys only those of its kind and block."""
    block = key.split("/")[0] + "/" if "/" in key else key.split(".")[0] + "." if "." in key else ""
    if same := [name for name in known if name.replace("/", ".").rpartition(".")[2].endswith(key)]:
        return f"unknown {kind} {key!r}; did you mean {' or '.join(map(repr, same[:3]))}?"
    near = [name for name in known if name.startswith(block)] if block else list(COLUMNS)
    metrics = [name for name in known if "/" in name]
    return unknown_name(kind, key, near or (metrics if "/" in key else known))


def _condition(index: Index, term: Term) -> Condition:
    if term.key in ("since", "until"):
        if term.operator != "=":
            raise UsageError(f"filter {term}: {term.key} goes with =, such as {term.key}=7d or {term.key}=2026-01-31")
        if term.key == "until" and _DAY.fullmatch(term.value):
            return Condition("created < ?", (_moment(term, days_later=1),))  # that day is included
        return Condition(f"created {'>=' if term.key == 'since' else '<='} ?", (_moment(term),))
    if term.key in ("tag", "tags"):
        return _tag(term)
    if term.key == "status" and term.operator in ("=", "!="):
        for status in term.value.split(","):
            if status not in STATUSES:
                raise UsageError(f"filter {term}: {unknown_name('status', status, STATUSES)}")
    value = expression(index, term.key)
    if term.operator in ("=", "!="):
        return _equal(term, value)
    if term.operator == "~":
        return Condition(f"{value.sql} LIKE ? ESCAPE '\\'", (*value.parameters, _part(term.value)))
    bound = _moment(term) if term.key in TIMES else _number(term)
    kinds = f"typeof({value.sql}) IN ('integer', 'real')"
    return Condition(f"({kinds} AND {value.sql} {term.operator} ?)", (*value.parameters, *value.parameters, bound))


def _equal(term: Term, value: Condition) -> Condition:
    """Return equality with one of the values between commas: as a number where it reads as one, else as text."""
    pieces, parameters = [], []
    given = [term.value] if term.value.startswith("[") else term.value.split(",")
    for each in given:
        pieces.append(f"CAST({value.sql} AS TEXT) = ? COLLATE NOCASE")
        parameters += [*value.parameters, each]
        number = {"true": 1.0, "false": 0.0}.get(each.lower(), _as_number(each))
        if number is not None:
            pieces.append(f"{value.sql} = ?")
            parameters += [*value.parameters, number]
        if each.lower() in ("null", "none", ""):
            pieces.append(f"{value.sql} IS NULL")
            parameters += value.parameters
    sql = f"COALESCE({' OR '.join(pieces)}, 0)"
    return Condition(sql if term.operator == "=" else f"NOT {sql}", tuple(parameters))


def _tag(term: Term) -> Condition:
    if term.operator not in ("=", "!=", "~"):
        raise UsageError(f"filter {term}: a tag goes with =, != or ~")
    is_part = term.operator == "~"
    given = [_part(term.value)] if is_part else term.value.split(",")
    test = "value LIKE ? ESCAPE '\\'" if is_part else f"value IN ({', '.join('?' * len(given))})"
    not_ = "NOT " if term.operator == "!=" else ""
    return Condition(f"{not_}EXISTS (SELECT 1 FROM json_each(runs.tags) WHERE {test})", tuple(given))


def _part(text: str) -> str:
    """Return the pattern of all that has a text inside; its own % and _ are letters."""
    escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%"


def _as_number(text: str) -> float | None:
    try:
        return float(text.replace("_", ""))
    except ValueError:
        return None


def _number(term: Term) -> float:
    number = _as_number(term.value)
    if number is None:
        raise UsageError(f"filter {term}: {term.operator} needs a number, not {term.value!r}")
    return number


def _moment(term: Term, days_later: int = 0) -> float:
    """Return seconds since 1970 of an age (`7d`) or a date."""
    if age := _AGE.fullmatch(term.value):
        return time.time() - float(age[1]) * _UNIT_S[age[2]]
    try:
        return (datetime.fromisoformat(term.value) + timedelta(days=days_later)).timestamp()
    except ValueError as error:
        hint = "an age such as 30m, 12h, 7d, 2w or a date such as 2026-01-31"
        raise UsageError(f"filter {term}: expected {hint}, not {term.value!r}") from error
