"""Worlds on a GPU: mujoco_warp, its arrays seen as torch tensors, each call one CUDA graph.

A step is [forces, integrate, positions and velocities] x substeps: what the last call computed of the present state is
gone on from, so that current fields cost no extra pass. On warp's CPU device the same code runs without graphs.
"""

import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mujoco
import mujoco_warp as mjw
import numpy as np
import torch
import warp as wp
from torch import Tensor

from rl_lab.core import ConfigError
from rl_lab.robots.sim.home import home_data, home_key
from rl_lab.robots.sim.rays import TERRAIN_GROUPS
from rl_lab.robots.sim.sizes import DERIVED, constraint_room, contact_room
from rl_lab.robots.sim.tensor_sim import REPLAYED, TensorSim, write_rows
from rl_lab.robots.sim.warp_kernels import keep_rows, restore_columns, watch
from rl_lab.robots.sim.warp_order import StableOrder, orderable

wp.config.log_level = wp.LOG_WARNING  # every kernel that is loaded is an info
wp.init()

HARMLESS = mjw.OverflowType.ITERATIONS | mjw.OverflowType.LS_ITERATIONS  # the solver's budget, not a lost contact


class WarpSim(TensorSim):
    """mujoco_warp on a CUDA device, or on the CPU for checks.

    Args:
        model: The compiled scene.
        num_envs: Number of worlds.
        device: Where the tensors live and the physics runs.
        randomized: Model fields with a value per world.
        deterministic: Contacts, constraint rows and sums are in order, which is slower.
        contacts: Contacts per world there is room for, on average.
        constraints: Constraint rows per world there is room for.
        dump_dir: Where the state of a world that is not finite is written.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        num_envs: int,
        device: torch.device | str = "cuda",
        randomized: Sequence[str] = (),
        deterministic: bool = False,
        contacts: int | None = None,
        constraints: int | None = None,
        dump_dir: Path | str | None = None,
    ) -> None:
        super().__init__(model, num_envs, torch.device(device), dump_dir)
        if self.device.type == "cuda" and self.device.index is None:  # Warp wants its number
            self.device = torch.device("cuda", torch.cuda.current_device())
        self._is_in_order = deterministic
        self.deterministic = deterministic and self.device.type == "cpu"  # on a GPU it has not been shown
        self._place = wp.device_from_torch(self.device)
        self.uses_graphs = self._place.is_cuda and wp.is_mempool_enabled(self._place)
        with wp.ScopedDevice(self._place):
            placed = orderable(model) if deterministic else model
            self._m = self._put_model(placed, randomized)
            contacts, constraints = contacts or contact_room(model), constraints or constraint_room(model)
            self._d = mjw.make_data(placed, nworld=num_envs, nconmax=contacts, njmax=constraints)
            self._order = StableOrder(self._m, self._d) if deterministic else None
            self._allocate()
        self._room = f"contacts {self._d.naconmax // num_envs} and constraints {self._d.njmax} per world"
        self._graphs: dict[tuple[str, int], Any] = {}
        self._streams: dict[int, Any] = {}
        self._warm_up()

    def _put_model(self, model: mujoco.MjModel, randomized: Sequence[str]) -> Any:
        """Return the model on the device; randomized fields, and what follows from them, have a value per world."""
        derived = [name for field in randomized for name in DERIVED.get(field, ())]
        fields = [name for name in dict.fromkeys((*randomized, *derived)) if not name.startswith("opt.")]
        try:
            m = mjw.put_model(model, batch_sizes=dict.fromkeys(fields, self.num_envs))
        except (ValueError, NotImplementedError) as error:
            raise ConfigError(f"simulation backend 'warp': {' '.join(str(error).split())}") from None
        options = [name.removeprefix("opt.") for name in randomized if name.startswith("opt.")]
        for name in options:
            values = np.repeat(getattr(m.opt, name).numpy(), self.num_envs, axis=0)
            setattr(m.opt, name, wp.array(values, dtype=getattr(m.opt, name).dtype))
        m.opt.deterministic = mjw.DeterminismType.ALL if self._is_in_order else mjw.DeterminismType.NONE
        m.opt.warn_overflow = 0  # printing costs time: `watch` counts instead
        self._fields = {name: self._view(getattr(m, name), getattr(self.model, name)) for name in fields}
        for name in options:
            self._fields[f"opt.{name}"] = self._view(getattr(m.opt, name), np.asarray(getattr(self.model.opt, name)))
        self._randomized = tuple(randomized)
        return m

    def _view(self, array: Any, host: np.ndarray) -> Tensor:
        """Return a device array as a tensor [N, ...] of the host field's shape, without a copy."""
        tensor = wp.to_torch(array)
        return tensor.view(self.num_envs, *host.shape) if tensor.numel() == self.num_envs * host.size else tensor

    def _allocate(self) -> None:
        """Make the arrays whose addresses the graphs keep."""
        model, count, home = self.model, self.num_envs, home_data(self.model)
        self._mask, self._key = wp.zeros(count, dtype=bool), wp.zeros(count, dtype=int)
        self._bad_array, self._lost_array = wp.zeros(count, dtype=int), wp.zeros(count, dtype=int)
        self._is_bad, self._lost = wp.to_torch(self._bad_array), wp.to_torch(self._lost_array)
        self._rows = {name: self._flat(name) for name in REPLAYED if getattr(self._d, name).size}
        self._kept_arrays = {name: wp.zeros_like(rows) for name, rows in self._rows.items()}
        self._kept = {name: wp.to_torch(kept) for name, kept in self._kept_arrays.items()}
        self._sensors = wp.zeros_like(self._d.sensordata)
        stage = model.sensor_needstage == int(mujoco.mjtStage.mjSTAGE_ACC)
        columns = [range(a, a + n) for a, n in zip(model.sensor_adr[stage], model.sensor_dim[stage], strict=True)]
        self._force_columns: Any = wp.array([c for part in columns for c in part], dtype=int)
        self._home_history = torch.as_tensor(home.history, dtype=torch.float32, device=self.device)
        self._home_key = home_key(model)

    def _flat(self, name: str) -> Any:
        """Return a data array as [N, columns] of floats, the same memory."""
        return wp.from_torch(wp.to_torch(getattr(self._d, name)).view(self.num_envs, -1))

    # what the graphs hold

    def _advance(self, substeps: int) -> None:
        for name, kept in self._kept_arrays.items():
            wp.launch(keep_rows, kept.shape, [self._rows[name], self._bad_array], [kept])
        self._substep(substeps - 1)
        mjw.step2(self._m, self._d)
        harmful = int(mjw.OverflowType.ALL & ~HARMLESS)
        d = self._d
        wp.launch(watch, self.num_envs, [d.qpos, d.qvel, d.overflow, harmful], [self._bad_array, self._lost_array])
        self._refresh(0)

    def _substep(self, count: int) -> None:
        """Do all substeps but the last, without sensors: nobody sees what they would measure."""
        flags = self._m.opt.disableflags
        self._m.opt.disableflags = flags | mjw.DisableBit.SENSOR
        for i in range(count):
            if i == 0:
                mjw.step2(self._m, self._d)
            elif self._order is None:
                mjw.step(self._m, self._d)
            else:
                self._see()
                mjw.step2(self._m, self._d)
        if count:
            self._see()
        self._m.opt.disableflags = flags

    def _see(self) -> None:
        """Compute what positions and velocities determine."""
        mjw.step1(self._m, self._d)
        if self._order is not None:
            self._order.order_rows()

    def _refresh(self, _: int) -> None:
        """Compute what positions and velocities determine; the sensors of forces keep what they have."""
        wp.copy(self._sensors, self._d.sensordata)
        self._see()
        if self._force_columns.size:
            shape = (self.num_envs, self._force_columns.size)
            wp.launch(restore_columns, shape, [self._force_columns, self._sensors], [self._d.sensordata])

    def _clear(self, _: int) -> None:
        if self._home_key >= 0:
            mjw.reset_data_keyframe(self._m, self._d, self._key)
        else:
            mjw.reset_data(self._m, self._d, self._mask)

    def _derive(self, _: int) -> None:
        mjw.set_const(self._m, self._d)

    def _launch(self, work: Callable[[int], None], argument: int = 0) -> None:
        """Run on torch's stream: as a graph on a GPU, captured at the first use."""
        if not self.uses_graphs:
            with wp.ScopedDevice(self._place), wp.ScopedStream(self._stream(), sync_enter=False):
                work(argument)
            return
        key = (work.__name__, argument)
        if key not in self._graphs:
            self._graphs[key] = self._capture(work, argument)

        def launch() -> None:
            wp.capture_launch(self._graphs[key], stream=self._stream())

        launch() if self.recording is None else self.recording.insert(launch)

    def _stream(self) -> Any:
        """Return torch's current stream as warp knows it, so that both wait for each other; None on a CPU."""
        if not self._place.is_cuda:
            return None
        stream = torch.cuda.current_stream(self.device)
        if stream.cuda_stream not in self._streams:
            self._streams[stream.cuda_stream] = wp.stream_from_torch(stream)
        return self._streams[stream.cuda_stream]

    def _capture(self, work: Callable[[int], None], argument: int) -> Any:
        torch.cuda.synchronize(self.device)
        is_collecting = gc.isenabled()
        gc.disable()  # a finaliser would be recorded into the graph
        try:
            with wp.ScopedDevice(self._place), wp.ScopedCapture(device=self._place, force_module_load=False) as capture:
                work(argument)
        finally:
            if is_collecting:
                gc.enable()
        return capture.graph

    def _warm_up(self) -> None:
        """Compile every kernel outside of a graph, then start at home."""
        with wp.ScopedDevice(self._place):
            self._key.fill_(self._home_key)
            self._mask.fill_(True)
            for work, argument in ((self._clear, 0), (self._refresh, 0), (self._advance, 3), (self._clear, 0)):
                work(argument)
            if set(self._randomized) & set(DERIVED):
                self._derive(0)
            wp.synchronize_device(self._place)
        self.reset(torch.ones(self.num_envs, dtype=torch.bool, device=self.device))
        self.forward()
        self._is_bad.zero_()
        self._lost.zero_()

    # what tensors cannot do

    def _open(self, name: str) -> Tensor | None:
        if name not in vars(self._d):
            return None
        return self._view(getattr(self._d, name), np.asarray(getattr(self._host, name)))

    def step(self, substeps: int) -> None:
        """Advance all worlds by `substeps` of the model's timestep with the present controls."""
        self.forward()
        self._substeps = substeps
        self._launch(self._advance, substeps)

    def reset(self, mask: Tensor) -> None:
        """Put those worlds into the keyframe "home" (else qpos0) at time zero, everything else cleared; no forward."""
        mask = mask.to(self.device)
        wp.to_torch(self._mask).copy_(mask)
        wp.to_torch(self._key).copy_(torch.where(mask, self._home_key, -1))
        self._launch(self._clear)
        if len(self._home_history):
            write_rows(self._data("history"), self._home_history, mask)
        write_rows(self._data("actuator_force"), torch.zeros((), device=self.device), mask)
        self._is_stale = True

    def forward(self) -> None:
        """Make the fields that positions and velocities determine current in every world."""
        if self._is_stale:
            self._launch(self._refresh)
            self._is_stale = False

    def recompute(self) -> None:
        """Derive the model's constants again after masses, inertias, positions or armatures were written."""
        if set(self._randomized) & set(DERIVED):
            self._launch(self._derive)
            self._is_stale = True

    def rays(self, origins: Tensor, directions: Tensor) -> Tensor:
        """Return the distances [N, R] from world points [N, R, 3] along unit vectors to the terrain; -1 where none."""
        self.forward()
        shape, device = origins.shape[:2], self.device  # torch owns all memory, which outlives the kernel's use of it
        distances, normals = torch.empty(shape, device=device), torch.empty(*shape, 3, device=device)
        geoms = torch.empty(shape, dtype=torch.int32, device=device)
        none = torch.full(shape[1:], -1, dtype=torch.int32, device=device)
        lines = [wp.from_torch(values.float().contiguous(), dtype=wp.vec3) for values in (origins, directions)]
        hits = [wp.from_torch(distances), wp.from_torch(geoms), wp.from_torch(normals, dtype=wp.vec3)]
        groups = wp.types.vector(length=6, dtype=int)(*TERRAIN_GROUPS)
        with wp.ScopedDevice(self._place), wp.ScopedStream(self._stream(), sync_enter=False):
            mjw.rays(self._m, self._d, *lines, groups, True, wp.from_torch(none), *hits)
        return distances

    def _overflow_names(self, bits: int) -> str:
        return ", ".join(kind.name or "" for kind in mjw.OverflowType if kind & bits and kind != mjw.OverflowType.ALL)
