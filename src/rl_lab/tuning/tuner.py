"""A search: asks a study for settings, runs each with all its seeds, tells what came of it. Goes on after any kill."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rl_lab.core.errors import ConfigError, RunDirectoryError
from rl_lab.ops.aggregates import iqm
from rl_lab.tuning.crew import POLL_S, Crew
from rl_lab.tuning.objective import GrowingMetric
from rl_lab.tuning.optuna_study import Ending, Study, Told
from rl_lab.tuning.plan import SEED, derived
from rl_lab.tuning.search import search_space
from rl_lab.tuning.space import Space
from rl_lab.tuning.sweep import trial_name
from rl_lab.tuning.sweep_directory import Trial
from rl_lab.tuning.trial_configs import TrialConfigs

TellTrial = Callable[[Told, str], None]  # trial, why it ended so


@dataclass
class Attempt:
    """A setting that is tried, one run per seed."""

    told: Told
    runs: list[Trial]
    metrics: dict[Trial, GrowingMetric]
    claim: ExitStack
    waiting: list[Trial] = field(default_factory=list)
    ending: Ending | None = None  # once it is known, though runs may still be leaving
    why: str = ""


class Tuner:
    """Runs a search to its end, or until it is asked to stop."""

    def __init__(
        self,
        crew: Crew,
        study: Study,
        space: Space,
        configs: TrialConfigs,
        seeds: Sequence[int],
        options: dict[str, Any],
    ) -> None:
        self._crew, self._study, self._space, self._configs = crew, study, space, configs
        self._seeds, self._options = seeds, options
        self._attempts: list[Attempt] = []

    def run(self, tell: TellTrial, show: Callable[[], None]) -> None:
        """Try settings until there are enough; those of a process that died are gone on with first."""
        crew = self._crew
        with crew.on_duty(), ExitStack() as claims:
            claims.callback(self._release)
            while self._attempts or (crew.stop_signal is None and self._is_work_left()):
                self._fill_slots()
                failures = dict(crew.ended())
                for attempt in list(self._attempts):
                    self._look(attempt, failures, tell)
                if crew.stop_signal is not None and not crew.running:
                    return
                show()
                time.sleep(POLL_S)

    @property
    def num_chosen(self) -> int:
        """Return how many keys the study chooses."""
        return len(search_space(self._space))

    def values_of(self, told: Told) -> dict[str, Any]:
        """Return all keys that a setting decides, in the order of the file."""
        values = {**told.chosen, **derived(self._space, told.chosen, self._configs.known)}
        return {key: values[key] for key in self._space}

    def _release(self) -> None:
        for attempt in self._attempts:
            attempt.claim.close()

    def _is_work_left(self) -> bool:
        trials = self._study.trials()
        return len(trials) < self._options["trials"] or any(trial.state == "running" for trial in trials)

    def _fill_slots(self) -> None:
        """Start runs of settings that are tried already, then of a new one while there are slots."""
        crew = self._crew
        while crew.has_room():
            waiting = [(attempt, run) for attempt in self._attempts for run in attempt.waiting]
            started = next(((attempt, run) for attempt, run in waiting if crew.try_start(run)), None)
            if started is not None:
                started[0].waiting.remove(started[1])
            elif waiting or not self._take_another():
                return

    def _take_another(self) -> bool:
        """Take over a trial that nobody looks after, or ask for a new one; False when there is none."""
        directory = self._crew.directory
        try:
            with directory.claim("ask"):
                trials = self._study.trials()
                for trial in trials:
                    name = f"study_{trial.number:04d}"
                    if trial.state == "running" and not directory.is_claimed(name):
                        self._begin(self._study.adopt(trial.number))
                        return True
                if len(trials) < self._options["trials"]:
                    self._begin(self._study.ask())
                    return True
        except RunDirectoryError:  # another worker asks at this moment
            pass
        return False

    def _begin(self, told: Told) -> None:
        """Prepare the runs of a setting; one that no run can have ends as failed and holds up no other."""
        claim = ExitStack()
        claim.enter_context(self._crew.directory.claim(f"study_{told.number:04d}"))
        try:
            runs = self._runs(told)
        except ConfigError as error:
            self._attempts.append(Attempt(told, [], {}, claim, ending="fail", why=str(error)))
            return
        directory, name = self._crew.directory, self._options["metric"]
        metrics = {run: GrowingMetric(directory.run_path(run) / "metrics.jsonl", name) for run in runs}
        waiting = [run for run in runs if directory.state(run) != "done"]
        self._attempts.append(Attempt(told, runs, metrics, claim, waiting))

    def _runs(self, told: Told) -> list[Trial]:
        """Return the runs of a setting, one per seed, with their experiments written."""
        directory, values, runs = self._crew.directory, self.values_of(told), list[Trial]()
        seeds: list[int | None] = [*self._seeds] or [None]
        for seed in seeds:
            own = values if seed is None else values | {SEED: seed}
            name = trial_name(told.number) + ("" if seed is None else f"_s{seed}")
            runs.append(Trial(name, own))
            if not directory.has(runs[-1]):
                directory.add(runs[-1], self._configs.text(own))
        return runs

    def _look(self, attempt: Attempt, failures: dict[Trial, str | None], tell: TellTrial) -> None:
        """See how far an attempt is; end it when it is done, hopeless, or one of its runs has failed."""
        directory, running = self._crew.directory, {*self._crew.running} & {*attempt.runs}
        failed = [run for run in attempt.runs if failures.get(run) is not None]
        if failed and attempt.ending is None:
            self._end(attempt, "fail", f"{failed[0].name}: {failures[failed[0]]}")
        elif attempt.ending is None:
            shared = [
                list(values) for values in zip(*(metric.update() for metric in attempt.metrics.values()), strict=False)
            ]
            if self._study.report(attempt.told.number, [float(iqm(np.array(values))) for values in shared]):
                self._end(attempt, "pruned", f"after {len(shared)} evaluations")
        if running:
            return
        value = None
        if attempt.ending is None:
            attempt.waiting = [run for run in attempt.runs if directory.state(run) != "done"]
            if attempt.waiting:
                return  # they were asked to stop, by whom it may be: they go on, here or with the next command
            value = self._measure(attempt)
        assert attempt.ending is not None
        self._study.tell(attempt.told.number, attempt.ending, value, attempt.why)
        self._attempts.remove(attempt)
        attempt.claim.close()
        tell(self._study.trials()[attempt.told.number], attempt.why)

    def _measure(self, attempt: Attempt) -> float | None:
        """Return what an attempt is worth; without the metric it has failed, unless no run at all has it: a typo."""
        score, goal = self._options["score"], self._options["goal"]
        try:
            value = float(iqm(np.array([metric.score(score, goal) for metric in attempt.metrics.values()])))
        except ConfigError as error:
            if not self._has_metric():
                raise
            attempt.ending, attempt.why = "fail", str(error)
            return None
        attempt.ending = "complete"
        return value

    def _has_metric(self) -> bool:
        """Return whether any run of this search has written the metric."""
        here = [metric for attempt in self._attempts for metric in attempt.metrics.values()]
        return any(each.update() or each.is_known for each in here) or any(
            told.state in ("complete", "pruned") for told in self._study.trials()
        )

    def _end(self, attempt: Attempt, ending: Ending, why: str) -> None:
        attempt.ending, attempt.why, attempt.waiting = ending, why, []
        for run in attempt.runs:
            self._crew.ask_to_stop(run)
