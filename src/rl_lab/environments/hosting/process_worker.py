"""The worker side of the process pool: steps its share of the members in shared memory. Knows no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from rl_lab.environments.hosting.codec import Array, Arrays
from rl_lab.environments.hosting.group import Blueprint, Group, MemberFault, StepArrays


@dataclass(frozen=True)
class SharedBlock:
    """One array in anonymous shared memory: it has no name, so nothing is left behind however the processes end."""

    raw: Any  # multiprocessing.RawArray
    shape: tuple[int, ...]
    dtype: type[np.generic]

    def array(self) -> Array:
        """Return the view of this process."""
        return np.frombuffer(self.raw, dtype=self.dtype, count=math.prod(self.shape)).reshape(self.shape)


@dataclass(frozen=True)
class SharedStep:
    """All that passes between the processes at a step."""

    observations: dict[str, SharedBlock]
    finals: dict[str, SharedBlock]
    rewards: SharedBlock
    terminated: SharedBlock
    truncated: SharedBlock
    infos: SharedBlock  # [info_keys, num_envs]
    actions: SharedBlock
    cursors: SharedBlock  # per worker: which of its members is at work, readable after it died


@dataclass(frozen=True)
class Share:
    """Which members a worker hosts."""

    worker: int
    first: int
    count: int

    @property
    def rows(self) -> slice:
        """Return the rows of its members."""
        return slice(self.first, self.first + self.count)


def run_worker(pipe: Connection, blueprint: Blueprint, share: Share, shared: SharedStep) -> None:
    """Answer the parent's commands until it says `close` or is gone."""
    try:
        _serve(pipe, _Worker(blueprint, share, shared))
    except MemberFault as fault:
        pipe.send(("fault", fault.args))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the parent is gone


def _serve(pipe: Connection, worker: _Worker) -> None:
    pipe.send(("done", None))
    while True:
        command, payload = pipe.recv()
        if command == "close":
            worker.group.close()
            return
        try:
            pipe.send(("done", worker.answer(command, payload)))
        except MemberFault as fault:
            pipe.send(("fault", fault.args))


class _Worker:
    def __init__(self, blueprint: Blueprint, share: Share, shared: SharedStep) -> None:
        rows = share.rows
        self._observations = _views(shared.observations, rows)
        self._actions = shared.actions.array()[rows]
        rewards, terminated, truncated = (
            block.array()[rows] for block in (shared.rewards, shared.terminated, shared.truncated)
        )
        finals, infos = _views(shared.finals, rows), shared.infos.array()[:, rows]
        self._out = StepArrays(self._observations, rewards, terminated, truncated, finals, infos)
        cursor = shared.cursors.array()[share.worker : share.worker + 1]
        self.group = Group(blueprint, share.first, share.count, cursor)

    def answer(self, command: str, payload: Any) -> Any:
        if command == "step":
            self._out.terminated[:] = self._out.truncated[:] = False
            return self.group.step(self._actions, self._out)
        if command == "reset":
            return self.group.reset(payload, self._observations)
        if command == "get_state":
            return self.group.get_state(self._observations)
        if command == "set_state":
            return self.group.set_state(payload, self._observations)
        if command == "instruct":
            return self.group.instruct(payload)
        assert command == "render", command
        return self.group.render()


def _views(blocks: dict[str, SharedBlock], rows: slice) -> Arrays:
    return {name: block.array()[rows] for name, block in blocks.items()}
