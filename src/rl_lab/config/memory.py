"""What the buffers of a run will take up, and whether there is room for it, before the run begins.

Buffers take their memory when the first rows come in; what cannot fit is refused before there is a run directory.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from rl_lab.core.buffer import Buffer, Footprint
from rl_lab.core.errors import ConfigError
from rl_lab.core.free_memory import free_host_memory
from rl_lab.distributed.process_group import num_beside
from rl_lab.tracking.segments import PREFIX

DISK = "disk"
_OFFERED = 0.95  # of what is free: networks, batches and other programs want some of it too
_ON_DISK = 2  # times: mapped rows, and those of the last checkpoint; older ones share with it what did not change
_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


class NoRoom(ConfigError):
    """Buffers do not fit into one place.

    Attributes:
        fitting: By key of the config, the largest capacities that would.
    """

    def __init__(self, message: str, fitting: Mapping[str, int]) -> None:
        super().__init__(message)
        self.fitting = dict(fitting)


def check_room(
    buffers: Mapping[str, Buffer], nodes: Mapping[str, Any], root: Path, run: Path | None = None
) -> list[str]:
    """Return a line on the size of each buffer that knows it, or raise NoRoom when they do not fit.

    `nodes` are the buffers' config. Files go under `root`; those that an earlier process of `run` left there are room
    already taken, not wanted again.
    """
    places: dict[str, dict[str, Footprint]] = {}
    for name, buffer in buffers.items():
        for footprint in buffer.footprint():
            group = places.setdefault(_place(footprint), {})
            path = ".".join(filter(None, (name, footprint.part)))
            group[path] = _joined(group[path], footprint) if path in group else footprint
    for place, group in places.items():
        free = _free(place, root, run)
        if free is not None and not place.startswith("cuda"):
            free //= num_beside()  # each has buffers of its own
        if free is not None and sum(map(_bytes_there, group.values())) > free:
            keys = {
                path: footprint.sized_by or capacity_key(f"buffers.{path}", _node(nodes, path))
                for path, footprint in group.items()
            }
            raise _refusal(place, group, free, keys)
    return [_line(path, footprint) for group in places.values() for path, footprint in group.items()]


def _joined(one: Footprint, other: Footprint) -> Footprint:
    """Return what a buffer takes up for two things about the same steps."""
    return one._replace(num_bytes=one.num_bytes + other.num_bytes, capacity=max(one.capacity, other.capacity))


def _node(nodes: Mapping[str, Any], path: str) -> Any:
    node: Any = nodes
    for key in path.split("."):
        node = node.get(key) if isinstance(node, Mapping) else None
    return node


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


def _line(path: str, footprint: Footprint) -> str:
    return f"buffer {path}: {_need(footprint)} on {_place(footprint)} when full, without what act adds"


def _need(footprint: Footprint) -> str:
    per_step = -(-footprint.num_bytes // footprint.capacity)
    again = " and as much again in checkpoints" if _bytes_there(footprint) > footprint.num_bytes else ""
    return f"{footprint.capacity:,} steps of {per_step:,} bytes, {human(footprint.num_bytes)}{again}"


def _bytes_there(footprint: Footprint) -> int:
    is_twice = footprint.is_on_disk and footprint.is_in_checkpoints
    return footprint.num_bytes * (_ON_DISK if is_twice else 1)


def _refusal(place: str, group: Mapping[str, Footprint], free: int, keys: Mapping[str, str]) -> NoRoom:
    """Say what the largest buffer of those in one place would have to be; each of them when one alone cannot yield."""
    sizes = {name: _bytes_there(footprint) for name, footprint in group.items()}
    largest = max(sizes, key=lambda name: sizes[name])
    total = sum(sizes.values())
    others = total - sizes[largest]
    offered = int(_OFFERED * free)
    if others <= offered:
        fitting = {largest: offered - others}
    else:
        fitting = {name: size * offered // total for name, size in sizes.items()}
    wanted = "; ".join(f"{keys[name]}: {_need(group[name])}" for name in fitting)
    beside = f" beside {human(others)} of other buffers" if others and len(fitting) == 1 else ""
    most = {name: room * group[name].capacity // sizes[name] for name, room in fitting.items()}
    listed = ", ".join(f"{keys[name]}={count}" for name, count in most.items())
    text = f"{wanted}, does not fit{beside} into the {human(free)} that are free on {place}; at most {listed}"
    return NoRoom(text, {keys[name]: count for name, count in most.items()})


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
    free = shutil.disk_usage(place).free
    if run is None:
        return free
    rows = _allocated((run / "buffers").rglob("*"))
    copies = _allocated((run / "checkpoints").glob(f"*/{PREFIX}*"))
    return free + rows + min(rows, copies)  # further copies are of buffers in memory, or of steps long gone


def _allocated(paths: Iterable[Path]) -> int:
    """Return what files take up on the disk, each once however many names it has; holes take nothing."""
    files = {info.st_ino: info for path in paths if stat.S_ISREG((info := os.lstat(path)).st_mode)}
    return sum(min(info.st_size, info.st_blocks * 512) for info in files.values())
