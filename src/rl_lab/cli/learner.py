"""`lab learner +experiment=NAME ...`: a run that learns from what actors send."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated

import typer

from rl_lab.cli.options import ConfigDir, Debug, Json, Overrides, Plugin
from rl_lab.cli.report import Reported

if TYPE_CHECKING:
    from omegaconf import DictConfig

LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"


def learner(
    context: typer.Context,
    overrides: Overrides = None,
    run_dir: Annotated[
        str | None, typer.Option("--run-dir", help="Exactly this directory; a run in it is continued.")
    ] = None,
    config_dir: ConfigDir = None,
    plugin: Plugin = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Learn from actors: listen, take their steps, publish weights. `lab resume` continues it."""
    from rl_lab.cli.train import existing, train, wanted

    with Reported(debug):
        composed = wanted(overrides or [], existing(run_dir), config_dir, None)
        check_kind(composed, "a learner")
        _reject_samplers(composed)
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
    train(context, overrides, run_dir=run_dir, config_dir=config_dir, plugin=plugin, as_json=as_json, debug=debug)


def _reject_samplers(composed: DictConfig) -> None:
    from omegaconf import OmegaConf

    from rl_lab.core.errors import UsageError

    if (place := OmegaConf.select(composed, "transport.samplers")) is not None:
        raise UsageError(
            f"transport.samplers: {place} is for lab train; lab learner starts no actors, so it must be null"
        )


def check_kind(composed: DictConfig, who: str) -> None:
    """Refuse a config in which learner and actor are no processes of their own."""
    from omegaconf import OmegaConf

    from rl_lab.core.errors import UsageError

    kind = OmegaConf.select(composed, "transport.kind")  # early runs have no such block
    if kind not in ("host", "network"):
        raise UsageError(f"transport.kind: {who} of its own needs host or network, not {kind or 'null'}")
