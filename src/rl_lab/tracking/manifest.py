"""What is true of the machine, the code and the command of a run: enough to say why two runs differ."""

from __future__ import annotations

import os
import platform
import socket
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any, Literal

import torch

import rl_lab
from rl_lab.tracking.code_snapshot import git_commit

_PACKAGES = ("torch", "numpy", "hydra-core", "omegaconf", "pydantic", "safetensors", "gymnasium", "mujoco", "ale-py")


def build_manifest(
    *,
    seed: int,
    device: str,
    exact_resume: bool | Literal["state"],
    updates: str = "eager",
    argv: Sequence[str] | None = None,
    parent: str | None = None,
) -> dict[str, Any]:
    """Return the fields for `RunDirectory.write_manifest`."""
    return {
        "seed": seed,
        "device": device,
        "device_name": torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.machine(),
        "threads": torch.get_num_threads(),
        "cpus": os.cpu_count(),
        "exact_resume": exact_resume,
        "updates": updates,
        "argv": list(sys.argv if argv is None else argv),
        "cwd": os.getcwd(),
        "parent": parent,
        "git_commit": git_commit(),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python, the lab and the packages that change numbers."""
    found = {"python": platform.python_version(), "rl_lab": rl_lab.__version__}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
