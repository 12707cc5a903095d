"""Worlds on CPU threads: MuJoCo's own batch, in double precision, with the same bits at any number of threads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import torch
from mujoco.batch import DATA_FIELDS, MODEL_FIELDS, Batch, SimulationError
from torch import Tensor

from rl_lab.core import ConfigError, EnvironmentFault, unknown_name
from rl_lab.robots.sim.guard import dump_world, named_worlds
from rl_lab.robots.sim.home import home_data, home_key
from rl_lab.robots.sim.interface import STATE_FIELDS, BatchSim
from rl_lab.robots.sim.picture import Painter
from rl_lab.robots.sim.rays import TERRAIN_GROUPS

NOW = mujoco.mjtStage.mjSTAGE_VEL.value  # positions and velocities current, forces those of the last substep
FULL = [mujoco.mjtWarning.mjWARN_CONTACTFULL.value, mujoco.mjtWarning.mjWARN_CNSTRFULL.value]
NOT_FINITE = [
    mujoco.mjtWarning.mjWARN_BADQPOS.value,
    mujoco.mjtWarning.mjWARN_BADQVEL.value,
    mujoco.mjtWarning.mjWARN_BADQACC.value,
    mujoco.mjtWarning.mjWARN_BADCTRL.value,
]


class CpuSim(BatchSim):
    """MuJoCo on threads.

    Args:
        model: The compiled scene.
        num_envs: Number of worlds.
        device: Where the tensors live; the physics is always computed on the host.
        randomized: Model fields with a value per world.
        num_threads: Threads; 0 takes every core. The results do not depend on it.
        dump_dir: Where the state of a world that is not finite is written.
    """

    deterministic = True

    def __init__(
        self,
        model: mujoco.MjModel,
        num_envs: int,
        device: torch.device | str = "cpu",
        randomized: Sequence[str] = (),
        num_threads: int = 0,
        dump_dir: Path | str | None = None,
    ) -> None:
        self.model, self.num_envs, self.device = model, num_envs, torch.device(device)
        # one MjData per world: what a call does not compute keeps this world's value instead of another's
        self._batch = Batch(model, num_envs, num_threads, persistent=True)
        self._fields = {name: self._expand(name) for name in randomized}
        self._cache: dict[str, Tensor] = {}
        self._outputs: set[str] = set()  # computed fields that were asked for
        self._stale = np.ones(num_envs, bool)  # positions or velocities were written since the last call
        self._derive = np.zeros(num_envs, bool)  # model constants were written since they were last derived
        self._is_derived = False
        self._home, self._home_history = home_key(model), home_data(model).history.copy()
        self._before, self._steps, self.dump_dir = self._batch.state.copy(), 0, dump_dir
        self._faults: list[str] = []
        self._painter = Painter(model)
        self.reset(torch.ones(num_envs, dtype=torch.bool))
        self.forward()

    def _expand(self, name: str) -> np.ndarray:
        if name not in MODEL_FIELDS:
            raise ConfigError(unknown_name("model field to randomize", name, MODEL_FIELDS))
        return self._batch.expand(name)

    def read(self, name: str) -> Tensor:
        """Return a data field, [N, ...] float32; valid until the next call, never to be written to."""
        if name not in self._cache:
            if name not in DATA_FIELDS:
                raise ConfigError(unknown_name("data field", name, DATA_FIELDS))
            values = self._batch.bind(name)
            if not values.flags.writeable and name not in self._outputs:
                self._outputs.add(name)  # an output nobody asked for before is filled by the next call
                self._batch.forward(stage=NOW)
            self._cache[name] = torch.from_numpy(values.astype(np.float32)).to(self.device)
        return self._cache[name]

    def write(self, name: str, values: Tensor, mask: Tensor | None = None) -> None:
        """Write qpos, qvel, ctrl or xfrc_applied [N, ...] in all worlds, or in those of `mask` [N] bool."""
        if name not in STATE_FIELDS:
            raise ConfigError(unknown_name("field to write", name, STATE_FIELDS))
        rows = slice(None) if mask is None else mask.cpu().numpy()
        self._batch.bind(name)[rows] = values.detach().cpu().numpy()[rows]
        self._cache.pop(name, None)
        if name in ("qpos", "qvel"):
            self._stale[rows] = True

    def step(self, substeps: int) -> None:
        """Advance all worlds by `substeps` of the model's timestep with the present controls."""
        np.copyto(self._before, self._batch.state)
        self._call("step", nstep=substeps, stage=NOW)
        self._stale[:] = False
        self._steps += 1
        self._watch(substeps)

    def reset(self, mask: Tensor) -> None:
        """Put those worlds into the keyframe "home" (else qpos0) at time zero, everything else cleared; no forward."""
        worlds = np.flatnonzero(mask.cpu().numpy())
        if len(worlds):
            self._call("reset", worlds, keyframe=self._home, stage=mujoco.mjtStage.mjSTAGE_NONE.value)
            self._batch.bind("history")[worlds] = self._home_history
            self._stale[worlds] = True

    def forward(self) -> None:
        """Make the fields that positions and velocities determine current in every world."""
        if self._stale.any():
            self._call("forward", np.flatnonzero(self._stale), stage=NOW)
            self._stale[:] = False

    def read_model(self, name: str) -> Tensor:
        """Return the per-world values [N, ...] float32 of a model field that was declared as randomized."""
        return torch.from_numpy(self._field(name).astype(np.float32)).to(self.device)

    def write_model(self, name: str, values: Tensor, mask: Tensor | None = None) -> None:
        """Write the per-world values of a model field that was declared as randomized."""
        rows = slice(None) if mask is None else mask.cpu().numpy()
        self._field(name)[rows] = values.detach().cpu().numpy()[rows]
        self._stale[rows] = True
        self._derive[rows] = True

    def _field(self, name: str) -> np.ndarray:
        if name not in self._fields:
            raise ConfigError(unknown_name("randomized model field", name, self._fields))
        return self._fields[name]

    def recompute(self) -> None:
        """Derive the model's constants again after masses, inertias, positions or armatures were written."""
        if self._derive.any():
            self._call("set_const", np.flatnonzero(self._derive))
            self._derive[:], self._is_derived = False, True

    def rays(self, origins: Tensor, directions: Tensor) -> Tensor:
        """Return the distances [N, R] from world points [N, R, 3] along unit vectors to the terrain; -1 where none."""
        points, vectors = origins.cpu().double().numpy(), directions.cpu().double().numpy()
        distances, _ = self._batch.ray(points, vectors, geomgroup=TERRAIN_GROUPS)
        return torch.from_numpy(distances).to(self.device, torch.float32)

    def _call(self, method: str, *args: Any, **options: Any) -> None:
        """Run a method of the batch; what was read before is no longer current."""
        self._cache.clear()
        try:
            getattr(self._batch, method)(*args, **options)
        except SimulationError as error:
            raise EnvironmentFault(f"simulation: {' '.join(str(error).split())}") from None

    def _watch(self, substeps: int) -> None:
        """Note worlds that MuJoCo warned about in this step; the state before it is written down for a replay."""
        counts = self._batch.warning[:, :, 1]
        if not counts.any():
            return
        if (full := np.flatnonzero(counts[:, FULL].any(1))).size:
            self._faults.append(f"the contact buffer was too small in world {named_worlds(full)}: raise <size memory>")
        if (bad := np.flatnonzero(counts[:, NOT_FINITE].any(1))).size:
            world = int(bad[0])
            path = dump_world(
                self._batch.get_model(world), {"row": self._before[world]}, world, substeps, self.dump_dir
            )
            self._faults.append(
                f"{len(bad)} of {self.num_envs} worlds ({named_worlds(bad)}) were not finite in step {self._steps}; "
                f"rl_lab.robots.sim.guard.load_dump({str(path)!r}) repeats it"
            )
        self._batch.warning[:] = 0

    def check(self) -> None:
        """Raise EnvironmentFault where a world was not finite or a contact buffer too small since the last check."""
        if self._faults:
            first, self._faults = self._faults[0], []
            raise EnvironmentFault(f"simulation: {first}")

    def get_state(self) -> dict[str, Any]:
        """Return all that is needed to go on exactly here, per-world model fields included."""
        return {
            "rows": torch.from_numpy(self._batch.state.copy()),
            "model": {name: torch.from_numpy(values.copy()) for name, values in self._fields.items()},
            "forces": {name: self.read(name).clone() for name in sorted(self._outputs)},
            "stale": torch.from_numpy(self._stale.copy()),
            "is_derived": self._is_derived,
            "steps": self._steps,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from `state`, of the same model and number of worlds."""
        rows = torch.as_tensor(state["rows"]).numpy()
        if rows.shape != self._batch.state.shape or set(state["model"]) != set(self._fields):
            raise EnvironmentFault(
                f"simulation: a state of {rows.shape[0]} worlds x {rows.shape[1]} with own {sorted(state['model'])} "
                f"does not fit {self.num_envs} x {self._batch.nstate} with {sorted(self._fields)}"
            )
        for name, values in state["model"].items():
            self._fields[name][:] = torch.as_tensor(values).numpy()
        if state["is_derived"]:
            self._call("set_const")
        for name in state["forces"]:
            self._batch.bind(name)
            self._outputs.add(name)
        self._batch.state[:] = rows
        self._call("forward", stage=NOW)
        # forces belong to the substep before this state: they cannot be computed from it
        self._cache = {name: torch.as_tensor(values).to(self.device) for name, values in state["forces"].items()}
        self._stale[:] = torch.as_tensor(state["stale"]).numpy()
        self._derive[:], self._is_derived, self._steps = False, state["is_derived"], state["steps"]

    def render(self, env: int = 0, width: int = 320, height: int = 240) -> Tensor:
        """Return a picture of one world, [H, W, 3] uint8."""
        return self._painter.draw(self._batch.bind("qpos")[env], width, height)

    def close(self) -> None:
        """Free the window."""
        self._painter.close()
