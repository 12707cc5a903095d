"""Parts that go wrong in ways that alerts are about."""

from __future__ import annotations

import weakref
from typing import ClassVar

import torch

from rl_lab.core.operator import Bystander
from rl_lab.environments.cartpole import CartPole
from rl_lab.tracking import perf
from tests.config.tiny_plugin import FaultyEnv, TinyBuffer, TinyWorkflow


class TaintedBuffer(TinyBuffer):
    """The rewards of its batches of certain numbers are wrong; how many were drawn is part of its state."""

    def __init__(self, bad: list[int], taint: float = float("nan")) -> None:
        super().__init__()
        self.bad, self.taint, self.count = bad, taint, 0

    def sample(self):
        batch = super().sample()
        self.count += 1
        if self.count in self.bad:
            return {**batch, "rewards": batch["rewards"] * self.taint}
        return batch

    def get_state(self):
        return super().get_state() | {"count": self.count}

    def set_state(self, state):
        super().set_state(state)
        self.count = state["count"]


class Scoring(TinyWorkflow):
    """Reports the mean reward of its batches, and the learning rate."""

    def update_policy(self, batch, *, phase):
        metrics = super().update_policy(batch, phase=phase)
        return {**metrics, "score": batch["rewards"].mean(), "rate": float(self.optimizer.param_groups[0]["lr"])}

    update_policy.__hook__ = TinyWorkflow.hooks()["update_policy"]


class Lonely(Scoring):
    """Reports how many there have been, and cannot be made while another is still there."""

    made: ClassVar[list[weakref.ref[Scoring]]] = []

    def __init__(self, gamma: float = 0.99) -> None:
        assert all(other() is None for other in self.made), "another one is still there"
        super().__init__(gamma)
        self.made.append(weakref.ref(self))

    def update_policy(self, batch, *, phase):
        return {**super().update_policy(batch, phase=phase), "made": float(len(self.made))}

    update_policy.__hook__ = TinyWorkflow.hooks()["update_policy"]


class Guest(Bystander):
    """Only looks on, and counts those who have sat down and not left."""

    seated: ClassVar[set[int]] = set()

    def bind(self, station):
        assert not self.seated, "the seat is taken"
        self.seated.add(id(self))

    def close(self):
        self.seated.discard(id(self))


class Dragging(CartPole):
    """Takes a hundredth of a second per step, and one from a certain step on, by a clock of its own."""

    def __init__(self, num_envs: int, at: int = 56, device: torch.device | str = "cpu") -> None:
        super().__init__(num_envs, device=device)
        self.at, self.count = at, 0

    def step(self, actions):
        self.count += 1
        perf.perf_counter.now += 0.01 if self.count <= self.at else 1.0
        return super().step(actions)


class Mortal(FaultyEnv):
    """A FaultyEnv under this name."""


class Forgetful(Scoring):
    """Learns by a number that no checkpoint holds."""

    count = 0

    def update_policy(self, batch, *, phase):
        self.count += 1
        return super().update_policy({**batch, "rewards": batch["rewards"] * self.count}, phase=phase)

    update_policy.__hook__ = TinyWorkflow.hooks()["update_policy"]


class Steep(Scoring):
    """The gradient of its loss is NaN, the loss itself is not."""

    def update_policy(self, batch, *, phase):
        flat = [torch.sqrt(parameter * 0.0).sum() * 0.0 for parameter in self.actor.parameters()]
        self.optimizer.zero_grad()
        sum(flat).backward()
        return {"loss": 0.0}

    update_policy.__hook__ = TinyWorkflow.hooks()["update_policy"]


class Undefined(torch.nn.Linear):
    """Divides zero by zero."""

    def forward(self, x):
        return super().forward(x) * (x.new_zeros(()) / 0.0)
