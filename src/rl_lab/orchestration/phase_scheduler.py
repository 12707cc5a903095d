"""A state machine over the phases of a run: what to do next, and when a phase ends.

A cycle runs the hooks of a phase once, in order. A phase ends, and `total_timesteps` is tested, only at the end of a
cycle; once it is reached no phase collects any more, while offline and evaluation phases that follow still run. With
`train_ratio` the update hooks of a cycle run as a group, as often as the env steps collected so far pay for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from rl_lab.core.clocks import Every, Ratio
from rl_lab.core.context import Counters
from rl_lab.core.errors import CheckpointError, LabError
from rl_lab.core.phase import COLLECT, HookCall, Phase, Unit
from rl_lab.orchestration.signals import Paused


class Action(NamedTuple):
    """What to do now: run `hook`; for `collect` at most `repeats` vector steps, otherwise once."""

    hook: str
    repeats: int = 1


class Block(NamedTuple):
    """Hooks of a cycle that run one after another, `train_ratio` times per env step or once."""

    calls: tuple[HookCall, ...]
    uses_ratio: bool


@dataclass
class Cursor:
    """Where the machine stands. All of it is checkpointed."""

    phase: int = 0
    block: int = 0
    runs_left: int = 1  # of the current block, the running one included
    call: int = 0
    repeats_done: int = 0
    steps: int = 0  # env steps, updates and cycles done in this phase
    updates: int = 0
    cycles: int = 0
    skipped: int = 0  # updates that could not be done because the buffer was not ready
    ratio_steps: int = 0  # env steps not yet offered to the ratio
    ratio: dict[str, int] = field(default_factory=lambda: {"steps": 0, "runs": 0})
    clocks: dict[str, int] = field(default_factory=dict)  # "block.call" -> Every.last
    finished: bool = False

    def done(self, unit: Unit) -> int:
        """Return how many of `unit` this phase has done."""
        return self.steps if unit == "steps" else self.updates if unit == "updates" else self.cycles


def _blocks(phase: Phase) -> tuple[Block, ...]:
    if phase.train_ratio is None:
        return (Block(phase.hooks, False),)
    groups = groupby(phase.hooks, key=lambda call: call.is_update)
    return tuple(Block(tuple(calls), is_update) for is_update, calls in groups)


class PhaseScheduler:
    """Says which hook comes next. `next_action` only looks; `advance` moves."""

    def __init__(self, phases: Sequence[Phase], total_timesteps: int, counters: Counters | None = None) -> None:
        self.phases = tuple(phases)
        self.total_timesteps = total_timesteps
        self.counters = counters or Counters()
        self.pause_at: int | None = None  # env steps after which no cycle is begun, until it is said otherwise
        self._blocks = tuple(_blocks(phase) for phase in self.phases)
        self._cursor = Cursor()
        self._enter_phase()
        self._settle()

    def is_finished(self) -> bool:
        """Return whether nothing is left to do."""
        return self._cursor.finished

    @property
    def is_within_action(self) -> bool:
        """Return whether a part of what was asked for is left to do, of a rollout for example."""
        return self._cursor.repeats_done > 0

    @property
    def is_paused(self) -> bool:
        """Return whether the next cycle is not to be begun: what its predecessor brought (a row, a score) is there."""
        if self.pause_at is None or self.counters.env_steps < self.pause_at or self._cursor.finished:
            return False
        blocks, cursor = self._blocks[self._cursor.phase], self._cursor
        before = [call for block in blocks[: cursor.block] for call in block.calls]
        before += blocks[cursor.block].calls[: cursor.call]  # those with a clock may have been passed over
        return not self.is_within_action and all(call.every_steps or call.every_updates for call in before)

    def leave_if_paused(self) -> None:
        """Raise Paused where the next cycle is not to be begun."""
        if self.is_paused:
            raise Paused(self.counters.env_steps)

    def current_phase(self) -> Phase:
        """Return the running phase with its progress; after the end, the last one."""
        phase, cursor = self.phases[self._cursor.phase], self._cursor
        progress = 1.0 if cursor.finished else min(1.0, cursor.done(phase.unit) / phase.duration)
        # Asked for before every action: a sixth of what dataclasses.replace takes.
        return Phase(
            phase.name,
            phase.type,
            phase.hooks,
            phase.unit,
            phase.duration,
            phase.buffer,
            phase.train_ratio,
            progress,
            phase.options,
        )

    def next_action(self) -> Action | None:
        """Return what to do now, or None at the end and where the run pauses."""
        if self._cursor.finished or self.is_paused:
            return None
        call = self._call()
        return Action(call.name, call.times - self._cursor.repeats_done if call.name == COLLECT else 1)

    def advance(self, action: Action, *, repeats: int = 1, steps: int = 0, updates: int = 0, skipped: int = 0) -> None:
        """Take note of what was done of `action`; an update that could not be done is skipped, not done."""
        cursor, call = self._cursor, self._call()
        if cursor.finished or action.hook != call.name:
            raise ValueError(f"expected {call.name!r}, was told that {action.hook!r} was done")
        self.counters.env_steps += steps
        self.counters.updates += updates
        cursor.steps += steps
        cursor.updates += updates
        cursor.skipped += skipped
        cursor.ratio_steps += steps
        cursor.repeats_done += repeats
        if cursor.repeats_done >= call.times:
            cursor.repeats_done = 0
            cursor.call += 1
            self._settle()

    def _call(self) -> HookCall:
        return self._blocks[self._cursor.phase][self._cursor.block].calls[self._cursor.call]

    def _settle(self) -> None:
        """Move to the next call that is to be run: past clocks that are not due, ended blocks, cycles and phases."""
        while not self._cursor.finished:
            cursor, blocks = self._cursor, self._blocks[self._cursor.phase]
            if cursor.block == len(blocks):
                self._end_cycle()
            elif cursor.runs_left == 0:
                self._enter_block(cursor.block + 1)
            elif cursor.call == len(blocks[cursor.block].calls):
                cursor.runs_left -= 1
                cursor.call = 0
            elif self._is_due():
                return
            else:
                cursor.call += 1

    def _is_due(self) -> bool:
        call = self._call()
        if not (call.every_steps or call.every_updates) or self._cursor.repeats_done:
            return True
        key = f"{self._cursor.block}.{self._cursor.call}"
        clock, counter = self._clock(call, self._cursor.clocks[key])
        due = clock(counter)
        self._cursor.clocks[key] = clock.last
        return due

    def _clock(self, call: HookCall, last: int) -> tuple[Every, int]:
        if call.every_steps:
            return Every(call.every_steps, last), self.counters.env_steps
        return Every(call.every_updates or 1, last), self.counters.updates

    def _enter_block(self, index: int) -> None:
        cursor, blocks = self._cursor, self._blocks[self._cursor.phase]
        cursor.block, cursor.call, cursor.runs_left = index, 0, 1
        if index < len(blocks) and blocks[index].uses_ratio:
            ratio = Ratio(self.phases[cursor.phase].train_ratio or 0.0, **cursor.ratio)
            cursor.runs_left = ratio(cursor.ratio_steps)
            cursor.ratio = {"steps": ratio.steps, "runs": ratio.runs}
            cursor.ratio_steps = 0

    def _end_cycle(self) -> None:
        cursor, phase = self._cursor, self.phases[self._cursor.phase]
        cursor.cycles += 1
        self.counters.cycles += 1
        if cursor.done(phase.unit) < phase.duration and not (phase.type == "online" and self._total_is_reached()):
            self._enter_block(0)
            return
        if cursor.skipped and not cursor.updates:
            raise LabError(
                f"phase {phase.name!r} ended without one update: buffer {phase.buffer!r} was never ready "
                f"({cursor.skipped} updates skipped)"
            )
        following = range(cursor.phase + 1, len(self.phases))
        later = [i for i in following if not (self.phases[i].type == "online" and self._total_is_reached())]
        if later:
            self._cursor = Cursor(phase=later[0])
            self._enter_phase()
        else:
            cursor.finished = True

    def _total_is_reached(self) -> bool:
        return self.counters.env_steps >= self.total_timesteps

    def _enter_phase(self) -> None:
        """Start the phase's clocks from now, so that what an earlier phase has done is not done again."""
        for block_index, block in enumerate(self._blocks[self._cursor.phase]):
            for call_index, call in enumerate(block.calls):
                if call.every_steps or call.every_updates:
                    clock, counter = self._clock(call, 0)
                    clock(counter)
                    self._cursor.clocks[f"{block_index}.{call_index}"] = clock.last
        self._enter_block(0)

    def get_state(self) -> dict[str, Any]:
        """Return the cursor. The counters are saved by their owner."""
        return {"phases": [phase.name for phase in self.phases], "plan": self._plan(), "cursor": asdict(self._cursor)}

    def _plan(self) -> list[int]:
        return [self.total_timesteps, *(phase.duration for phase in self.phases)]

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Stand where `state` stood; a finished run goes on when its totals have grown."""
        names = [phase.name for phase in self.phases]
        if list(state["phases"]) != names:
            raise CheckpointError(f"the checkpoint was made with phases {list(state['phases'])}, this run has {names}")
        self._cursor = Cursor(**{**state["cursor"], "clocks": dict(state["cursor"]["clocks"])})
        if self._cursor.finished:
            self._reopen()
        if self._cursor.finished and list(state["plan"]) != self._plan():
            last = self.phases[self._cursor.phase].name
            raise CheckpointError(f"the run has ended with phase {last!r}; only its duration can be made longer")

    def _reopen(self) -> None:
        """Undo the end of the last cycle and decide again with today's durations."""
        self._cursor.finished = False
        self._cursor.cycles -= 1
        self.counters.cycles -= 1
        self._end_cycle()
        self._settle()
