"""`lab list`: what there is to train."""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
from enum import StrEnum
from itertools import dropwhile, takewhile
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
_LEAST = 30  # columns for what a thing is; on a narrower terminal lines are left whole
_SENTENCE = re.compile(r".*?(?<!e\.g)(?<!i\.e)[.](?=\s+[A-Z]|\s*$)")
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
        room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        for title, options in listed.items():
            typer.echo(f"{title}:")
            width = max(map(len, options), default=0)
            for name, option in options.items():
                text = option if isinstance(option, str) else f"{option['summary']} [{option['resume']}]"
                typer.echo(_entry(f"  {name:<{width}}  ", text, room))


def _entry(name: str, text: str, room: int | None) -> str:
    """Return a name and what it is: one line, or on a terminal as many as it takes, below each other."""
    if room is None or room < len(name) + _LEAST:
        return f"{name}{text}".rstrip()
    lines = textwrap.wrap(text, room - len(name), break_on_hyphens=False) or [""]
    return f"\n{' ' * len(name)}".join([f"{name}{lines[0]}".rstrip(), *lines[1:]])


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
    """Return the first sentence of the comment that a YAML file begins with."""
    lines = dropwhile(lambda line: "@package" in line or not line.startswith("#"), path.read_text().splitlines())
    comment = " ".join(line.lstrip("#").strip() for line in takewhile(lambda line: line.startswith("#"), lines))
    sentence = _SENTENCE.match(comment)
    return sentence.group() if sentence else comment
