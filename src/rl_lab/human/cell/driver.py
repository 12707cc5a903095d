"""What the lab asks of a robot: one small interface, which the simulated cells implement too.

A driver owns one robot and its cameras. It is asked to bring the scene to a start, to show what it sees, to carry out
one command per control step and to hold still. Limits are declared here and kept in `CellEnv`, beside the robot, so
that no policy can pass them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Layout:
    """What a robot takes and shows; a dataset or a policy of another layout does not fit.

    Attributes:
        actions: Names of the entries of a command.
        low: Lowest command, one number per entry.
        high: Highest command.
        max_step: Largest change of a command from one control step to the next, per entry; infinite: none.
        numbers: Names of the entries of each array that is observed. `state` is the robot's own; `objects` is what a
            laboratory knows beside it, and a robot in a hall does not.
        cameras: Names of the cameras, the one that looks at everything first.
        steps_per_second: Control steps.
        prompt: The task in words.
        measured: By the name of an action, the entry of `state` that shows what came of it, for labels that say what
            was executed. An action that is not named keeps the command (a gripper that holds something does not close).
        unit: Of what is measured, in one unit of a command.
        is_change: Whether a command asks for a change of what is measured, not for a place.
        pose_low: Lowest pose of the tool (or tools) that is allowed, in the numbers of `Driver.pose`; null: any.
        pose_high: Highest one.
    """

    actions: tuple[str, ...]
    low: Array
    high: Array
    max_step: Array
    numbers: Mapping[str, tuple[str, ...]]
    cameras: tuple[str, ...] = ()
    steps_per_second: float = 10.0
    prompt: str = ""
    measured: Mapping[str, str] = field(default_factory=dict)
    unit: float = 1.0
    is_change: bool = False
    pose_low: Array | None = None
    pose_high: Array | None = None

    def limits(self) -> dict[str, Any]:
        """Return what is kept beside the robot, besides lowest and highest command, as a tree for JSON; null: none."""
        poses = {"pose_low": self.pose_low, "pose_high": self.pose_high}
        return {
            "max_step": [float(most) if np.isfinite(most) else None for most in self.max_step],
            **{name: None if pose is None else pose.tolist() for name, pose in poses.items()},
        }


class Driver(ABC):
    """One robot. Methods raise when the robot cannot go on; the episode then ends in one line that says so."""

    layout: Layout

    @abstractmethod
    def reset(self, rng: np.random.Generator) -> None:
        """Bring robot and scene to a start, whatever is random from `rng`; return when both stand still."""

    @abstractmethod
    def observe(self) -> dict[str, Array]:
        """Return the newest `numbers`, each float32 in the order of its names."""

    @abstractmethod
    def draw(self, camera: str, height: int, width: int) -> Array:
        """Return the newest picture of a camera, [H, W, 3] uint8."""

    @abstractmethod
    def act(self, command: Array) -> None:
        """Carry out a command, which keeps the limits, for one control step, and return when that is over."""

    @abstractmethod
    def hold(self) -> None:
        """Stand still from now on, until the next command. Where commands may be stale it is called from a thread."""

    @abstractmethod
    def home(self) -> Array:
        """Return the command that changes nothing now: where `max_step` is counted from after a reset."""

    @abstractmethod
    def is_success(self) -> bool:
        """Return whether the task is done; False for good where only a person can tell."""

    def pose(self, command: Array) -> Array | None:
        """Return where the tool would be after a command, as the layout's limits count it; None: that is not known."""
        return None

    def close(self) -> None:  # noqa: B027  (most robots have nothing to free)
        """Let go of the robot."""


class SimulatedDriver(Driver):
    """A driver whose world can be taken up again to the bit."""

    @abstractmethod
    def get_state(self) -> dict[str, Any]:
        """Return all that the next step depends on, as plain arrays and numbers."""

    @abstractmethod
    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `get_state`."""

    @abstractmethod
    def place(self, numbers: Mapping[str, Array]) -> None:
        """Bring robot and scene to where `observe` gave these numbers; what they do not show is at its usual place."""
