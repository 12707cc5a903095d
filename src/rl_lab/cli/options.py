"""Options that several commands share, declared once."""

from __future__ import annotations

from typing import Annotated

import typer

from rl_lab.cli.entry import DEFAULT_ROOT as DEFAULT_ROOT

Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="+experiment=NAME, key=value, group=option.", show_default=False, metavar="[OVERRIDES]..."),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Json = Annotated[bool, typer.Option("--json", help="Print machine-readable output.")]
Plugin = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        help="A .py file, package directory or package name whose classes a config may name (also LAB_PLUGINS).",
        show_default=False,
    ),
]
ConfigDir = Annotated[
    str | None, typer.Option("--config-dir", help="Your own config tree, searched first.", show_default=False)
]
Root = Annotated[
    str | None,
    typer.Option("--root", envvar="LAB_EXPERIMENTS", help="Directory of the runs (experiments).", show_default=False),
]
RunCode = Annotated[
    bool, typer.Option("--run-code", help="Use the code that the run was made with, from its snapshot.")
]
