"""The queue of a sweep: every trial is begun, or gone on with, until all are done or have failed."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rl_lab.core.errors import ConfigError
from rl_lab.core.trees import tree_leaves
from rl_lab.tuning.crew import POLL_S, Crew
from rl_lab.tuning.plan import plan
from rl_lab.tuning.sweep_directory import SweepDirectory, Trial
from rl_lab.tuning.sweep_file import SweepFile
from rl_lab.tuning.trial_configs import TrialConfigs

Tell = Callable[[Trial, str, str], None]  # trial, what became of it, why


def plan_sweep(sweep: SweepFile, configs: TrialConfigs) -> list[Trial]:
    """Return the trials that a sweep's file asks for."""
    options = sweep.options
    values = plan(
        sweep.space,
        method=options["method"],
        num_samples=options["num_samples"],
        seeds=sweep.seeds,
        seed=options["sample_seed"],
        known=configs.known,
    )
    return [Trial(trial_name(number), each) for number, each in enumerate(values)]


def trial_name(number: int) -> str:
    """Return the name of a trial and of its experiment."""
    return f"trial_{number:04d}"


@dataclass(frozen=True)
class Draft:
    """A sweep that could run: its definition, its trials and, unless it was written before, their experiments."""

    definition: dict[str, Any]
    trials: list[Trial]
    texts: list[str] | None = None


def draft(directory: SweepDirectory, sweep: SweepFile, overrides: Sequence[str], configs: TrialConfigs) -> Draft:
    """Return the trials of a sweep: those that were planned in a directory, else planned and checked now."""
    definition = {**sweep.raw, "overrides": [*sweep.options["overrides"], *overrides]}
    if directory.is_planned():
        return Draft(definition, planned(directory, definition))
    trials = plan_sweep(sweep, configs)
    return Draft(definition, trials, [configs.text(trial.values) for trial in trials])


def write(directory: SweepDirectory, drafted: Draft) -> list[Trial]:
    """Write a sweep, where that was not done before, and return its trials."""
    if drafted.texts is None:
        return drafted.trials
    directory.make()
    with directory.claim("plan"):
        if directory.is_planned():  # another process was faster
            return planned(directory, drafted.definition)
        for trial, text in zip(drafted.trials, drafted.texts, strict=True):
            directory.add(trial, text)
        directory.write_plan(drafted.definition, drafted.trials)
    return drafted.trials


def planned(directory: SweepDirectory, definition: Mapping[str, Any]) -> list[Trial]:
    """Return the trials that lie in a directory; it must have been begun with the same definition."""
    before, trials = directory.read_plan()
    old, new = (dict(tree_leaves(tree)) for tree in (before, dict(definition)))
    changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    if changed:
        raise ConfigError(
            f"{changed[0]} is {new.get(changed[0])!r} now, but was {old.get(changed[0])!r} when the sweep in "
            f"{directory.path} was begun; undo that, or give another --dir"
        )
    return trials


def run_sweep(
    crew: Crew,
    trials: Sequence[Trial],
    *,
    retries: int = 0,
    retry_failed: bool = False,
    tell: Tell,
    show: Callable[[], None],
) -> Counter[str]:
    """Run all trials that are not done; return how many are in which state. A failed one holds up no other."""
    directory, attempts = crew.directory, Counter[Trial]()
    again = {trial for trial in trials if retry_failed and directory.state(trial) == "failed"}
    waiting = deque(trials)
    with crew.on_duty():
        while (waiting and crew.stop_signal is None) or crew.running:
            _start_some(crew, waiting, again)
            for trial, message in crew.ended():
                attempts[trial] += 1
                if message is not None and attempts[trial] <= retries:
                    again.add(trial)
                    waiting.append(trial)
                    tell(trial, "tried again", message)
                else:
                    tell(trial, directory.state(trial), message or "")
            show()
            time.sleep(POLL_S if crew.running or waiting else 0)
    return Counter(directory.state(trial) for trial in trials)


def _start_some(crew: Crew, waiting: deque[Trial], again: set[Trial]) -> None:
    """Start trials while there are slots; one that another sweep of this directory looks after goes to the end."""
    for _ in range(len(waiting)):
        if not crew.has_room():
            return
        trial = waiting.popleft()
        state = crew.directory.state(trial)
        if state == "done" or (state == "failed" and trial not in again):
            continue  # before this command, or by another process meanwhile
        if crew.try_start(trial):
            again.discard(trial)
        else:
            waiting.append(trial)
