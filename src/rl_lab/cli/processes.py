"""Commands that several processes run together: `experiment.devices=N`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from omegaconf import DictConfig

from rl_lab.cli.code_state import START, arguments_of
from rl_lab.config.parallel import joined, num_wanted
from rl_lab.core.ranks import Ranks
from rl_lab.distributed.launch import launch
from rl_lab.distributed.process_group import num_started


@contextmanager
def ranks_of(context: typer.Context, composed: DictConfig) -> Iterator[Ranks]:
    """Yield this process among those that train a config.

    Where it asks for several and nobody has started them, this very command runs in all of them, and this process
    leaves with their exit code.
    """
    if (count := num_wanted(composed)) > 1 and num_started() == 1:
        raise typer.Exit(launch([sys.executable, "-c", START, *arguments_of(context)], count))
    with joined(composed) as ranks:
        yield ranks
