"""The batched physics every robot task speaks to: many worlds, their fields as torch tensors by MuJoCo's names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from rl_lab.core import ConfigError, unknown_name

if TYPE_CHECKING:
    import mujoco

STATE_FIELDS = ("qpos", "qvel", "ctrl", "xfrc_applied")  # what a caller may write
BACKENDS = ("auto", "cpu", "warp")
NOT_EXACT = (
    "steps of mujoco_warp differ in their last bits: a resumed run goes on where it was and ends in other bits "
    "(environment.simulation.deterministic=true puts contacts and sums in order; that this is enough is not shown yet)"
)
NO_GRAPHS = "CUDA graphs are off, which makes steps several times slower: warp has no memory pool on this device"


class Recorder(Protocol):
    """Takes launches that are to be repeated later."""

    def insert(self, launch: Callable[[], None]) -> None:
        """Put a launch after all that was recorded so far."""


class BatchSim(ABC):
    """`num_envs` worlds of one model that step together; final subclasses set the four attributes.

    What positions and velocities determine (xpos, xquat, cvel, site_xpos, gyro, velocimeter, framequat, ...) is current
    after `step` and `forward`. What needs forces (contact forces, accelerometer, actuator_force, qacc) is that of the
    last substep, and zero in a world that was reset since.
    """

    model: mujoco.MjModel  # names, sizes and defaults; never changed after construction
    num_envs: int
    device: torch.device
    deterministic: bool  # the same calls give the same bits
    uses_graphs: bool = False  # whether each call launches a CUDA graph
    recording: Recorder | None = None  # takes those launches instead, while somebody records
    dump_dir: Path | str | None = None  # where a world that is not finite is written; None: with temporary files
    notes: tuple[str, ...] = ()  # what a person should know before many steps

    @property
    def is_stale(self) -> bool:
        """Whether something was written that `forward` has not seen."""
        return False

    @abstractmethod
    def read(self, name: str) -> Tensor:
        """Return a data field, [N, ...] float32; valid until the next call, never to be written to."""

    @abstractmethod
    def write(self, name: str, values: Tensor, mask: Tensor | None = None) -> None:
        """Write qpos, qvel, ctrl or xfrc_applied [N, ...] in all worlds, or in those of `mask` [N] bool."""

    @abstractmethod
    def step(self, substeps: int) -> None:
        """Advance all worlds by `substeps` of the model's timestep with the present controls."""

    @abstractmethod
    def reset(self, mask: Tensor) -> None:
        """Put those worlds into the keyframe "home" (else qpos0) at time zero, everything else cleared; no forward."""

    @abstractmethod
    def forward(self) -> None:
        """Make the fields that positions and velocities determine current in every world."""

    @abstractmethod
    def read_model(self, name: str) -> Tensor:
        """Return the per-world values [N, ...] float32 of a model field that was declared as randomized."""

    @abstractmethod
    def write_model(self, name: str, values: Tensor, mask: Tensor | None = None) -> None:
        """Write the per-world values of a model field that was declared as randomized."""

    @abstractmethod
    def recompute(self) -> None:
        """Derive the model's constants again after masses, inertias, positions or armatures were written."""

    @abstractmethod
    def rays(self, origins: Tensor, directions: Tensor) -> Tensor:
        """Return the distances [N, R] from world points [N, R, 3] along unit vectors to the terrain; -1 where none."""

    @abstractmethod
    def check(self) -> None:
        """Raise EnvironmentFault where a world was not finite or a contact buffer too small since the last check."""

    @abstractmethod
    def get_state(self) -> dict[str, Any]:
        """Return all that is needed to go on exactly here, per-world model fields included."""

    @abstractmethod
    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from `state`, of the same model and number of worlds."""

    @abstractmethod
    def render(self, env: int = 0, width: int = 320, height: int = 240) -> Tensor:
        """Return a picture of one world, [H, W, 3] uint8."""

    def close(self) -> None:  # noqa: B027  (most backends have nothing to free)
        """Free threads, windows and memory."""


def make_sim(
    model: mujoco.MjModel,
    num_envs: int,
    *,
    backend: str = "auto",
    device: torch.device | str = "cpu",
    randomized: Sequence[str] = (),
    num_threads: int = 0,
    deterministic: bool = False,
    contacts: int | None = None,
    constraints: int | None = None,
    dump_dir: Path | str | None = None,
) -> BatchSim:
    """Return a simulation of `num_envs` worlds.

    Args:
        model: The compiled scene; see `robots.models.scene.compile_scene`.
        num_envs: Number of worlds.
        backend: `cpu` (MuJoCo on threads), `warp` (mujoco_warp, on a CUDA device), or `auto`: warp on a CUDA device.
        device: Where the tensors live.
        randomized: Model fields with a value per world, by MuJoCo's names (`body_mass`, `opt.gravity`).
        num_threads: Threads of the cpu backend; 0 takes every core. The results do not depend on it.
        deterministic: The warp backend puts contacts, constraint rows and sums in order, which is slower.
        contacts: Contacts per world that the warp backend keeps room for; by default from the model.
        constraints: Constraint rows per world that the warp backend keeps room for; by default from the model.
        dump_dir: Where the state of a world that is not finite is written; by default the system's temporary directory.
    """
    device = torch.device(device)
    if num_envs < 1:
        raise ConfigError(f"environment.num_envs must be 1 or more, got {num_envs}")
    if backend not in BACKENDS:
        raise ConfigError(unknown_name("simulation backend", backend, BACKENDS))
    if backend == "auto":
        backend = "warp" if device.type == "cuda" else "cpu"
    if backend == "cpu":
        from rl_lab.robots.sim.cpu import CpuSim

        return CpuSim(model, num_envs, device, randomized, num_threads, dump_dir)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"simulation backend 'warp': there is no CUDA device for {str(device)!r}; use backend cpu")
    try:
        from rl_lab.robots.sim.warp import WarpSim  # optional packages, needed here only
    except ImportError as error:
        raise ConfigError(f"simulation backend 'warp' needs: pip install 'rl-lab[gpu-sim]' ({error})") from None
    sim = WarpSim(model, num_envs, device, randomized, deterministic, contacts, constraints, dump_dir)
    slow = device.type == "cuda" and not sim.uses_graphs
    sim.notes = (NOT_EXACT,) * (not sim.deterministic) + (NO_GRAPHS,) * slow
    return sim
