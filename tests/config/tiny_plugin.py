"""A plugin as a user would write it: an algorithm, a buffer and a function, outside the package."""

from __future__ import annotations

import os
import os.path as foreign  # noqa: F401  (a name that must not be reachable through this module)
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import run as smuggled  # noqa: F401
from typing import Annotated, Any, Literal

import torch
from annotated_types import Gt, Lt
from torch import nn

from rl_lab.buffers.rollout import RolloutBuffer
from rl_lab.core import Buffer, ConfigError, EnvSpec, Footprint, Workflow, hook
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


class ReadingWorkflow(TinyWorkflow):
    """Keeps two buffers for itself."""

    def initialize(self, context):
        super().initialize(context)
        self.memories = [context.buffers["old"], context.buffers.get("b")]


class TinyBuffer(Buffer):
    def __init__(self) -> None:
        self.trajectory: dict[str, Any] | None = None

    @property
    def size(self):
        return 0 if self.trajectory is None else self.trajectory["rewards"].numel()

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


class OwnRollout(RolloutBuffer):
    """A rollout of the user's own."""


class LoadingBuffer(TinyBuffer):
    """Loads what it has when it is first asked."""

    def __init__(self, brings: bool) -> None:
        super().__init__()
        self.brings, self.is_loaded = brings, False

    @property
    def brings_data(self):
        return self.brings

    def is_ready(self):
        self.is_loaded = True
        return True


class SizedBuffer(TinyBuffer):
    """A buffer that says how much it will take up, and shows what it was given."""

    def __init__(
        self,
        *,
        capacity: int = 1000,
        step_bytes: int = 48,
        place: str | None = None,
        device: torch.device | str,
        num_envs: int,
        spec: EnvSpec,
        seed: int,
        collect_steps: int,
    ) -> None:
        super().__init__()
        if capacity < 1:
            raise ConfigError(f"capacity must be 1 or more, not {capacity}")
        self.given = {"device": torch.device(device), "num_envs": num_envs, "spec": spec, "seed": seed}
        self.given["collect_steps"] = collect_steps
        self._size, self._place = (capacity, step_bytes), place
        self.attached: list[tuple[str, bool]] = []

    def footprint(self):
        capacity, step_bytes = self._size
        is_on_disk = self._place == "disk"
        device = self.given["device"] if is_on_disk or self._place is None else torch.device(self._place)
        return (Footprint(capacity * step_bytes, capacity, device, is_on_disk),)

    def attach(self, directory):
        self.attached.append((str(directory), self.is_ready()))


class UnionBuffer(SizedBuffer):
    def __init__(self, parts: list[Buffer], named: dict[str, Buffer] | None = None, **given: Any) -> None:
        super().__init__(**given)
        self.parts, self.named = parts, named or {}


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

    def __init__(
        self,
        num_envs: int,
        fault: str = "none",
        at: int = 40,
        exact_resume: bool = True,
        action_repeat: int = 1,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(num_envs, device=device)
        self.spec = replace(self.spec, exact_resume=exact_resume, action_repeat=action_repeat)
        self.fault, self.at, self.count = fault, at, 0

    def step(self, actions):
        self.count += 1
        step = super().step(actions)
        if self.count < self.at:
            return step
        if self.fault == "slow" and Path("slow").exists():
            time.sleep(0.05)
        if self.fault == "raise":
            raise RuntimeError("the motor\nis on fire")
        if self.fault == "poison":
            return step._replace(rewards=step.rewards * float("nan"))
        if self.fault == "sigint" and self.count == self.at:
            os.kill(os.getpid(), signal.SIGINT)
        if self.fault == "sigterm" and self.count == self.at:
            os.kill(os.getpid(), signal.SIGTERM)
        return step
