"""What an environment did, as one digest per field and step: any later run can be held against it to the bit."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from rl_lab.core import Actions, LabError, Observation, Step, VectorEnv, tree_leaves, tree_map
from rl_lab.environments.checking.conformity import Conformity, Problem
from rl_lab.environments.checking.random_actions import RandomActions
from rl_lab.environments.hosting.foreign import Watch, one_line

FEWEST_STEPS = 20  # are taken however slow the environment is
KEPT_STEPS = 32  # whose tensors are looked at again at the end


class CheckFailed(RuntimeError):
    """The environment did something that ends a check; the message is one line."""


@contextmanager
def watched() -> Iterator[None]:
    """Turn whatever foreign code raises into CheckFailed."""
    with Watch(
        lambda error: CheckFailed(" ".join(str(error).split()) if isinstance(error, LabError) else one_line(error))
    ):
        yield


def digest(tree: Any) -> bytes:
    """Return a hash of a tree: names, types, shapes and bits."""
    hasher = hashlib.blake2b(digest_size=16)
    for path, leaf in tree_leaves(tree):
        hasher.update(path.encode())
        if isinstance(leaf, Tensor):
            data = leaf.detach().cpu().contiguous()
            hasher.update(f"{data.dtype}{tuple(data.shape)}".encode())
            hasher.update(data.reshape(-1).view(torch.uint8).numpy().data)
        elif isinstance(leaf, np.ndarray):
            hasher.update(f"{leaf.dtype}{leaf.shape}".encode() + leaf.tobytes())
        else:
            hasher.update(repr(leaf).encode())
    return hasher.digest()


def step_digests(step: Step) -> dict[str, bytes]:
    """Return a hash per field of a step."""
    digests = {name: digest(part) for name, part in step._asdict().items() if name != "final_observations"}
    is_same = step.final_observations is step.observations
    return digests | {"final_observations": digests["observations"] if is_same else digest(step.final_observations)}


@dataclass
class Recording:
    """What an environment did from a seed on, and what was wrong with it."""

    seed: int
    num_envs: int
    first: bytes = b""
    actions: list[Actions] = field(default_factory=list)
    steps: list[dict[str, bytes]] = field(default_factory=list)
    problems: dict[str, list[str]] = field(default_factory=dict)  # check -> what was wrong, in order
    fault: str | None = None  # what ended it early
    seconds: float = 0.0
    counted: int = 0  # steps that were whole enough to be counted in what follows
    rewards: tuple[float, float, float] = (float("inf"), float("-inf"), 0.0)  # least, greatest, sum
    lengths: list[int] = field(default_factory=list)  # of the episodes that ended
    limits: list[tuple[int, bool]] = field(default_factory=list)  # (length, was it truncated) of each of them
    unmoved: int = 0  # ends whose final observation is also the next first one
    rewritten: str | None = None  # a tensor that changed after it was handed out

    def note(self, problems: Iterable[Problem], where: str) -> None:
        """Remember what was wrong at a step."""
        for check, text in problems:
            self.problems.setdefault(check, []).append(f"{where}: {text}")


class Recorder:
    """Steps an environment with random actions and looks at everything that comes back."""

    def __init__(self, env: VectorEnv, seed: int) -> None:
        self.recording = Recording(seed, env.num_envs)
        self._env, self._conformity, self._choose = env, Conformity(env), RandomActions(env, seed)
        self._elapsed = torch.zeros(env.num_envs, dtype=torch.int64)
        self._kept: list[tuple[int, str, Any, bytes]] = []  # step, field, tensors, digest when they came

    def run(self, steps: int, seconds: float | None) -> Recording:
        """Take `steps` vector steps, fewer when `seconds` have passed or the environment fails."""
        recording, start = self.recording, time.perf_counter()
        try:
            obs = self._reset()
            for index in range(steps):
                obs = self._step(index, obs)
                recording.seconds = time.perf_counter() - start
                if seconds is not None and recording.seconds > seconds and index + 1 >= FEWEST_STEPS:
                    break
        except CheckFailed as failed:
            recording.fault = str(failed)
        self._look_again()
        return recording

    def _reset(self) -> Observation:
        with watched():
            obs = self._env.reset(self.recording.seed)
            self.recording.first = digest(obs)
            self.recording.note(self._conformity.observations(obs), "reset")
        self._kept.append((0, "observations", obs, self.recording.first))
        return obs

    def _step(self, index: int, obs: Observation) -> Observation:
        recording, where = self.recording, f"vector step {index + 1}"
        with watched():
            actions = self._choose(obs)
            before = tree_map(torch.clone, actions)
            step = self._env.step(actions)
            digests = step_digests(step)
            problems = list(self._conformity.step(step))
        recording.note(problems, where)
        recording.actions.append(before)
        recording.steps.append(digests)
        if index < KEPT_STEPS:
            self._kept += [(index + 1, name, part, digests[name]) for name, part in step._asdict().items()]
            self._kept.append((index + 1, "actions", actions, digest(before)))
        if not any(check in ("shapes", "types") for check, _ in problems):
            self._count(step)
        return step.observations

    def _count(self, step: Step) -> None:
        recording = self.recording
        recording.counted += 1
        least, greatest, total = recording.rewards
        rewards = step.rewards.double()
        recording.rewards = (
            min(least, rewards.min().item()), max(greatest, rewards.max().item()), total + rewards.sum().item()
        )  # fmt: skip
        self._elapsed += 1
        for row in (step.terminated | step.truncated).nonzero().flatten().tolist():
            recording.lengths.append(int(self._elapsed[row]))
            recording.limits.append((int(self._elapsed[row]), bool(step.truncated[row])))
            pairs = zip(tree_leaves(step.observations), tree_leaves(step.final_observations), strict=True)
            recording.unmoved += all(torch.equal(new[row], old[row]) for (_, new), (_, old) in pairs)
            self._elapsed[row] = 0

    def _look_again(self) -> None:
        for index, name, part, before in self._kept:
            if digest(part) != before:
                self.recording.rewritten = f"{name} of vector step {index} were written to after they had been returned"
                return


def follow(env: VectorEnv, recording: Recording, start: int, end: int) -> str | None:
    """Step the recorded actions from `start` to `end` and return where the first difference is."""
    for index in range(start, end):
        with watched():
            found = step_digests(env.step(tree_map(torch.clone, recording.actions[index])))
        for name, expected in recording.steps[index].items():
            if found[name] != expected:
                return f"{name} at vector step {index + 1}"
    return None


def number_infos(env: gymnasium.Env[Any, Any], seed: int) -> list[str]:
    """Return the names of all numbers in the infos of a few steps of a single environment, and close it."""
    env.action_space.seed(seed)
    env.reset(seed=seed)
    found: set[str] = set()
    for _ in range(3):
        _, _, terminated, truncated, info = env.step(env.action_space.sample())
        found |= {key for key, value in info.items() if isinstance(value, int | float | np.number | np.bool_)}
        if terminated or truncated:
            env.reset()
    env.close()
    return sorted(found)
