"""What `lab data stats` does: reads everything, computes statistics and compares."""

from __future__ import annotations

from typing import Any

import numpy as np

from rl_lab.buffers.datasets.faults import find_faults
from rl_lab.buffers.datasets.format import Array, EpisodeReader
from rl_lab.buffers.datasets.lerobot_stats import join_stats
from rl_lab.buffers.datasets.statistics import compute, repair_lerobot, verify_lerobot
from rl_lab.core.errors import UsageError


def check_dataset(reader: EpisodeReader, *, repair: bool = False) -> dict[str, Any]:
    """Return statistics, notes and damage of a dataset, as a tree for JSON."""
    if repair and reader.format != "lerobot":
        raise UsageError(f"--repair: only LeRobot keeps statistics in its files, {reader.path} is {reader.format}")
    faults = list(find_faults(reader))
    damage = [f"episode {fault.episode}: {fault.text}" for fault in faults if fault.is_damage]
    notes = [f"episode {fault.episode}: {fault.text}" for fault in faults if not fault.is_damage]
    found = {"path": str(reader.path), "format": reader.format, "episodes": len(reader.lengths)}
    if damage:
        return {**found, "statistics": {}, "notes": notes, "damage": damage}
    computed = compute(reader)
    if reader.format == "lerobot":
        wrong = verify_lerobot(reader.path, computed)
        if wrong and repair:
            repair_lerobot(reader.path, computed)
            notes.append(f"{len(wrong)} statistics were wrong and are repaired")
        else:
            damage = wrong
    statistics = {
        name: {key: _short(value) for key, value in part.items()} for name, part in join_stats(computed).items()
    }
    return {**found, "statistics": statistics, "notes": notes, "damage": damage}


def _short(value: Array) -> Any:
    """Return a statistic for JSON, with few digits."""
    if value.dtype.kind in "iu":
        return value.ravel().tolist() if value.size > 1 else int(value.ravel()[0])
    numbers = [float(f"{number:.5g}") for number in value.astype(np.float64).ravel()]
    return numbers[0] if len(numbers) == 1 else numbers
