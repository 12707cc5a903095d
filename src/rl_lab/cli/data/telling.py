"""What `lab data` prints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from rl_lab.buffers.datasets.format import DatasetError
from rl_lab.buffers.datasets.open import detect_format, open_dataset
from rl_lab.buffers.datasets.summary import find_datasets
from rl_lab.cli.table import print_table
from rl_lab.core.errors import ConfigError, UsageError

MEGABYTE = 1e6
MOST_EPISODES = 30  # rows that are shown


def list_datasets(place: str) -> list[dict[str, Any]]:
    """Return a row of each dataset below a directory; one that cannot be opened says why."""
    root = Path(place)
    if not root.is_dir():
        raise UsageError(f"{place} is no directory")
    return [_row(path) for path in find_datasets(root)]


def _row(path: Path) -> dict[str, Any]:
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    row: dict[str, Any] = {"dataset": str(path), "size": f"{size / MEGABYTE:.1f} MB", "bytes": size}
    try:
        reader = open_dataset(path)
    except (DatasetError, ConfigError) as error:
        return {**row, "format": detect_format(path), "problem": str(error)}
    facts = {"format": reader.format, "robot": reader.robot}
    return {**row, **facts, "episodes": len(reader.lengths), "steps": sum(reader.lengths), "problem": None}


def print_dataset(summary: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
    """Print what a dataset is and its episodes."""
    rate = summary["steps_per_second"]
    told = [summary["format"], summary["robot"], f"{summary['episodes']} episodes", f"{summary['steps']:,} steps"]
    told.append(None if rate is None else f"{rate:g} steps per second")
    typer.echo(f"{summary['path']}: {', '.join(text for text in told if text)}")
    shapes = [[name, field["dtype"], str(field["shape"])] for name, field in summary["fields"].items()]
    print_table(["field", "type", "shape"], shapes)
    titles = [
        "episode",
        "steps",
        "return",
        "end",
        "verdict",
        "interventions",
        "takeovers",
        "operators",
        "began",
        "task",
    ]
    print_table(titles, [[_cell(row[title]) for title in titles] for row in rows[:MOST_EPISODES]])
    if len(rows) > MOST_EPISODES:
        typer.echo(f"{len(rows) - MOST_EPISODES} more: --episodes {MOST_EPISODES}-{len(rows) - 1}, or --json")
    steps = sum(row["steps"] for row in rows)
    share = sum(row["interventions"] for row in rows) / steps if steps else 0.0
    said = [row["verdict"] for row in rows if row["verdict"] in ("success", "failure")]
    typer.echo(
        f"interventions: {share:.1%} of steps"
        + (f"; successes: {said.count('success')} of {len(said)}" if said else "")
    )


def print_statistics(found: dict[str, Any]) -> None:
    """Print statistics and what is wrong."""
    titles = ["field", "count", "min", "max", "mean", "std"]
    rows = [[name, *(str(part[key]) for key in titles[1:])] for name, part in found["statistics"].items()]
    print_table(titles, rows)
    for line in found["notes"]:
        typer.echo(f"note: {line}")
    for line in found["damage"]:
        typer.echo(f"damaged: {line}", err=True)
    typer.echo(
        f"{found['path']}: {found['episodes']} episodes, {len(found['notes'])} notes, {len(found['damage'])} damaged"
    )


def print_replay(number: int, found: dict[str, Any]) -> None:
    """Print how far a replay went from its recording."""
    success = "" if found["is_success"] is None else f", success: {'yes' if found['is_success'] else 'no'}"
    typer.echo(f"episode {number}: {found['steps']} of {found['of']} steps, ended {found['ended']}{success}")
    rows = [[name, *(f"{far[key]:.3g}" for key in ("start", "end", "max"))] for name, far in found["deviation"].items()]
    print_table(["largest difference", "start", "end", "max"], rows)
    if found["film"] is not None:
        typer.echo(f"film: {found['film']}")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
