"""From a place and a command to a launch that runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from rl_lab.cli.launch import verbs

if TYPE_CHECKING:
    from rl_lab.launching.order import Place


def need(option: str, value: str | None, *, dry_run: bool, variable: str | None = None) -> str:
    """Return an option that a place cannot do without; a dry run shows where it would stand."""
    from rl_lab.core.errors import UsageError

    if value:
        return value
    named = "" if variable is None else f" (or {variable})"
    if not dry_run:
        raise UsageError(f"{option} is missing{named}")
    stands = f"YOUR-{option.removeprefix('--').upper()}"
    typer.echo(f"note: {option}{named} is missing: {stands} stands for it", err=True)
    return stands


def launch(
    kind: str,
    place: Place,
    words: list[str],
    name: str | None,
    launches: str,
    *,
    dry_run: bool,
    again: bool = False,
) -> None:
    """Check a command, write the launch and start it; with `dry_run` only show what would be written and run."""
    from pathlib import Path

    from rl_lab.cli.launch.words import read_order
    from rl_lab.launching import record

    root = Path(launches)
    if again and name is not None and (root / name).exists():
        verbs.go_on(root, name, words)
        return
    order = read_order(words, name, root, shares_files=place.shares_files)
    plan = place.plan(order)
    if dry_run:
        verbs.show_plan(order, plan)
        return
    verbs.begin(record.create(root, kind, order, plan))
