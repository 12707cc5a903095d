"""Gymnasium members in worker processes: observations, rewards and actions pass through shared memory, never a pipe.

Workers are spawned (no forked threads or locks), import no torch, and leave SIGINT and SIGTERM to the parent, so that
an interrupted run can still ask them for their state. They end when the parent closes them or dies.
A worker that dies, or takes longer than it may, is a fault of the member at work; or, by choice, another one takes over
its members: their step counts as truncated after the last known observation, and they begin new episodes. A worker that
dies again and again is a fault all the same.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker, util
from multiprocessing.connection import Connection
from typing import Any, Literal

import numpy as np

from rl_lab.core import ConfigError, Instruction
from rl_lab.environments.hosting.backend import Backend, Outcome, merge_finals
from rl_lab.environments.hosting.codec import Array, Arrays, ObservationCodec
from rl_lab.environments.hosting.foreign import Watch
from rl_lab.environments.hosting.group import Blueprint, MemberFault
from rl_lab.environments.hosting.member import next_seed
from rl_lab.environments.hosting.process_worker import Share, SharedBlock, SharedStep, run_worker

CONTEXT = multiprocessing.get_context("spawn")
CLOSE_S = 5.0  # how long a worker may take to close its members
TIMED = ("step", "reset")  # what `timeout_s` is about; making and replaying members may take long
MOST_RESTARTS, RESTART_WINDOW = 3, 100  # of one worker, and within how many vector steps
logger = logging.getLogger(__name__)


class ProcessPool(Backend):
    """`num_envs` members spread evenly over worker processes."""

    def __init__(
        self,
        blueprint: Blueprint,
        num_envs: int,
        num_workers: int | None = None,
        *,
        on_crash: Literal["raise", "restart"] = "raise",
        timeout_s: float | None = None,
    ) -> None:
        count = min(num_envs, num_workers or os.cpu_count() or 1)
        self._blueprint, self._can_restart, self._timeout_s = blueprint, on_crash == "restart", timeout_s
        self._shared = _share_step(blueprint, num_envs, count)
        self._bind_views()
        bounds = np.linspace(0, num_envs, count + 1).astype(int).tolist()
        self._shares = [Share(i, bounds[i], bounds[i + 1] - bounds[i]) for i in range(count)]
        self._seeds = [0] * num_envs  # of the members, as they were last seeded
        self._latest: Arrays = {}  # the observations last returned: a dying worker may leave half-written ones
        self._steps = 0  # vector steps taken
        self._restarts: list[list[int]] = [[] for _ in self._shares]  # per worker: after how many steps, the last ones
        self._workers: list[Worker] = []
        self._finalizer = util.Finalize(self, _close_workers, (self._workers,), exitpriority=10)
        with Watch(self._start_error), _signals_left_to_parent():
            for share in self._shares:
                self._workers.append(Worker(blueprint, share, self._shared))
        self._collect("being made")

    def reset(self, seeds: Sequence[int]) -> Arrays:
        """Start every member with its seed and return the observations."""
        self._seeds = list(seeds)
        self._ask("reset", [seeds[share.rows] for share in self._shares])
        self._latest = _copies(self._observations)
        return self._latest

    def step(self, actions: Array) -> Outcome:
        """Step every member, all workers at once."""
        self._actions[...] = actions
        self._steps += 1
        has_ended = self._ask("step", [None] * len(self._workers))
        obs, terminated, truncated = _copies(self._observations), self._terminated.copy(), self._truncated.copy()
        finals = merge_finals(obs, self._finals, terminated | truncated) if any(has_ended) else None
        self._latest = obs
        return Outcome(obs, self._rewards.copy(), terminated, truncated, finals, self._infos.copy())

    def get_state(self) -> list[dict[str, Any]]:
        """Return each member's record, in the order of the members whatever the number of workers."""
        return [state for part in self._ask("get_state", [None] * len(self._workers)) for state in part]

    def set_state(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Go on from each member's record."""
        self._ask("set_state", [list(states[share.rows]) for share in self._shares])
        self._seeds = [int(state["seed"]) for state in states]
        self._latest = _copies(self._observations)

    def render(self) -> Array | None:
        """Return the picture of the first member."""
        self._workers[0].send("render", None)
        (picture,) = self._collect("render", self._workers[:1])
        return picture

    def instruct(self, instruction: Instruction) -> bool:
        """Pass a person's word on to every member."""
        return any(self._ask("instruct", [instruction] * len(self._workers)))

    def close(self) -> None:
        """End the workers; safe to call twice."""
        self._finalizer()

    def _start_error(self, error: Exception) -> ConfigError:
        self.close()
        return ConfigError(f"environment.backend=process cannot start a worker: {' '.join(str(error).split())}")

    def _bind_views(self) -> None:
        shared = self._shared
        self._observations = {name: block.array() for name, block in shared.observations.items()}
        self._finals = {name: block.array() for name, block in shared.finals.items()}
        self._rewards, self._actions = shared.rewards.array(), shared.actions.array()
        self._terminated, self._truncated = shared.terminated.array(), shared.truncated.array()
        self._cursors, self._infos = shared.cursors.array(), shared.infos.array()

    def _ask(self, command: str, payloads: Sequence[Any]) -> list[Any]:
        for worker, payload in zip(self._workers, payloads, strict=True):
            worker.send(command, payload)
        return self._collect(command)

    def _collect(self, doing: str, workers: Sequence[Worker] | None = None) -> list[Any]:
        """Take every worker's answer before complaining about one, so that the pipes stay in step."""
        asked = list(self._workers if workers is None else workers)
        answers = [self._receive(worker, doing) for worker in asked]
        for kind, answer in answers:
            if kind == "fault" or (kind == "lost" and not (self._can_restart and doing in TIMED)):
                raise MemberFault(*answer)
        return [
            self._replace(worker, doing, *answer) if kind == "lost" else answer
            for worker, (kind, answer) in zip(asked, answers, strict=True)
        ]

    def _receive(self, worker: Worker, doing: str) -> tuple[str, Any]:
        try:
            if self._timeout_s is not None and doing in TIMED and not worker.pipe.poll(self._timeout_s):
                worker.process.kill()
                return self._loss(worker, doing, f"gave no answer for {self._timeout_s:g} s")
            kind, answer = worker.pipe.recv()
        except (EOFError, OSError):
            return self._loss(worker, doing, "lost its worker process")
        return kind, answer

    def _loss(self, worker: Worker, doing: str, what: str) -> tuple[str, Any]:
        worker.process.join(CLOSE_S)
        index = worker.share.first + int(self._cursors[worker.share.worker])
        doing = f"step with action {self._actions[index]}" if doing == "step" else doing
        return "lost", (index, doing, f"{what} (pid {worker.process.pid}, exit code {worker.process.exitcode})")

    def _replace(self, lost: Worker, doing: str, index: int, deed: str, what: str) -> bool:
        """Let a new worker take over the share of a lost one; what was begun is reported as truncated."""
        share, rows = lost.share, lost.share.rows
        self._count_restart(share.worker, index, deed, what)
        logger.warning(
            "environment %r (copy %d, %s) %s; copies %d to %d begin new episodes in a new process",
            *(self._blueprint.recipe.id, index, deed, what, share.first, rows.stop - 1),
        )
        lost.close()
        with Watch(self._start_error), _signals_left_to_parent():
            worker = Worker(self._blueprint, share, self._shared)
        self._workers[share.worker] = worker
        self._seeds[rows] = [next_seed(seed) for seed in self._seeds[rows]]
        worker.send("reset", self._seeds[rows])
        for phase in ("being made", "being reset in a new process"):  # lost again: a fault
            kind, answer = self._receive(worker, phase)
            if kind != "done":
                raise MemberFault(*answer)
        if doing == "step":
            self._rewards[rows], self._infos[:, rows] = 0.0, 0.0
            self._terminated[rows], self._truncated[rows] = False, True
            for name, final in self._finals.items():
                final[rows] = self._latest[name][rows]
        return True  # episodes have ended

    def _count_restart(self, worker: int, index: int, deed: str, what: str) -> None:
        """Raise where restarts do not help: every step would be lost, and the run would never notice."""
        recent = [step for step in self._restarts[worker] if step > self._steps - RESTART_WINDOW]
        if len(recent) >= MOST_RESTARTS:
            often = f"after {MOST_RESTARTS} restarts within {RESTART_WINDOW} vector steps"
            raise MemberFault(index, deed, f"{what}, {often}: on_crash=restart does not help")
        self._restarts[worker] = [*recent, self._steps]


class Worker:
    """The parent's handle of one worker process."""

    def __init__(self, blueprint: Blueprint, share: Share, shared: SharedStep) -> None:
        self.share = share
        self.pipe: Connection
        self.pipe, theirs = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=run_worker, args=(theirs, blueprint, share, shared), daemon=False)
        self.process.start()
        theirs.close()  # so that the pipe breaks when the worker dies

    def send(self, command: str, payload: Any) -> None:
        """Give a command; a worker that died is noticed when its answer is awaited."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self.pipe.send((command, payload))

    def close(self) -> None:
        """Wait for the end, or force it."""
        self.process.join(CLOSE_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.pipe.close()
        self.process.close()


def _close_workers(workers: list[Worker]) -> None:
    for worker in workers:
        worker.send("close", None)
    while workers:
        workers.pop().close()


@contextmanager
def _signals_left_to_parent() -> Iterator[None]:
    """Block SIGINT and SIGTERM while processes are spawned: they inherit that for life."""
    resource_tracker.ensure_running()  # starting it later would unblock them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _share_step(blueprint: Blueprint, num_envs: int, num_workers: int) -> SharedStep:
    action = blueprint.action
    return SharedStep(
        observations=_share_observations(blueprint.observation, num_envs),
        finals=_share_observations(blueprint.observation, num_envs),
        rewards=_share((num_envs,), np.float32),
        terminated=_share((num_envs,), np.bool_),
        truncated=_share((num_envs,), np.bool_),
        infos=_share((len(blueprint.info_keys), num_envs), np.float32),
        actions=_share((num_envs, *action.shape), action.dtype),
        cursors=_share((num_workers,), np.int64),
    )


def _share_observations(codec: ObservationCodec, num_envs: int) -> dict[str, SharedBlock]:
    return {name: _share((num_envs, *leaf.shape), leaf.dtype) for name, leaf in codec.leaves.items()}


def _share(shape: tuple[int, ...], dtype: type[np.generic]) -> SharedBlock:
    num_bytes = max(1, math.prod(shape)) * np.dtype(dtype).itemsize  # an empty array has a place, too
    return SharedBlock(CONTEXT.RawArray("b", num_bytes), shape, dtype)


def _copies(arrays: Arrays) -> Arrays:
    return {name: array.copy() for name, array in arrays.items()}
