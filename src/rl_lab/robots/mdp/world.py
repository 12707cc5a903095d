"""What events act on: the worlds of a simulation, and what is drawn for each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rl_lab.robots.mdp.state import RobotFacts
from rl_lab.robots.models.layout import Layout
from rl_lab.robots.models.robot import Robot
from rl_lab.robots.sim.interface import BatchSim

if TYPE_CHECKING:
    import mujoco


@dataclass(frozen=True)
class Needs:
    """What an event writes: fields of the model that get a value per world, and whether constants follow from them."""

    fields: tuple[str, ...] = ()
    recompute: bool = False


NEEDS: dict[Callable[..., Any], Needs] = {}


def randomizes(*fields: str, recompute: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare the model fields that an event writes, so that the simulation keeps them per world."""

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        NEEDS[function] = Needs(fields, recompute)
        return function

    return declare


@dataclass
class World:
    """All worlds and what events have made of them; `factors` multiply the model's own values and never add up."""

    sim: BatchSim
    robot: Robot
    layout: Layout
    facts: RobotFacts
    generator: torch.Generator
    origins: Tensor  # [N, 3] where each world's robot starts
    joint_offset: Tensor = field(init=False)  # [N, J] rad that encoders read too much
    push: Tensor = field(init=False)  # [N, 6] velocity that the last push added
    factors: dict[str, Tensor] = field(init=False)
    randomized: dict[str, Tensor] = field(default_factory=dict)
    _constants: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        model, count, device = self.sim.model, self.sim.num_envs, self.sim.device
        joints = len(self.facts.joints)
        self.joint_offset = torch.zeros(count, joints, device=device)
        self.push = torch.zeros(count, 6, device=device)
        sizes = {"mass": model.nbody, "inertia": model.nbody, "kp": joints, "kd": joints, "strength": joints}
        self.factors = {name: torch.ones(count, size, device=device) for name, size in sizes.items()}

    @property
    def model(self) -> mujoco.MjModel:
        """The model with its own values."""
        return self.sim.model

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """Draw uniform numbers for every world, [N, *shape]."""
        size = (self.sim.num_envs, *shape)
        draw = torch.rand(size, generator=self.generator, device=self.sim.device)
        return low + (high - low) * draw

    def default(self, name: str) -> Tensor:
        """Return the model's own values of a field, float32."""
        return self.constant(name, lambda: torch.as_tensor(vars_of(self.model, name), dtype=torch.float32))

    def columns(self, name: str, values: Callable[[], Sequence[int]]) -> Tensor:
        """Return indices as a tensor that is made once."""
        return self.constant(f"columns of {name}", lambda: torch.tensor(list(values())))

    def constant(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        """Return what `make` made at the first call, on the device: no step copies it there again."""
        if name not in self._constants:
            self._constants[name] = make().to(self.sim.device)
        return self._constants[name]

    def change(self, name: str, columns: Tensor, values: Tensor, mask: Tensor) -> None:
        """Write some columns of a per-world model field in the worlds of `mask`."""
        new = self.sim.read_model(name).clone()  # what is read may be the simulation's own memory
        new[:, columns] = values
        self.sim.write_model(name, new, mask)

    def begin(self, fields: Iterable[str]) -> None:
        """Forget what was drawn, and let these fields of the model be its own in every world."""
        self.randomized = {name: torch.zeros_like(drawn) for name, drawn in self.randomized.items()}
        self.joint_offset = torch.zeros_like(self.joint_offset)
        self.factors = {name: torch.ones_like(factor) for name, factor in self.factors.items()}
        for name in fields:
            own = self.default(name)
            self.sim.write_model(name, own.expand(self.sim.num_envs, *own.shape))

    def set_factor(self, name: str, values: Tensor, mask: Tensor, columns: Tensor | None = None) -> None:
        """Set columns of a factor in the worlds of `mask`; all of them unless told."""
        factor = self.factors[name]
        new = values.expand_as(factor) if columns is None else factor.index_copy(1, columns, values)
        self.factors[name] = torch.where(mask.unsqueeze(-1), new, factor)

    def get_state(self) -> dict[str, Any]:
        """Return what was drawn; the model's fields are in the simulation's own state."""
        tensors = {"origins": self.origins, "joint_offset": self.joint_offset, "push": self.push}
        drawn = {"factors": self.factors, "randomized": self.randomized}
        return {key: value.clone() for key, value in tensors.items()} | {
            key: {name: value.clone() for name, value in values.items()} for key, values in drawn.items()
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on with what was drawn."""
        device = self.sim.device
        self.origins, self.joint_offset, self.push = (
            state[key].to(device, copy=True) for key in ("origins", "joint_offset", "push")
        )
        self.factors, self.randomized = (
            {name: value.to(device, copy=True) for name, value in state[key].items()}
            for key in ("factors", "randomized")
        )


def any_of(mask: Tensor) -> bool:
    """Return whether a world is chosen, where looking costs nothing; on a device always True, so that no step waits."""
    return mask.device.type != "cpu" or bool(mask.any())


def vars_of(model: mujoco.MjModel, name: str) -> Any:
    """Return an array of the model; `opt.gravity` is looked up in its options."""
    owner, _, leaf = name.rpartition(".")
    return getattr(getattr(model, owner) if owner else model, leaf)
