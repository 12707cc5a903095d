"""A plugin as a user would write it: an algorithm, a buffer and a function, outside the package."""

from __future__ import annotations

import os
import os.path as foreign  # noqa: F401  (a name that must not be reachable through this module)
import signal
from collections.abc import Callable
from dataclasses import dataclass
from subprocess import run as smuggled  # noqa: F401
from typing import Annotated, Any, Literal

import torch
from annotated_types import Gt, Lt
from torch import nn

from rl_lab.core import Buffer, Workflow, hook
from rl_lab.environments.cartpole import CartPole

EXECUTED: list[str] = []


@dataclass(frozen=True)
class Clip:
    range: float = 0.2
    kind: Literal["hard", "soft"] = "hard"


class TinyWorkflow(Workflow):
    """Learns the mean reward.

    Args:
        gamma: Discount of the return,
            per env step.
        width: Units of the hidden layer.
    """

    def __init__(
        self,
        gamma: Annotated[float, Gt(0), Lt(1)] = 0.99,
        width: int = 8,
        sizes: tuple[int, ...] = (64, 64),
        clip: Clip = Clip(),  # noqa: B008
        score: Callable[[float], float] | None = None,
        mode: Literal["fast", "slow"] = "fast",
        anneal: bool = False,
    ) -> None:
        super().__init__()
        self.gamma, self.width, self.sizes, self.clip, self.score = gamma, width, sizes, clip, score
        self.mode, self.anneal = mode, anneal

    def initialize(self, context):
        self.spec = context.spec
        self.actor = context.components["actor"]
        self.optimizer = context.optimizers.build("policy", self.actor.parameters())

    def act(self, obs, carry, *, is_first, explore, step):
        logits = self.actor(obs)
        if explore:
            return torch.distributions.Categorical(logits=logits).sample(), {}, carry
        return logits.argmax(-1), {}, carry

    @hook
    def update_policy(self, batch, *, phase):
        logits = self.actor(batch["observations"])
        chosen = logits.log_softmax(-1).gather(-1, batch["actions"].unsqueeze(-1)).squeeze(-1)
        loss = -(chosen * batch["rewards"]).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.detach()}


class TinyBuffer(Buffer):
    def __init__(self) -> None:
        self.trajectory: dict[str, Any] | None = None

    def add(self, trajectory):
        self.trajectory = trajectory

    def is_ready(self):
        return self.trajectory is not None

    def sample(self):
        trajectory, self.trajectory = self.trajectory, None
        return trajectory

    def get_state(self):
        return {"trajectory": self.trajectory}

    def set_state(self, state):
        self.trajectory = state["trajectory"]


class Wrapper(nn.Module):
    def __init__(self, inner: nn.Module, parts: list[nn.Module] | None = None) -> None:
        super().__init__()
        self.inner, self.parts = inner, nn.ModuleList(parts or [])

    def forward(self, x):
        return self.inner(x)


def double(value: float) -> float:
    return 2 * value


def execute(command: str) -> None:
    EXECUTED.append(command)


class FaultyEnv(CartPole):
    """A CartPole that misbehaves from a certain vector step on."""

    def __init__(self, num_envs: int, fault: str = "none", at: int = 40, device: torch.device | str = "cpu") -> None:
        super().__init__(num_envs, device=device)
        self.fault, self.at, self.count = fault, at, 0

    def step(self, actions):
        self.count += 1
        step = super().step(actions)
        if self.count < self.at:
            return step
        if self.fault == "raise":
            raise RuntimeError("the motor\nis on fire")
        if self.fault == "poison":
            return step._replace(rewards=step.rewards * float("nan"))
        if self.fault == "sigint" and self.count == self.at:
            os.kill(os.getpid(), signal.SIGINT)
        if self.fault == "sigterm" and self.count == self.at:
            os.kill(os.getpid(), signal.SIGTERM)
        return step
