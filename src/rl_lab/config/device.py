"""Where and how torch computes: device, threads, deterministic algorithms."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from rl_lab.core.errors import ConfigError
from rl_lab.distributed.process_group import local_rank


def choose_device(name: str) -> torch.device:
    """Return the device of `experiment.device`; `auto` is this process's GPU, the first one, when there is one."""
    count = torch.cuda.device_count()
    device = torch.device(("cuda" if count else "cpu") if name == "auto" else name)
    if device.type != "cuda":
        return device
    if (index := local_rank() if device.index is None else device.index) >= count:
        choices = ", ".join(["auto", "cpu", *(f"cuda:{index}" for index in range(count))])
        raise ConfigError(f"experiment.device: {name!r} is not on this machine (choices: {choices})")
    return torch.device("cuda", index)  # with a number: torch.cuda takes no other


def prepare_torch(experiment: Mapping[str, Any]) -> torch.device:
    """Set threads and determinism as the run asks for, and return its device."""
    device = choose_device(experiment["device"])
    torch.set_num_threads(experiment["num_threads"])
    if experiment["deterministic"] and device.type == "cuda":
        os.environ.setdefault(
            "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
        )  # cuBLAS is deterministic only with a fixed workspace
    if device.type == "cuda":
        torch.cuda.set_device(device)  # streams and graphs are made on the current one
    if experiment["precision"] == "tf32" and device.type != "cuda":
        raise ConfigError("experiment.precision: tf32 needs a GPU (choices: float32, bfloat16)")
    torch.backends.cuda.matmul.allow_tf32 = experiment["precision"] != "float32"
    torch.use_deterministic_algorithms(experiment["deterministic"])
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # nothing reads it
    torch.backends.cudnn.benchmark = not experiment["deterministic"]
    return device


def autocast(precision: str, device: torch.device) -> Callable[[], torch.autocast] | None:
    """Return what makes matrix products low; without a cache: an update changes weights and then reads them again."""
    if precision != "bfloat16":
        return None
    return partial(torch.autocast, device.type, dtype=torch.bfloat16, cache_enabled=False)
