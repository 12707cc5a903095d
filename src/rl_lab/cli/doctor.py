"""`lab doctor`: what this machine lacks for training, and the command that mends it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from rl_lab.cli.options import DEFAULT_ROOT, Json, Root

if TYPE_CHECKING:
    from rl_lab.cli.checks import Check


def doctor(
    root: Root = None,
    as_json: Json = False,
    render: Annotated[bool, typer.Option(help="Also draw a picture with MuJoCo (takes seconds).")] = True,
) -> None:
    """Check versions, rendering, disk and threads, and say the fix; exit code 1 when something is broken."""
    from rl_lab.cli.checks import run_checks

    checks = run_checks(root or DEFAULT_ROOT, render=render)
    if as_json:
        typer.echo(json.dumps([check._asdict() for check in checks], indent=1))
    else:
        _print(checks)
    if any(check.status == "broken" for check in checks):
        raise SystemExit(1)


def _print(checks: list[Check]) -> None:
    for check in checks:
        typer.echo(f"{check.status:<7} {check.name}: {check.detail}")
        if check.fix:
            typer.echo(f"        fix: {check.fix}")
