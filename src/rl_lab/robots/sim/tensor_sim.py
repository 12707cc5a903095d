"""What a simulation does whose fields are torch tensors in place: reading, writing, its faults and its exact state."""

from __future__ import annotations

from abc import abstractmethod
from copy import copy
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import torch
from torch import Tensor

from rl_lab.core import ConfigError, EnvironmentFault, unknown_name
from rl_lab.robots.sim.guard import dump_world, named_worlds
from rl_lab.robots.sim.interface import STATE_FIELDS, BatchSim
from rl_lab.robots.sim.picture import Painter

SAVED = ("time", "qpos", "qvel", "act", "history", "qacc_warmstart", "ctrl", "qfrc_applied", "xfrc_applied")
FORCES = ("sensordata", "actuator_force", "qacc")  # of the last substep: cannot be computed from the state after it
REPLAYED = ("qpos", "qvel", "act", "history", "qacc_warmstart", "ctrl", "xfrc_applied")


class TensorSim(BatchSim):
    """Keeps per-world tensors by name; a subclass owns their memory and runs the physics on it."""

    _is_bad: Tensor  # [N] int: the world was not finite
    _lost: Tensor  # [N] int: bits of the buffers that overflowed
    _kept: dict[str, Tensor]  # the state before the step in which a world stopped being finite, [N, columns]
    _room: str  # what there is room for

    def __init__(self, model: mujoco.MjModel, num_envs: int, device: torch.device, dump_dir: Path | str | None) -> None:
        self.model, self.num_envs, self.device = model, num_envs, device
        self._host = mujoco.MjData(model)  # shapes
        self._views: dict[str, Tensor] = {}
        self._fields: dict[str, Tensor] = {}  # model fields with a value per world
        self._randomized: tuple[str, ...] = ()
        self._is_stale, self._substeps, self.dump_dir = True, 1, dump_dir
        self._painter = Painter(model)

    @abstractmethod
    def _open(self, name: str) -> Tensor | None:
        """Return a data field's memory as a tensor [N, ...], None when there is no such field."""

    @abstractmethod
    def _overflow_names(self, bits: int) -> str:
        """Return the names of the buffers that overflowed."""

    @property
    def is_stale(self) -> bool:
        """Whether something was written that `forward` has not seen."""
        return self._is_stale

    def _data(self, name: str) -> Tensor:
        if name not in self._views:
            view = self._open(name)
            if view is None:
                names = [field for field in dir(self._host) if not field.startswith("_")]
                raise ConfigError(unknown_name("data field", name, names))
            self._views[name] = view
        return self._views[name]

    def read(self, name: str) -> Tensor:
        """Return a data field, [N, ...] float32; valid until the next call, never to be written to."""
        return self._data(name).float()

    def write(self, name: str, values: Tensor, mask: Tensor | None = None) -> None:
        """Write qpos, qvel, ctrl or xfrc_applied [N, ...] in all worlds, or in those of `mask` [N] bool."""
        if name not in STATE_FIELDS:
            raise ConfigError(unknown_name("field to write", name, STATE_FIELDS))
        write_rows(self._data(name), values, mask)
        self._is_stale |= name in ("qpos", "qvel")

    def read_model(self, name: str) -> Tensor:
        """Return the per-world values [N, ...] float32 of a model field that was declared as randomized."""
        if name not in self._randomized:
            raise ConfigError(unknown_name("randomized model field", name, self._randomized))
        return self._fields[name].float()

    def write_model(self, name: str, values: Tensor, mask: Tensor | None = None) -> None:
        """Write the per-world values of a model field that was declared as randomized."""
        self.read_model(name)
        write_rows(self._fields[name], values, mask)
        self._is_stale = True

    def check(self) -> None:
        """Raise EnvironmentFault where a world was not finite or a contact buffer too small since the last check."""
        faults = torch.stack([self._is_bad, self._lost]).cpu().numpy()
        bad, full = np.flatnonzero(faults[0]), np.flatnonzero(faults[1])
        if bad.size:
            self._is_bad.zero_()
            raise EnvironmentFault(
                f"simulation: {len(bad)} of {self.num_envs} worlds ({named_worlds(bad)}) are not finite; "
                f"rl_lab.robots.sim.guard.load_dump({str(self._dump(int(bad[0])))!r}) repeats the step"
            )
        if full.size:
            self._lost.zero_()
            kinds = self._overflow_names(int(np.bitwise_or.reduce(faults[1])))
            raise EnvironmentFault(
                f"simulation: contact buffers overflowed ({kinds}) in {len(full)} of {self.num_envs} worlds "
                f"({named_worlds(full)}): there was room for {self._room}"
            )

    def _dump(self, world: int) -> Path:
        """Write down the model of a world and its state before the step in which it stopped being finite."""
        state = {
            name: kept[world].cpu().numpy().astype(np.float64).reshape(getattr(self._host, name).shape)
            for name, kept in self._kept.items()
        }
        return dump_world(self._world_model(world), state, world, self._substeps, self.dump_dir)

    def _world_model(self, world: int) -> mujoco.MjModel:
        """Return the host model with one world's own fields."""
        model = copy(self.model)
        for name, values in self._fields.items():
            owner = model.opt if name.startswith("opt.") else model
            host = np.asarray(getattr(owner, name.removeprefix("opt.")))
            own = values[world].cpu().numpy().astype(host.dtype).reshape(host.shape)
            if host.ndim:
                getattr(owner, name.removeprefix("opt."))[:] = own
            else:
                setattr(owner, name.removeprefix("opt."), own.item())
        return model

    def get_state(self) -> dict[str, Any]:
        """Return all that is needed to go on exactly here, per-world model fields included."""
        return {
            "data": {name: self._data(name).clone() for name in (*SAVED, *FORCES)},
            "model": {name: values.clone() for name, values in self._fields.items()},
            "is_stale": self._is_stale,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from `state`, of the same model and number of worlds."""
        shapes = {name: tuple(values.shape) for name, values in state["data"].items()}
        own = {name: tuple(self._data(name).shape) for name in (*SAVED, *FORCES)}
        if shapes != own or set(state["model"]) != set(self._fields):
            found = f"{shapes.get('qpos')} with per-world {sorted(state['model'])}"
            raise EnvironmentFault(
                f"simulation: a state of qpos {found} does not fit {own['qpos']} with {sorted(self._fields)}"
            )
        for name, values in state["data"].items():
            self._data(name).copy_(torch.as_tensor(values))
        for name, values in state["model"].items():
            self._fields[name].copy_(torch.as_tensor(values))
        self._is_bad.zero_()
        self._lost.zero_()
        self._is_stale = True
        self.forward()
        self._is_stale = bool(state["is_stale"])

    def render(self, env: int = 0, width: int = 320, height: int = 240) -> Tensor:
        """Return a picture of one world, [H, W, 3] uint8."""
        return self._painter.draw(self._data("qpos")[env].cpu().numpy(), width, height)

    def close(self) -> None:
        """Free the window."""
        self._painter.close()


def write_rows(target: Tensor, values: Tensor, mask: Tensor | None) -> None:
    """Write `values` into the rows of `mask` in place, without looking at the mask on the host."""
    values = values.to(target)
    if mask is None:
        target.copy_(values.expand_as(target))
    else:
        is_row = mask.to(target.device).view(-1, *[1] * (target.ndim - 1))
        torch.where(is_row, values, target, out=target)
