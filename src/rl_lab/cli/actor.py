"""`lab actor [RUN] key=value ...`: the control loop beside the robot."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated

import typer

from rl_lab.cli.options import ConfigDir, Debug, Plugin
from rl_lab.cli.report import Reported

if TYPE_CHECKING:
    from pathlib import Path

    from omegaconf import DictConfig

_FLUSH_S = 5.0  # to send what is left, where a learner is there


def actor(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN] [OVERRIDES]...",
            help="The learner's run directory, or +experiment=NAME; then key=value.",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="Leave after so many control steps.")] = None,
    config_dir: ConfigDir = None,
    plugin: Plugin = None,
    debug: Debug = False,
) -> None:
    """Act with the newest weights of a learner and record every step, until the learner's run is over."""
    with Reported(debug):
        from rl_lab.cli.learner import LOG_FORMAT
        from rl_lab.config.actors import assemble_actor, build_actor
        from rl_lab.config.allow_list import AllowList, load_plugins
        from rl_lab.config.targets import Targets
        from rl_lab.orchestration.signals import StopRequest, stop_on_signals

        logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
        composed, home = _read(arguments or [], config_dir)
        parts = assemble_actor(composed, Targets(AllowList(load_plugins(plugin or []))))
        stop, made = StopRequest(), build_actor(parts, home)
        try:
            with stop_on_signals(stop):
                made.run(lambda: stop() or (steps is not None and made.num_steps >= steps))
            made.sender.flush(_FLUSH_S if made.sender.status().is_connected else 0.0)
            left = made.sender.status()
            typer.echo(f"{made.num_steps} steps recorded, {left.next_seq - left.acknowledged} wait for the learner")
        finally:
            made.close()
        if stop.signal is not None:
            raise typer.Exit(128 + stop.signal)


def _read(arguments: list[str], config_dir: str | None) -> tuple[DictConfig, Path]:
    """Return the config, and where files lie that it gives no place: in the learner's run, if that is named."""
    from pathlib import Path

    from rl_lab.cli.learner import check_kind
    from rl_lab.config.compose import compose
    from rl_lab.config.resume import recompose
    from rl_lab.core.errors import UsageError
    from rl_lab.tracking.run_directory import RunDirectory

    is_run = bool(arguments) and "=" not in arguments[0]
    home = RunDirectory.open(arguments[0]).path if is_run else Path.cwd()
    composed = recompose(RunDirectory.open(home), arguments[1:]) if is_run else compose(arguments, config_dir)
    check_kind(composed, "an actor")
    options = composed.transport
    if not is_run and options.address is None:
        raise UsageError("transport.address: missing; give that of the learner, or name its run: lab actor RUN")
    if not is_run and options.directory is None:
        options.directory = str(home / "actors" / composed.experiment.name / options.actor)
    return composed, home
