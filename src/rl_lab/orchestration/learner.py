"""The orchestrator of a run whose data comes from actors: publishes weights, and lets go of what it has learned."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rl_lab.core.phase import Phase
from rl_lab.core.workflow import CollectResult
from rl_lab.orchestration.bulletin import Bulletin, pack, weights_of
from rl_lab.orchestration.orchestrator import Orchestrator
from rl_lab.orchestration.phase_scheduler import Action
from rl_lab.orchestration.remote_collector import RemoteCollector
from rl_lab.orchestration.serving import Inference
from rl_lab.tracking.atomic import replace_file
from rl_lab.tracking.checkpoint import CheckpointStore

_ASKED_S = 0.005  # between two looks at questions while steps are waited for
_FAREWELL_S, _LOOK_S = 10.0, 0.05  # for actors to hear that the run is over


class Cursors:
    """The place in the log of every checkpoint that is kept, in a file, so that no checkpoint has to be read for it."""

    def __init__(self, file: Path, checkpoints: CheckpointStore) -> None:
        self._file, self._checkpoints = file, checkpoints

    def add(self, name: str, cursor: dict[str, Any]) -> dict[str, Any]:
        """Note the cursor of a new checkpoint and return that of the oldest one."""
        kept = {entry.path.name for entry in self._checkpoints.entries()}
        known = {key: value for key, value in self._read().items() if key in kept} | {name: cursor}
        replace_file(self._file, json.dumps(known))
        oldest: dict[str, Any] = known[min(known)] if kept <= known.keys() else {}
        return oldest

    def _read(self) -> dict[str, Any]:
        with suppress(FileNotFoundError, ValueError):
            found: dict[str, Any] = json.loads(self._file.read_text())
            return found
        return {}


class Learner(Orchestrator):
    """Runs a workflow through its phases on what actors send.

    Args:
        remote: Where steps come from.
        publish_updates: Updates between two versions of the weights.
        publish: Modules that actors need; None: what the workflow broadcasts.
        cursors: Of the checkpoints; None where there is no log (in one process).
        is_waited_for: Whether actors that are ahead wait to hear how far this one has come.
        inference: What acts for actors whose policy is here.
        parts: As of every orchestrator.
    """

    def __init__(
        self,
        *,
        remote: RemoteCollector,
        publish_updates: int,
        publish: Sequence[str] | None,
        cursors: Cursors | None,
        is_waited_for: bool = False,
        inference: Inference | None = None,
        **parts: Any,
    ) -> None:
        super().__init__(collector=remote, **parts)
        self.remote, self._cursors = remote, cursors
        self._every, self._publish_parts = publish_updates, publish
        self._told: Bulletin | None = None  # what actors were told last
        self._told_updates = 0  # updates when a new version was due last
        self._numbers = {phase.name: number for number, phase in enumerate(self.scheduler.phases)}
        self.tracker.watched = self._watched
        self._is_waited_for, self._inference = is_waited_for, inference
        remote.meanwhile = self._meanwhile
        if inference is not None:
            remote.look_s = _ASKED_S

    def _run(self) -> None:
        if self.remote.receiver.address:
            self.tracker.event("listening", message=f"listens on {self.remote.receiver.address}")
        if self._told is None:
            self._publish()
        super()._run()
        self._publish(is_over=True)
        self._say_farewell()

    def _perform(self, action: Action) -> None:
        super()._perform(action)
        self._answer()
        phase = self._numbers[self.scheduler.current_phase().name]
        if self.counters.updates - self._told_updates >= self._every or self._told is None or phase != self._told.phase:
            self._publish()
            self._told_updates = self.counters.updates

    def _step_environment(self, action: Action, phase: Phase) -> CollectResult:
        self.remote.enter(self._numbers[phase.name])
        return super()._step_environment(action, phase)

    def save(self, *, is_final: bool = False) -> None:
        """Write a checkpoint, and let go of the log before the oldest one."""
        super().save(is_final=is_final)
        if not self._is_saved or self._cursors is None:
            return
        newest = self.checkpoints.entries()[-1].path.name
        if oldest := self._cursors.add(newest, self.remote.receiver.get_state()):
            self.remote.receiver.release(oldest)

    def get_state(self) -> dict[str, Any]:
        """Return everything a new process needs; in one process, what the actor has been told is a part of it."""
        state = super().get_state()
        return {**state, "told_updates": self._told_updates}

    def restore(self, state: Any, mode: Any = "exact", **options: Any) -> None:
        """Go on from `state`, as every orchestrator does."""
        super().restore(state, mode, **options)
        if mode == "exact":
            self._told_updates = state["told_updates"]
            if self.remote.actor is not None:
                self._told = self.remote.actor.told

    def _answer(self) -> None:
        if self._inference is not None:
            with self.tracker.timer("answer"):
                self._inference.answer(self.counters.env_steps)

    def _meanwhile(self, has_come: bool) -> None:
        """Act for actors, and tell those who wait for the learner how far it has come."""
        self._answer()
        is_behind = self._told is not None and dict(self._told.taken) != self.remote.streams.taken
        if self._is_waited_for and not has_come and is_behind:
            self._publish()

    def _publish(self, *, is_over: bool = False) -> None:
        phase = self._numbers[self.scheduler.current_phase().name]
        told = Bulletin(self.counters.env_steps, phase, is_over, dict(self.remote.streams.taken))
        with self.tracker.timer("publish"):
            self.remote.receiver.publish(pack(weights_of(self.workflow, self._publish_parts), told))
        self._told = told

    def _say_farewell(self) -> None:
        """Give actors the time to hear that no more steps are wanted; they leave then."""
        end = time.monotonic() + _FAREWELL_S
        while self.remote.actor is None and self.remote.receiver.status().num_connected and time.monotonic() < end:
            time.sleep(_LOOK_S)

    def _watched(self) -> dict[str, float]:
        connected, unread = self.remote.receiver.status()
        late, cut = self.remote.num_late, self.remote.streams.num_cut
        numbers = {"connected": connected, "steps_behind": unread, "late_steps": late, "cut_episodes": cut}
        return {f"actors/{name}": float(number) for name, number in numbers.items()}
