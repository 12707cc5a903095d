"""`lab list`: what there is to train."""

from __future__ import annotations

import json
import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rl_lab.cli.options import ConfigDir, Debug, Json
from rl_lab.cli.report import Reported


class Kind(StrEnum):
    """What can be listed."""

    EXPERIMENTS = "experiments"
    WORKFLOWS = "workflows"
    ENVIRONMENTS = "environments"


GROUPS = {Kind.EXPERIMENTS: "experiment", Kind.WORKFLOWS: "workflow", Kind.ENVIRONMENTS: "environment"}


def list_(
    kind: Annotated[Kind | None, typer.Argument(help="Only these.", show_default=False)] = None,
    config_dir: ConfigDir = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """List experiments, workflows and environments with what their files say about them."""
    with Reported(debug):
        from rl_lab.config.trees import group_files

        listed: dict[str, dict[str, str]] = {}
        for each in [kind] if kind else Kind:
            files = group_files(GROUPS[each], config_dir)
            listed[each.value] = {name: _summary(path) for name, path in files.items()}
        if as_json:
            typer.echo(json.dumps(listed, indent=1))
            return
        for title, options in listed.items():
            typer.echo(f"{title}:")
            width = max(map(len, options), default=0)
            for name, summary in options.items():
                typer.echo(f"  {name:<{width}}  {summary}".rstrip())


def _summary(path: Path) -> str:
    """Return the first comment of a YAML file."""
    lines = path.read_text().splitlines()
    comments = (re.sub(r"^#\s*", "", line) for line in lines if line.startswith("#") and "@package" not in line)
    return next(comments, "")
