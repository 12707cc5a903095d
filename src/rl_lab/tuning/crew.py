"""Runs trials in slots: starts them, waits, notes failures, and passes a request to stop on to all of them."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import FrameType

from rl_lab.core.errors import RunDirectoryError
from rl_lab.core.signal_handlers import handling
from rl_lab.tuning.slots import Slot
from rl_lab.tuning.sweep_directory import SweepDirectory, Trial
from rl_lab.tuning.trial_process import Starter, TrialProcess

POLL_S = 0.1
STOPPED = (130, 143)  # exit codes of a run that was asked to stop


@dataclass
class Crew:
    """The processes of a sweep's trials, one per slot at most."""

    directory: SweepDirectory
    slots: Sequence[Slot]
    start: Starter
    plugins: Sequence[str] = ()
    stop_signal: int | None = None
    codes: dict[Trial, int] = field(default_factory=dict)  # exit codes of those that have ended
    _running: dict[Trial, tuple[Slot, TrialProcess, ExitStack]] = field(default_factory=dict)
    _asked: set[Trial] = field(default_factory=set)

    @property
    def running(self) -> list[Trial]:
        """Return the trials whose processes run here."""
        return list(self._running)

    def has_room(self) -> bool:
        """Return whether another trial can be started."""
        return self.stop_signal is None and len(self._running) < len(self.slots)

    def try_start(self, trial: Trial, options: Sequence[str] = ()) -> bool:
        """Start, or go on with, a trial; False while another process looks after it or still runs it."""
        claim = ExitStack()
        if self.directory.is_claimed(trial.name):
            return False
        try:
            claim.enter_context(self.directory.claim(trial.name))
        except RunDirectoryError:
            return False
        if self.directory.state(trial) == "running":  # of a sweep that died: it is leaving with a checkpoint
            claim.close()
            return False
        used = {slot for slot, _, _ in self._running.values()}
        slot = next(slot for slot in self.slots if slot not in used)
        self.directory.forget_failure(trial)
        plugins = [word for plugin in self.plugins for word in ("--plugin", plugin)]
        words = [*self.directory.train_words(trial), *options, *plugins]
        process = self.start(words, slot.variables, self.directory.log_file(trial))
        self._running[trial] = (slot, process, claim)
        return True

    def ask_to_stop(self, trial: Trial) -> None:
        """Ask one trial to leave with a checkpoint."""
        if trial in self._running and trial not in self._asked:
            self._asked.add(trial)
            self._running[trial][1].terminate()

    def ended(self) -> Iterator[tuple[Trial, str | None]]:
        """Yield the trials whose processes have ended since, each with why it failed, if it did."""
        for trial in self.running if self.stop_signal is not None else ():
            self.ask_to_stop(trial)
        for trial, (_, process, claim) in list(self._running.items()):
            code = process.poll()
            if code is None:
                continue
            is_stopped = code in STOPPED or (trial in self._asked and code < 0)
            message = None if code == 0 or is_stopped else self.directory.note_failure(trial, code)
            self.codes[trial] = code
            del self._running[trial]
            self._asked.discard(trial)
            claim.close()
            yield trial, message

    @contextmanager
    def on_duty(self) -> Iterator[None]:
        """Pass SIGINT and SIGTERM on to the trials, once as a request and then as an end; leave none behind."""

        def handle(number: int, frame: FrameType | None) -> None:
            for _, process, _ in list(self._running.values()) if self.stop_signal is not None else ():
                process.kill()
            self.stop_signal = self.stop_signal or number

        try:
            with handling((signal.SIGINT, signal.SIGTERM), handle):
                yield
        finally:
            for trial in self.running:
                self.ask_to_stop(trial)
            while any(process.poll() is None for _, process, _ in self._running.values()):
                time.sleep(POLL_S)
            for _, _, claim in self._running.values():
                claim.close()
