"""What the buffers of a run will take up, and whether there is room for it, before the run begins.

Buffers take their memory when the first rows come in; what cannot fit is refused before there is a run directory.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from rl_lab.config.free_memory import free_host_memory
from rl_lab.core.buffer import Buffer, Footprint
from rl_lab.core.errors import ConfigError

DISK = "disk"
_OFFERED = 0.95  # of what is free: networks, batches and other programs want some of it too
_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


def check_room(
    buffers: Mapping[str, Buffer], nodes: Mapping[str, Any], root: Path, run: Path | None = None
) -> list[str]:
    """Return a line on the size of each buffer that knows it, or raise a ConfigError when they do not fit.

    `nodes` are the buffers' config. Files go under `root`; those that an earlier process of `run` left there are room
    already taken, not wanted again.
    """
    prints = {name: found for name, buffer in buffers.items() if (found := buffer.footprint()) is not None}
    places: dict[str, dict[str, Footprint]] = {}
    for name, footprint in prints.items():
        places.setdefault(_place(footprint), {})[name] = footprint
    for place, group in places.items():
        free = _free(place, root, run)
        if free is not None and sum(footprint.num_bytes for footprint in group.values()) > free:
            keys = {name: capacity_key(f"buffers.{name}", nodes.get(name)) for name in group}
            raise ConfigError(_refusal(place, group, free, keys))
    return [_line(name, footprint) for name, footprint in prints.items()]


def capacity_key(path: str, node: Any) -> str:
    """Return where the config says how large a buffer is: its own capacity, or those of the buffers within it."""
    within = list(_capacities(path, node))
    is_own = not within or f"{path}.capacity" in within
    return f"{path}.capacity" if is_own else " + ".join(within)


def _capacities(path: str, node: Any) -> Iterator[str]:
    entries = node.items() if isinstance(node, Mapping) else enumerate(node) if isinstance(node, list | tuple) else ()
    for key, value in entries:
        if key == "capacity":
            yield f"{path}.capacity"
        yield from _capacities(f"{path}.{key}", value)


def human(num_bytes: float) -> str:
    """Return a size in decimal units."""
    power = 0
    while num_bytes >= 1000 and power < len(_UNITS) - 1:
        num_bytes, power = num_bytes / 1000, power + 1
    return f"{num_bytes:.0f} {_UNITS[power]}" if power == 0 else f"{num_bytes:.1f} {_UNITS[power]}"


def _line(name: str, footprint: Footprint) -> str:
    return f"buffer {name}: {_need(footprint)} on {_place(footprint)} when full"


def _need(footprint: Footprint) -> str:
    per_step = -(-footprint.num_bytes // footprint.capacity)
    return f"{footprint.capacity:,} steps of {per_step:,} bytes, {human(footprint.num_bytes)}"


def _refusal(place: str, group: Mapping[str, Footprint], free: int, keys: Mapping[str, str]) -> str:
    """Say what the largest buffer of those in one place would have to be; each of them when one alone cannot yield."""
    largest = max(group, key=lambda name: group[name].num_bytes)
    total = sum(footprint.num_bytes for footprint in group.values())
    others = total - group[largest].num_bytes
    offered = int(_OFFERED * free)
    if others <= offered:
        fitting = {largest: offered - others}
    else:
        fitting = {name: footprint.num_bytes * offered // total for name, footprint in group.items()}
    wanted = "; ".join(f"{keys[name]}: {_need(group[name])}" for name in fitting)
    beside = f" beside {human(others)} of other buffers" if others and len(fitting) == 1 else ""
    most = {name: room * group[name].capacity // group[name].num_bytes for name, room in fitting.items()}
    listed = ", ".join(f"{keys[name]}={count}" for name, count in most.items())
    return f"{wanted}, does not fit{beside} into the {human(free)} that are free on {place}; at most {listed}"


def _place(footprint: Footprint) -> str:
    """Return `disk`, `cpu` or the name of the GPU."""
    if footprint.is_on_disk:
        return DISK
    device = footprint.device
    if device.type == "cuda" and device.index is None:
        return f"cuda:{torch.cuda.current_device()}"
    return str(device)


def _free(place: str, root: Path, run: Path | None) -> int | None:
    """Return the bytes that are free there, or None when nobody knows."""
    if place == DISK:
        return _free_on_disk(root, run)
    if place == "cpu":
        return free_host_memory()
    if place.startswith("cuda"):
        unused = torch.cuda.memory_reserved(place) - torch.cuda.memory_allocated(place)  # torch keeps it for later
        return torch.cuda.mem_get_info(place)[0] + unused
    return None


def _free_on_disk(root: Path, run: Path | None) -> int:
    place = root.absolute()
    while not place.exists():
        place = place.parent
    taken = 0
    for folder, _, names in os.walk(run / "buffers") if run is not None else ():
        taken += sum(os.lstat(os.path.join(folder, name)).st_size for name in names)
    return shutil.disk_usage(place).free + taken
