"""Collects from actors: takes steps from the transport instead of stepping an environment.

What comes of it is a function of the learner's log alone. A learner that goes back to a checkpoint reads the same steps
again and learns the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rl_lab.core.buffer import Buffer, Trajectory, Witness
from rl_lab.core.environment import VectorEnv
from rl_lab.core.errors import EnvironmentFault
from rl_lab.core.metrics import Mean
from rl_lab.core.phase import Phase
from rl_lab.core.trees import tree_map, tree_stack
from rl_lab.core.workflow import BehaviourPolicy, CollectResult
from rl_lab.distributed.transport.interface import Receiver
from rl_lab.orchestration.actor import Actor
from rl_lab.orchestration.collector import Collector, Timer
from rl_lab.orchestration.interventions import Interventions
from rl_lab.orchestration.notes import witness_of
from rl_lab.orchestration.streams import ActorStreams, Row
from rl_lab.orchestration.supervision import IS_INTERVENTION


class RemoteCollector(Collector):
    """One column of steps that actors recorded.

    A step that an actor recorded in an earlier phase of the run goes into the buffer of that phase; it is not counted
    among the steps that this phase asked for.

    Args:
        env: What tells the spec and the device; it is not stepped.
        receiver: Where steps come from.
        streams: What makes one column of them.
        phases: Of the run.
        buffers: By name.
        timer: Of the tracker.
        actor: Of `transport.kind: memory`: takes a step in this process whenever one is wanted.
        journal: Where it is written down who acted when, where actors tell.
    """

    def __init__(
        self,
        env: VectorEnv,
        receiver: Receiver,
        streams: ActorStreams,
        phases: Sequence[Phase],
        buffers: Mapping[str, Buffer],
        timer: Timer,
        actor: Actor | None = None,
        journal: Interventions | None = None,
    ) -> None:
        super().__init__(env, 0, timer)
        self.receiver, self.streams, self.actor, self._journal = receiver, streams, actor, journal
        self._phases, self._buffers, self._phase = tuple(phases), buffers, 0
        self.num_late = 0  # steps of earlier phases
        self.look_s = 0.25  # between two looks whether a stop is asked for, or anything else
        self.meanwhile: Callable[[bool], None] = lambda has_come: None  # called after each look for steps

    def enter(self, phase: int) -> None:
        """Collect for this phase from here on."""
        self._phase = phase

    def collect(
        self, workflow: BehaviourPolicy, vector_steps: int, *, env_steps: int, should_stop: Callable[[], bool]
    ) -> CollectResult:
        """Take `vector_steps` steps; fewer when asked to stop, or when another phase or another watcher comes next."""
        rows: list[Row] = []
        try:
            self._gather(rows, vector_steps, env_steps, should_stop)
        except EnvironmentFault:  # of the actor in this process
            self._take_rest(rows, env_steps)
            self.at_hand = CollectResult(len(rows), len(rows), self._stacked(rows), seen=_seen(rows)) if rows else None
            raise
        if not rows:
            return CollectResult(0, 0)
        trajectory = self._stacked(rows)
        infos = trajectory.get("infos")
        self._episodes.add(trajectory["rewards"], trajectory["terminated"] | trajectory["truncated"], infos)
        return CollectResult(len(rows), len(rows), trajectory, _interventions(infos), _seen(rows))

    def _gather(self, rows: list[Row], vector_steps: int, env_steps: int, should_stop: Callable[[], bool]) -> None:
        """Add steps of this phase and of one watcher to the rows."""
        while len(rows) < vector_steps and not should_stop():
            following = self.streams.next()
            if following is None:
                self._receive(vector_steps - len(rows))
            elif rows and (following.phase != self._phase or _watcher(following) != _watcher(rows[0])):
                break  # what was taken comes first in the buffer as well
            elif following.phase == self._phase:
                rows.append(self._take(env_steps + len(rows)))
            else:
                self._store_late(self._take(env_steps))

    def _take_rest(self, rows: list[Row], env_steps: int) -> None:
        """Take all that came from the actor in this process; its phases follow one another, so late steps are first."""
        self.streams.cut()
        while (following := self.streams.next()) is not None:
            if following.phase == self._phase:
                rows.append(self._take(env_steps + len(rows)))
            else:
                self._store_late(self._take(env_steps))

    def get_state(self) -> dict[str, Any]:
        """Return the place in the log, and what was read from it and waits."""
        return {
            "receiver": self.receiver.get_state(),
            "streams": self.streams.get_state(),
            "episodes": self._episodes.get_state(),
            "num_late": self.num_late,
            **({} if self._journal is None else {"interventions": self._journal.get_state()}),
            **({} if self.actor is None else {"actor": self.actor.get_state()}),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Read on in the log where `state` was taken."""
        self.receiver.set_state(state["receiver"])
        self.streams.set_state(state["streams"])
        self._episodes.set_state(state["episodes"])
        self.num_late = state["num_late"]
        if self._journal is not None and "interventions" in state:  # early checkpoints did not tell
            self._journal.set_state(state["interventions"])
        if self.actor is not None:
            self.actor.set_state(state["actor"])

    def close(self) -> None:
        """Stop listening."""
        if self.actor is not None:
            self.actor.close()
        self.receiver.close()
        super().close()

    def _receive(self, max_steps: int) -> None:
        """Wait a moment for steps."""
        if self.actor is not None:
            self.actor.step()
        with self._timer("receive"):
            received = self.receiver.receive(max_steps, 0.0 if self.actor is not None else self.look_s)
        for step in received:
            self.streams.add(step)
        self.meanwhile(bool(received))

    def _take(self, env_steps: int) -> Row:
        """Return the row that comes next, and note who acted in it."""
        row = self.streams.take()
        if row.note is not None and self._journal is not None:
            self._journal.hear(row.note.actor, row.note.acting, env_steps, row.note.taken_at)
        return row

    def _store_late(self, row: Row) -> None:
        self.num_late += 1
        buffer = self._phases[row.phase].buffer if row.phase < len(self._phases) else None
        if buffer is not None:
            self._buffers[buffer].receive(self._stacked([row]), _seen([row]))

    def _stacked(self, rows: Sequence[Row]) -> Trajectory:
        device = self.env.device
        trajectory: Trajectory = tree_map(lambda leaf: leaf.to(device), tree_stack([row.step for row in rows]))
        return trajectory


def _watcher(row: Row) -> str:
    return "" if row.note is None else row.note.watcher


def _seen(rows: Sequence[Row]) -> Witness | None:
    notes = [row.note for row in rows if row.note is not None]
    return witness_of(notes) if notes else None


def _interventions(infos: Mapping[str, Tensor] | None) -> dict[str, Any]:
    """Return the share of steps in which an operator acted, where there is one."""
    if infos is None or IS_INTERVENTION not in infos:
        return {}
    flags = infos[IS_INTERVENTION]
    return {"interventions": Mean(flags.sum(dtype=torch.float64), float(flags.numel()))}
