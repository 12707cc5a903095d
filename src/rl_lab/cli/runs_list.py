"""What `lab runs list` prints. It imports nothing that a list does not need: see `entry`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from rl_lab.cli.entry import DEFAULT_ROOT
from rl_lab.cli.table import print_table
from rl_lab.tracking.catalogue import choose, values
from rl_lab.tracking.index import Index

TITLES = {"env_steps": "env steps", "score": "best return"}
LISTED = ("run", "status", "env_steps", "updates", "score", "tags", "created")


def print_runs(
    words: Sequence[str],
    *,
    sort: str | None = None,
    reverse: bool = False,
    columns: str | None = None,
    limit: int = 50,
    root: str | None = None,
    as_json: bool = False,
) -> None:
    """Print the runs that words choose, newest first or by `sort`."""
    most = None if as_json or limit == 0 else limit
    keys = split(columns) or ([] if as_json else [*LISTED])
    with Index(root or DEFAULT_ROOT) as index:
        runs, count = choose(index, words, sort, reverse=reverse, limit=most)
        rows = values(index, runs, keys)
    if as_json:
        pairs = zip(runs, rows, strict=True)
        listed = [run.to_json() | dict(zip(keys, row, strict=True)) for run, row in pairs]
        sys.stdout.write(json.dumps(listed, indent=1) + "\n")
        return
    print_table([TITLES.get(key, key) for key in keys], [list(map(_cell, keys, row)) for row in rows])
    if not count:
        sys.stdout.write(f"no runs in {root or DEFAULT_ROOT}{' that fit' if words else ''}\n")
    if len(runs) < count:
        sys.stdout.write(f"{len(runs)} of {count:,} runs; --limit 0 lists all\n")


def split(columns: str | None) -> list[str]:
    """Return the names between commas."""
    return [name for name in (columns or "").split(",") if name]


def _cell(key: str, value: Any) -> str:
    """Return a value as the table shows it."""
    if value is None:
        return ""
    if key in ("created", "active"):
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(value))
    if key == "tags":
        return " ".join(json.loads(value) if isinstance(value, str) else value)
    if key in ("env_steps", "updates"):
        return f"{value:,}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
