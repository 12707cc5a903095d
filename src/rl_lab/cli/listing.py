"""`lab list`: what there is to train."""

from __future__ import annotations

import json
import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from rl_lab.cli.options import ConfigDir, Debug, Json
from rl_lab.cli.report import Reported


class Kind(StrEnum):
    """What can be listed."""

    EXPERIMENTS = "experiments"
    WORKFLOWS = "workflows"
    ENVIRONMENTS = "environments"


FACTS = "environment_facts.yaml"  # by benchmarks/environments.py: option -> whether it resumes exactly
UNKNOWN = "not measured: lab env check {name}"
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

        listed: dict[str, dict[str, Any]] = {}
        for each in [kind] if kind else Kind:
            files = group_files(GROUPS[each], config_dir)
            listed[each.value] = {name: _summary(path) for name, path in files.items()}
            if each is Kind.ENVIRONMENTS:
                listed[each.value] = _with_exactness(files)
        if as_json:
            typer.echo(json.dumps(listed, indent=1))
            return
        for title, options in listed.items():
            typer.echo(f"{title}:")
            width = max(map(len, options), default=0)
            for name, option in options.items():
                text = option if isinstance(option, str) else f"{option['summary']} [{option['resume']}]"
                typer.echo(f"  {name:<{width}}  {text}".rstrip())


def _with_exactness(files: dict[str, Path]) -> dict[str, dict[str, str]]:
    """Return what each environment is and how its running episodes come back, which was measured for the packaged."""
    import yaml

    from rl_lab.config.trees import CONFIGS

    facts: dict[str, str] = yaml.safe_load((CONFIGS / FACTS).read_text())
    listed = {}
    for name, path in files.items():
        is_packaged = path.is_relative_to(CONFIGS)
        resume = facts.get(name, UNKNOWN) if is_packaged else UNKNOWN
        listed[name] = {"summary": _summary(path), "resume": resume.format(name=name)}
    return listed


def _summary(path: Path) -> str:
    """Return the first comment of a YAML file."""
    lines = path.read_text().splitlines()
    comments = (re.sub(r"^#\s*", "", line) for line in lines if line.startswith("#") and "@package" not in line)
    return next(comments, "")
