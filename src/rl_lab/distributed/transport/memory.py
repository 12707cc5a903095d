"""Both ends in one process: a bounded queue. What has not been received is part of the receiver's state."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rl_lab.core.trees import Tree
from rl_lab.distributed.transport.interface import (
    NoRoom,
    Received,
    Receiver,
    ReceiverStatus,
    Sender,
    SenderStatus,
    Weights,
)
from rl_lab.distributed.transport.schema import Schema

RUN = "memory"


class MemoryReceiver(Receiver):
    """The learner's end, which holds the queue."""

    def __init__(self, schema: Schema, max_bytes: int) -> None:
        self._schema, self._max_steps = schema, max(1, max_bytes // max(1, schema.step_bytes))
        self._changed = threading.Condition()
        self._queue: deque[tuple[str, int, bytes]] = deque()
        self._cursors: dict[str, int] = {}  # the next step of each actor
        self._newest: Weights | None = None

    def put(self, actor: str, step: Tree, timeout_s: float | None) -> int:
        """Queue a step; waits for room."""
        payload = self._schema.encode(step)
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._queue) < self._max_steps, timeout_s):
                raise NoRoom(f"a step of {actor} was not recorded: the learner is {self._max_steps} behind")
            seq = self._cursors.get(actor, 0)
            self._cursors[actor] = seq + 1
            self._queue.append((actor, seq, payload))
            self._changed.notify_all()
            return seq

    def receive(self, max_steps: int, timeout_s: float) -> list[Received]:
        """Return the next steps of the queue."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._queue), timeout_s)
            taken = [self._queue.popleft() for _ in range(min(max_steps, len(self._queue)))]
            self._changed.notify_all()
        return [Received(actor, RUN, seq, self._schema.decode(payload)) for actor, seq, payload in taken]

    def wait_empty(self, timeout_s: float) -> bool:
        """Return whether the queue was empty in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue, timeout_s)

    def cursor(self, actor: str) -> tuple[int, int]:
        """Return the number of an actor's next step, and of its oldest one in the queue."""
        with self._changed:
            following = self._cursors.get(actor, 0)
            return following, next((seq for name, seq, _ in self._queue if name == actor), following)

    @property
    def newest(self) -> Weights | None:
        """Return the newest version."""
        return self._newest

    def publish(self, tensors: Mapping[str, Tensor]) -> int:
        """Copy the tensors: the learner goes on changing its own."""
        version = self._newest.version + 1 if self._newest else 1
        self._newest = Weights(version, {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()})
        return version

    def get_state(self) -> dict[str, Any]:
        """Return the numbers of all actors, and what waits in the queue."""
        with self._changed:
            data = b"".join(payload for _, _, payload in self._queue)
            waiting = (
                torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.zeros(0, dtype=torch.uint8)
            )
            order = [[actor, seq] for actor, seq, _ in self._queue]
            return {"cursors": dict(self._cursors), "order": order, "waiting": waiting}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Hold the numbers and the queue of `state`."""
        data, size = state["waiting"].numpy().tobytes(), self._schema.step_bytes
        with self._changed:
            self._cursors = dict(state["cursors"])
            self._queue = deque(
                (actor, seq, data[place * size : (place + 1) * size])
                for place, (actor, seq) in enumerate(state["order"])
            )
            self._changed.notify_all()

    def release(self, state: Mapping[str, Any]) -> None:
        """There is nothing to delete."""

    def status(self) -> ReceiverStatus:
        """Return how many actors have sent anything, and what waits in the queue."""
        with self._changed:
            return ReceiverStatus(len(self._cursors), len(self._queue))


class MemorySender(Sender):
    """The actor's end."""

    def __init__(self, receiver: MemoryReceiver, actor: str) -> None:
        self._receiver, self._actor, self._version = receiver, actor, 0

    @property
    def run(self) -> str:
        """Return the one name that there is."""
        return RUN

    def send(self, step: Tree, timeout_s: float | None = None, *, is_last: bool = False) -> int:
        """Queue a step; there is no disk for a last one."""
        return self._receiver.put(self._actor, step, timeout_s)

    def newest_weights(self) -> Weights | None:
        """Return the newest version, once."""
        newest = self._receiver.newest
        if newest is None or newest.version == self._version:
            return None
        self._version = newest.version
        return newest

    def flush(self, timeout_s: float) -> bool:
        """Wait until the learner has taken all steps."""
        return self._receiver.wait_empty(timeout_s)

    def status(self) -> SenderStatus:
        """Return how far the steps have come."""
        return SenderStatus(True, *self._receiver.cursor(self._actor), "")
