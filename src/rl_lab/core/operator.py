"""One who watches a policy act and may take over: a person with a keyboard or a web page, or a simulated one."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from rl_lab.core.context import Counters
from rl_lab.core.environment import Actions, Observation, VectorEnv
from rl_lab.core.workflow import Carry

SUCCESS, FAILURE, UNDECIDED = 1.0, -1.0, 0.0  # verdicts
POLICY = 0  # the id of nobody
MAX_NAME_BYTES = 256  # of an operator's name in UTF-8: 64 letters, whichever they are
_IDS = 2**24 - 1  # whole numbers that a float32 holds exactly, without 0


class Orders(NamedTuple):
    """What an operator wants at one step."""

    actions: Actions  # [N, ...] as the environment takes them; read where `is_acting`
    is_acting: Tensor  # [N] bool: the operator's action is taken instead of the policy's


# Info of steps that a person watched, seconds of the UTC day; as extras, before they are recorded: since 1970.
OPERATOR_TIME = "operator_time"


class Station(NamedTuple):
    """Where an operator sits."""

    env: VectorEnv  # what is watched; an operator looks at it and never steps it
    counters: Counters  # of the run
    total_steps: int  # env steps of the run


class NotReady(Exception):
    """Nothing is done now: an operator pauses, or a decision is late. Whoever steps the environment asks again."""


class Operator(ABC):
    """Watches every step before it is done. What it remembers is its carry, which checkpoints hold.

    Attributes:
        name: Who acts; empty while nobody is there. It may change between steps.
        is_live: Whether it is a person: steps are then stamped with the time, and nothing can be repeated.
    """

    name = "operator"
    is_live = False

    def bind(self, station: Station) -> None:  # noqa: B027  (one who needs no more than observations does nothing)
        """Take the seat: called once, before anything else. Raises ConfigError where it cannot operate."""

    def report_to(self, say: Callable[[str], None]) -> None:  # noqa: B027  (most have nothing to say)
        """Be given a way to tell people one line, before the first step; it may only be used between steps."""

    def initial_carry(self, num_envs: int) -> Carry:
        """Return what it remembers before the first step; None: nothing."""
        return None

    def is_ready(self) -> bool:
        """Return whether the next step may be done; asked before the policy decides, again and again while it is not.

        A person may take some hundredths of a second for the answer, and no longer: signals are looked at in between.
        """
        return True

    @abstractmethod
    def watch(self, obs: Observation, proposed: Actions, carry: Carry, *, is_first: Tensor) -> tuple[Orders, Carry]:
        """Return what it wants, given what the policy is about to do, and what it remembers next.

        `is_first` tells which copies begin an episode with this observation.
        """

    def lead(self, obs: Observation, carry: Carry, *, is_first: Tensor) -> tuple[Orders, Carry] | None:
        """Return what it does in all copies, whatever the policy would do; None: nothing has changed, `watch` follows.

        Asked where the policy is elsewhere and may be late: one who is in control does not wait for it.
        """
        return None

    def wants_control(self) -> bool:
        """Return whether the wait for a policy that is late has to end, for `is_ready` and `lead` to be asked again."""
        return False

    @abstractmethod
    def judge(self, final_obs: Observation, rewards: Tensor) -> Tensor:
        """Return its verdict on episodes that ended with these observations, [N]: SUCCESS, FAILURE or UNDECIDED.

        `rewards` are those of their last steps: what the task itself says. Episodes come in the order of their ends.
        """

    def close(self) -> None:  # noqa: B027  (most have nothing to free)
        """Leave the seat; safe to call twice."""


class Bystander(Operator):
    """Takes the place of an operator who is elsewhere, beside the robot: never acts, never judges.

    Args:
        is_live: Whether the one who is elsewhere is a person: what is recorded of steps looks the same.
    """

    name = ""

    def __init__(self, *, is_live: bool) -> None:
        self.is_live = is_live

    def watch(self, obs: Observation, proposed: Actions, carry: Carry, *, is_first: Tensor) -> tuple[Orders, Carry]:
        """Want nothing."""
        return Orders(proposed, torch.zeros_like(is_first)), carry

    def judge(self, final_obs: Observation, rewards: Tensor) -> Tensor:
        """Say nothing."""
        return torch.full_like(rewards, UNDECIDED)


def operator_id(name: str) -> int:
    """Return the number by which steps name an operator: the same in every process, and exact as float32."""
    return 1 + zlib.crc32(name.encode()) % _IDS
