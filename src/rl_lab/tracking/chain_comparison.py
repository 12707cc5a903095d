"""Where the hash chains of two runs part: the first link that differs, and of which stream it is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rl_lab.tracking.divergence import Divergence
from rl_lab.tracking.hash_chain import STEP, STREAMS, UPDATE
from rl_lab.tracking.run_directory import RunDirectory

Links = npt.NDArray[np.void]
STEPS = np.dtype([("env_steps", "<u8"), *((name, "<u4") for name in STREAMS)])
UPDATES = np.dtype([("update", "<u8"), ("env_steps", "<u8"), ("parameters", "<u4")])
assert (STEPS.itemsize, UPDATES.itemsize) == (STEP.size, UPDATE.size)


class Compared(NamedTuple):
    """How many links of two chains were compared, up to which env step, and where they part."""

    links: int
    env_steps: int
    divergence: Divergence | None


def compare_steps(original: RunDirectory, replica: RunDirectory, limit: int | None = None) -> Compared:
    """Compare observations, actions and rewards of every vector step up to env step `limit`, as far as both have it."""
    first, second = (_read(run.step_chain_file, STEPS, limit) for run in (original, replica))
    return _compared(first, second, "vector step")


def compare_updates(original: RunDirectory, replica: RunDirectory, limit: int | None = None) -> Compared:
    """Compare the parameters after every update up to env step `limit`, as far as both have it."""
    first, second = (_read(run.update_chain_file, UPDATES, limit) for run in (original, replica))
    return _compared(first, second, "update")


def last_chained_step(file: Path) -> int:
    """Return the env step of the newest link of a chain of steps; 0 where there is none."""
    if not file.is_file():
        return 0
    with open(file, "rb") as links:
        whole = os.fstat(links.fileno()).st_size // STEPS.itemsize
        links.seek(max(0, whole - 1) * STEPS.itemsize)
        newest = np.frombuffer(links.read(STEPS.itemsize if whole else 0), STEPS)
    return int(newest["env_steps"][0]) if len(newest) else 0


def _read(file: Path, kind: np.dtype[np.void], limit: int | None) -> Links:
    """Return the links of a chain; half a link, which a killed process left, is passed over."""
    content = file.read_bytes() if file.is_file() else b""
    links = np.frombuffer(content, kind, count=len(content) // kind.itemsize)
    return links if limit is None else links[links["env_steps"] <= limit]


def _compared(first: Links, second: Links, what: str) -> Compared:
    count = min(len(first), len(second))
    if count == 0:
        return Compared(0, 0, None)
    first, second = first[:count], second[:count]
    wrong = first != second
    place = int(wrong.argmax())
    divergence = _divergence(first[place], second[place], f"{what} {place + 1}") if wrong[place] else None
    return Compared(count, int(first["env_steps"][-1]), divergence)


def _divergence(was: np.void, is_now: np.void, what: str) -> Divergence:
    """Return which stream of a link differs first; a link counts all before it, so later ones differ as well."""
    names = [name for name in (was.dtype.names or ()) if was[name] != is_now[name]]
    stream = names[0] if names[0] in (*STREAMS, "parameters") else "counters"
    return Divergence(int(was["env_steps"]), stream, f"{what} of the hash chain differs in {', '.join(names)}")
