"""Where trials run: as many at once as there are slots, each with GPUs of its own where there are any."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from rl_lab.core.errors import ConfigError

VISIBLE = "CUDA_VISIBLE_DEVICES"


class Slot(NamedTuple):
    """A place for one trial."""

    number: int
    gpus: tuple[str, ...] | None  # None: the machine has none, and nothing is set

    @property
    def variables(self) -> dict[str, str]:
        """Return what the process of a trial finds in its environment."""
        return {} if self.gpus is None else {VISIBLE: ",".join(self.gpus)}


def make_slots(parallel_jobs: int | None, gpus_per_trial: int | None, gpus: Sequence[str], cores: int) -> list[Slot]:
    """Share out the GPUs: `gpus_per_trial` to each, or one that several trials share."""
    if not gpus and gpus_per_trial:
        raise ConfigError(f"gpus_per_trial: {gpus_per_trial} are wanted, but this machine has no GPU")
    if not gpus or gpus_per_trial == 0:
        hidden = () if gpus else None
        return [Slot(index, hidden) for index in range(parallel_jobs or cores)]
    each = gpus_per_trial or 1
    groups = [tuple(gpus[start : start + each]) for start in range(0, len(gpus) - each + 1, each)]
    if not groups:
        raise ConfigError(f"gpus_per_trial: {each} are wanted, but {len(gpus)} are here")
    count = parallel_jobs or len(groups)
    if gpus_per_trial is not None and count > len(groups):
        raise ConfigError(f"parallel_jobs: {count} trials with {each} GPUs each need {count * each}, not {len(gpus)}")
    return [Slot(index, groups[index % len(groups)]) for index in range(count)]


def list_gpus(variables: Mapping[str, str] = os.environ, devices: Path = Path("/dev")) -> list[str]:
    """Return the GPUs that this process may use, as CUDA names them, without loading CUDA."""
    if VISIBLE in variables:
        return [name.strip() for name in variables[VISIBLE].split(",") if name.strip() not in ("", "-1")]
    found = [re.fullmatch(r"nvidia(\d+)", path.name) for path in devices.glob("nvidia[0-9]*")]
    return sorted((match[1] for match in found if match), key=int)


def num_cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Return how many cores this process may use: those it is bound to, and no more than its container is granted."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # only Linux has it
        cores = os.cpu_count() or 1
    with suppress(OSError, ValueError):  # no such container, or "max": no quota
        granted, period = map(int, quota.read_text().split())  # microseconds
        cores = min(cores, max(1, granted // period))
    return cores
