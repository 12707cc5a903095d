"""`lab launch PLACE COMMAND...` and what is asked of a launch later."""

from __future__ import annotations

from typing import Any

import typer

from rl_lab.cli.compat import SETTINGS
from rl_lab.cli.launch import nearby, rented, verbs
from rl_lab.cli.report import Reported

PLACES: dict[str, Any] = {
    "local": nearby.local,
    "ssh": nearby.ssh,
    "slurm": nearby.slurm,
    "ray": nearby.ray,
    "gce": rented.gce,
    "ec2": rented.ec2,
    "k8s": rented.k8s,
}


class Places(typer.core.TyperGroup):
    """The places and verbs, with one line for a name that is neither."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the place or verb that is named."""
        with Reported():
            if args and args[0] not in self.commands:
                from rl_lab.core.errors import UsageError, unknown_name

                raise UsageError(unknown_name("place or command of lab launch", args[0], self.commands))
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=Places,
    help="Run lab train, resume, sweep or tune detached on this machine, or on others.",
    no_args_is_help=True,
)
for name, place in PLACES.items():
    app.command(name, context_settings=SETTINGS)(place)
for name, verb in verbs.VERBS.items():
    app.command(name)(verb)
