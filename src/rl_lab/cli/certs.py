"""`lab certs`: the lab's own authority, and a certificate for every robot, learner and person who watches."""

from __future__ import annotations

from typing import Annotated

import typer

from rl_lab.cli.options import Debug
from rl_lab.cli.report import Reported

app = typer.Typer(help="Make certificates: who may connect to a learner, and as what.", no_args_is_help=True)
Directory = Annotated[str, typer.Option("--dir", help="Directory of the certificates and keys.")]


@app.command("init")
def init(
    directory: Directory = "certs",
    days: Annotated[int, typer.Option("--days", min=1, max=36_500, help="How long the authority is valid.")] = 3650,
    debug: Debug = False,
) -> None:
    """Make the lab's authority. Its key, ca.key, stays on this machine."""
    with Reported(debug):
        from pathlib import Path

        from rl_lab.distributed.transport.certificates import create_authority

        typer.echo(f"authority: {create_authority(Path(directory), days)}")


@app.command("issue")
def issue(
    name: Annotated[str, typer.Argument(help="Of the robot, learner or person, e.g. robot-01.")],
    role: Annotated[str, typer.Option("--role", help="actor, learner, operator or viewer.")],
    directory: Directory = "certs",
    days: Annotated[int, typer.Option("--days", min=1, max=36_500, help="How long it is valid.")] = 365,
    debug: Debug = False,
) -> None:
    """Make a certificate and key; copy both and ca.pem to the machine that uses them."""
    with Reported(debug):
        from pathlib import Path

        from rl_lab.distributed.transport.certificates import issue as issue_certificate

        typer.echo(f"certificate: {issue_certificate(Path(directory), name, role, days)}")


@app.command("revoke")
def revoke(
    name: Annotated[str, typer.Argument(help="Whose certificate.")],
    directory: Directory = "certs",
    debug: Debug = False,
) -> None:
    """Let learners refuse a certificate from now on; those elsewhere need the list beside their ca.pem."""
    with Reported(debug):
        from pathlib import Path

        from rl_lab.distributed.transport.certificates import revoke as revoke_certificate

        typer.echo(f"revoked: {revoke_certificate(Path(directory), name)}")
