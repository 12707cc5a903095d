"""Options that several places have."""

from __future__ import annotations

from typing import Annotated

import typer

Words = Annotated[
    list[str],
    typer.Argument(
        metavar="COMMAND...", help="train, resume, sweep or tune with all that belongs to it.", show_default=False
    ),
]
Name = Annotated[str | None, typer.Option("--name", help="Of the launch (from the experiment).", show_default=False)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print the files and command lines.")]
Dir = Annotated[str | None, typer.Option("--dir", help="There, for the project (rl-lab/NAME).", show_default=False)]
Setup = Annotated[
    list[str] | None, typer.Option("--setup", help="A command line there, before; several times.", show_default=False)
]
Python = Annotated[str, typer.Option("--python", help="There, of an environment that has the lab.")]
SamePython = Annotated[
    str, typer.Option("--python", help="On the nodes, of an environment that has the lab (this one).")
]
Nodes = Annotated[int, typer.Option("--nodes", min=1, help="Machines.")]
Gpus = Annotated[int, typer.Option("--gpus", min=0, help="Per machine.")]
Cpus = Annotated[int, typer.Option("--cpus", min=1, help="Per machine.")]
Workers = Annotated[int, typer.Option("--workers", min=1, help="Of a sweep: so many share it.")]
Zone = Annotated[str, typer.Option("--zone", help="Where the machines are.", show_default=False)]
Machine = Annotated[str, typer.Option("--machine", help="Their type.")]
Disk = Annotated[int, typer.Option("--disk", min=10, help="Of each machine, GB.")]
Extras = Annotated[str, typer.Option("--extras", help="Extras of the lab that are installed there.")]
