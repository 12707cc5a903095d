"""Runs a `lab` command in a forked process; importing this module imports all that is slow to import."""

import os
import sys
from pathlib import Path

import torch
import torch.utils.tensorboard

import rl_lab.cli.running
import rl_lab.environments.gymnasium
import rl_lab.workflows.ppo  # noqa: F401


def run_lab(arguments: list[str], directory: str, file: str = "output.txt") -> None:
    """Run `lab ARGUMENTS` in `directory`, its output in a file there."""
    from rl_lab.cli.main import app

    os.chdir(directory)
    with Path(file).open("w") as output:
        sys.stdout = sys.stderr = output
        torch.manual_seed(os.getpid())
        app(arguments)
