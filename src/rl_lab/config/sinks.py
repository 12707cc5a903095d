"""The sinks that the `logging` block asks for."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from rl_lab.config.freeze import Frozen, thaw
from rl_lab.core.errors import ConfigError
from rl_lab.tracking.run_directory import RunDirectory
from rl_lab.tracking.sinks import Sink

WANDB_PROJECT = "rl-lab"


def reject_missing_packages(config: Mapping[str, Any]) -> None:
    """Refuse a sink whose package is not installed, before there is a run."""
    if config["logging"]["wandb"] and importlib.util.find_spec("wandb") is None:
        raise ConfigError("logging.wandb: the package wandb is not installed: pip install 'rl-lab[wandb]'")


def open_sinks(config: Frozen, run: RunDirectory, *, quiet: bool) -> list[Sink]:
    """Return the sinks, `quiet` ones without the terminal; a package is imported only when its sink is asked for."""
    logging, sinks = config["logging"], list[Sink]()
    if logging["terminal"] and not quiet:
        from rl_lab.tracking.terminal import TerminalSink

        sinks.append(TerminalSink(f"{config['experiment']['name']} s{config['experiment']['seed']}"))
    if logging["tensorboard"]:
        from rl_lab.tracking.tensorboard import TensorBoardSink

        sinks.append(TensorBoardSink(run.tb))
    if logging["csv"]:
        from rl_lab.tracking.csv_export import CsvSink

        sinks.append(CsvSink(run))
    if logging["wandb"]:
        from rl_lab.tracking.wandb import WandbSink

        project = WANDB_PROJECT if logging["wandb"] is True else logging["wandb"]
        sinks.append(WandbSink(run, project, thaw(config)))
    return sinks
