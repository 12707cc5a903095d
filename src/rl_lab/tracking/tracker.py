"""What a run writes down: metrics as a pure function of the run, wall-clock facts apart from them, and events.

`metrics.jsonl` of a run that was killed and resumed is byte for byte that of one that was not: a checkpoint holds the
running sums, the clocks and the size of the file, and a restore cuts the file back to that size.
Order of calls: make it, `set_state` when resuming, `open`, then all the others, `close`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from math import isfinite, isnan
from typing import Any

from rl_lab.core.clocks import Every
from rl_lab.core.context import Counters
from rl_lab.core.durable import reason
from rl_lab.core.errors import NotFiniteError
from rl_lab.core.metrics import Metrics
from rl_lab.core.ranks import ALONE, Ranks
from rl_lab.tracking.accumulators import Accumulators
from rl_lab.tracking.hash_chain import Extent, HashChain
from rl_lab.tracking.jsonl import JsonLines, last_row, read_rows
from rl_lab.tracking.perf import Timer, WallClock
from rl_lab.tracking.pictures import Pictures
from rl_lab.tracking.run_directory import RunDirectory
from rl_lab.tracking.sinks import Row, Sink, numbers

Gauges = Callable[[], Mapping[str, float]]  # `group/name` of what is true at this moment and is not a mean

_PROGRESS_S = 0.25  # a person reads no faster
_COLLECT = "collect/"  # what the environment says of itself, such as infos, is its own affair
_NAMED = 3  # metrics that an error names


class Tracker:
    """Collects metrics without waiting for the device; writes a row when `every_steps` or `every_updates` is due."""

    def __init__(
        self,
        run: RunDirectory,
        sinks: Sequence[Sink] = (),
        *,
        every_steps: int | None = None,
        every_updates: int | None = None,
        frames_per_step: int = 1,
        ranks: Ranks = ALONE,
        hash_chain: Extent = "none",
    ) -> None:
        self.run, self._sinks, self._frames_per_step, self._ranks = run, list(sinks), frames_per_step, ranks
        self._metrics, self._perf, self._events = map(JsonLines, (run.metrics_file, run.perf_file, run.events_file))
        self._sums, self._pictures, self.chain = Accumulators(), Pictures(run.media), HashChain(run, hash_chain)
        self._step_clock = Every(every_steps) if every_steps else None
        self._update_clock = Every(every_updates) if every_updates else None
        self._wall = WallClock()
        self._early_events: list[dict[str, Any]] = []
        self._last_progress = 0.0
        self.watched: Gauges = dict  # further numbers of this moment, for perf.jsonl

    def open(self, total_steps: int, counters: Counters | None = None) -> None:
        """Open files and sinks. Without a `set_state` before, the run begins anew and old rows are dropped."""
        resumed = self._metrics.is_open
        if not resumed:
            self._metrics.open(0)
            self._events.open(0)
            self.chain.open()
        self._perf.open(None if resumed else 0)
        counters = counters or Counters()
        before = (last_row(self.run.perf_file) or {}).get("perf/elapsed_s", 0.0)
        self._wall.restart(before, counters.env_steps, counters.updates)
        for sink in self._sinks:
            sink.open(total_steps=total_steps, start_step=counters.env_steps, resumed=resumed)
        for event in self._early_events:
            self._write_event(event)
        self._early_events = []

    def log(self, group: str, metrics: Metrics) -> None:
        """Add to the running means of `group/name`; a plain value has weight 1. Pictures wait for `write_due`."""
        self._sums.add(group, self._pictures.take(group, metrics))

    def write_due(self, counters: Counters, phase_name: str, gauges: Gauges = dict) -> bool:
        """Write a row of the running means when a clock fires, and say whether it did; `gauges` are read only then."""
        self._show_progress(counters, phase_name)
        self._save_pictures(counters)
        is_due = self._step_clock is not None and self._step_clock(counters.env_steps)
        if self._update_clock is not None and self._update_clock(counters.updates):  # each consumes its own count
            is_due = True
        if is_due:
            self.flush(counters, phase_name, gauges)
        return is_due

    def running_means(self) -> dict[str, float]:
        """Return the means since the last row, finite or not, in the order they came in; waits for the device."""
        return self._sums.so_far()

    def check_finite(self) -> None:
        """Raise NotFiniteError when a running mean of the updates is not finite: one value that is not suffices."""
        means = self.running_means()
        wrong = [key for key in means if not isfinite(means[key]) and not key.startswith(_COLLECT)]
        if wrong:
            wrong.sort(key=lambda key: not key.endswith("_loss"))  # terms come before what is computed from them
            more = f" and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
            raise NotFiniteError(", ".join(f"{key} is {means[key]}" for key in wrong[:_NAMED]) + more)

    def flush(self, counters: Counters, phase_name: str, gauges: Gauges = dict) -> None:
        """Write the running means now. At a run's end: after the last checkpoint, which a longer run goes on from."""
        with self.timer("log"):
            self.check_finite()
            position = self._position(counters, phase_name)
            self._sums.join(self._ranks)
            if self._sums:
                self._write_row({**position, **self._sums.means(), **gauges()})
            self.chain.flush()
        perf = {**position, **self._wall.report(counters.env_steps, counters.updates), **self.watched()}
        perf["time"] = time.time()
        self._write_perf(perf)

    def write(self, group: str, metrics: Metrics, counters: Counters, phase_name: str) -> dict[str, float]:
        """Write a row of its own at once (evaluations) and return its values by `group/name`."""
        with self.timer("log"):
            sums = Accumulators()
            sums.add(group, self._pictures.take(group, metrics))
            values = sums.means()
            self._save_pictures(counters)
            self._write_row({**self._position(counters, phase_name), **values})
        return values

    def event(self, kind: str, **fields: Any) -> None:
        """Note that something happened; with a `message` it is also shown to the person at the terminal."""
        event = {"kind": kind, "time": time.time(), **fields}
        if self._events.is_open:
            self._write_event(event)
        else:  # before `open` it is not known yet where the file goes on
            self._early_events.append(event)

    def timer(self, name: str) -> Timer:
        """Return a context manager that adds its block to the wall-time share of `name`."""
        return self._wall.timer(name)

    @property
    def elapsed_s(self) -> float:
        """Return the wall time of the run, earlier processes included."""
        return self._wall.elapsed_s

    def get_state(self) -> dict[str, Any]:
        """Force all rows to the disk and return sums, clocks and file sizes."""
        offsets = {"metrics": self._metrics.sync(), "events": self._events.sync()}
        return {**self._kept(), "offsets": offsets, "hash_chain": self.chain.get_state()}

    def _kept(self) -> dict[str, Any]:
        clocks = {"steps": self._step_clock, "updates": self._update_clock}
        return {
            "sums": self._sums.get_state(),
            "clocks": {name: [clock.interval, clock.last] for name, clock in clocks.items() if clock},
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint: rows, events and links of the chain that were written after it are cut off."""
        self._metrics.open(state["offsets"]["metrics"])
        self._events.open(state["offsets"]["events"])
        if lost := self.chain.set_state(state.get("hash_chain", {})):  # early checkpoints have none
            self.event("hash_chain_lost", message=f"the run goes on without its hash chain: {lost}")
        self._keep(state)

    def _keep(self, state: Mapping[str, Any]) -> None:
        self._sums.set_state(state["sums"])
        for name, clock in (("steps", self._step_clock), ("updates", self._update_clock)):
            if clock and name in state["clocks"]:
                interval, last = state["clocks"][name]
                clock.last = interval * last // clock.interval  # the interval may be another one now

    def close(self, summary: Mapping[str, Any] | None = None) -> None:
        """Write `metrics.json` (with `summary` in front) and close files and sinks."""
        with ExitStack() as closing:  # a file that cannot be written must not keep the others open
            closing.callback(self._broadcast, lambda sink: sink.close())
            for file in (self._metrics, self._events, self._perf, self.chain):
                closing.callback(file.close)
            if self._metrics.is_open:
                self.run.write_summary({**(summary or {}), **_summary(self.run)})

    def _position(self, counters: Counters, phase_name: str) -> Row:
        frames = {"frames": counters.env_steps * self._frames_per_step} if self._frames_per_step > 1 else {}
        return {
            "step": counters.env_steps,
            **frames,
            "updates": counters.updates,
            "episodes": counters.episodes,
            "cycles": counters.cycles,
            "phase": phase_name,
        }

    def _write_row(self, row: dict[str, Any]) -> None:
        self._metrics.append(row)
        self._broadcast(lambda sink: sink.row(row))

    def _write_perf(self, perf: dict[str, Any]) -> None:
        self._perf.append(perf)
        self._broadcast(lambda sink: sink.perf(perf))

    def _save_pictures(self, counters: Counters) -> None:
        for key, png in self._pictures.drain():
            self._save_picture(key, counters.env_steps, png)

    def _save_picture(self, key: str, step: int, png: bytes) -> None:
        """Write a picture; one that cannot be written is noted and no reason to end a run."""
        try:
            self._pictures.save(key, step, png)
        except OSError as error:
            self.event("picture_failed", message=f"picture {key} was not saved: {reason(error)}")
            return
        self._broadcast(lambda sink: sink.picture(key, step, png))

    def _write_event(self, event: dict[str, Any]) -> None:
        self._events.append(event)
        self._broadcast(lambda sink: sink.event(event))

    def _show_progress(self, counters: Counters, phase_name: str) -> None:
        now = time.perf_counter()
        if now - self._last_progress >= _PROGRESS_S:
            self._last_progress = now
            position = self._position(counters, phase_name)
            self._broadcast(lambda sink: sink.progress(position))
            self.run.heartbeat(step=position["step"])

    def _broadcast(self, call: Callable[[Sink], None]) -> None:
        for sink in list(self._sinks):
            try:
                call(sink)
            except OSError as error:  # a closed terminal or a full disk behind a sink is no reason to end a run
                self._sinks.remove(sink)
                self.event("sink_failed", message=f"{type(sink).__name__} was dropped: {error}")


def _summary(run: RunDirectory) -> dict[str, Any]:
    """Return the last position, and the last and the highest value of every metric."""
    position: dict[str, Any] = {}
    last: dict[str, float] = {}
    highest: dict[str, float] = {}
    for row in read_rows(run.metrics_file):
        values = numbers(row)
        position = {key: value for key, value in row.items() if key not in values}
        last |= values
        highest |= {key: max(value, highest.get(key, value)) for key, value in values.items() if not isnan(value)}
    return {"position": position, "last": last, "highest": highest}
