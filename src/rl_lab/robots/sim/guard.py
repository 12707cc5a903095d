"""What is left behind when a world is not finite: its model and the state before the fatal step, to repeat it."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import mujoco
import numpy as np

SHOWN = 5  # worlds named in an error


class Dump(NamedTuple):
    """A step of one world that did not stay finite."""

    model: mujoco.MjModel
    data: mujoco.MjData  # before the step, its controls written
    substeps: int


def dump_world(
    model: mujoco.MjModel, state: Mapping[str, np.ndarray], world: int, substeps: int, folder: Path | str | None
) -> Path:
    """Write one world's model and the state it had before its last step; return the directory."""
    root = Path(folder) if folder else Path(tempfile.gettempdir())
    path = root / f"not_finite_{uuid.uuid4().hex[:8]}_world{world}"
    path.mkdir(parents=True)
    mujoco.mj_saveModel(model, str(path / "model.mjb"), None)
    arrays: dict[str, Any] = {**state, "substeps": np.array(substeps)}
    np.savez(path / "state.npz", **arrays)
    return path


def load_dump(path: Path | str) -> Dump:
    """Return what `dump_world` wrote: `mujoco.mj_step(dump.model, dump.data, dump.substeps)` repeats the step."""
    model = mujoco.MjModel.from_binary_path(str(Path(path) / "model.mjb"))
    data = mujoco.MjData(model)
    with np.load(Path(path) / "state.npz", allow_pickle=False) as saved:
        if "row" in saved:
            mujoco.mj_setState(model, data, saved["row"], mujoco.mjtState.mjSTATE_INTEGRATION)
        else:
            for name in set(saved.files) - {"substeps"}:
                np.copyto(getattr(data, name), saved[name])
        substeps = int(saved["substeps"])
    return Dump(model, data, substeps)


def named_worlds(worlds: np.ndarray) -> str:
    """Return the numbers of the first few worlds."""
    return ", ".join(str(world) for world in worlds[:SHOWN]) + (", ..." if len(worlds) > SHOWN else "")
