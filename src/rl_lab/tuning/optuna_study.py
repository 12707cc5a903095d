"""The study of a search, by Optuna: proposes settings, ends hopeless trials, remembers everything on disk."""

from __future__ import annotations

import fcntl
import os
import warnings
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rl_lab.core.errors import ConfigError, UsageError
from rl_lab.tracking.jsonl import JsonLines
from rl_lab.tuning.space import Distribution

try:
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
    from optuna.storages.journal import JournalFileBackend
    from optuna.storages.journal._file import BaseJournalFileLock
    from optuna.trial import FrozenTrial, TrialState
except ModuleNotFoundError as error:
    raise UsageError(f"{error.name} is not installed: pip install 'rl-lab[tune]'") from error

STUDY = "study"
Ending = Literal["complete", "pruned", "fail"]
_STATES = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "fail": TrialState.FAIL}


@dataclass(frozen=True)
class Told:
    """A trial as the study remembers it."""

    number: int
    chosen: dict[str, Any]
    value: float | None
    state: str  # running, complete, pruned or fail
    why: str = ""  # it ended so


class _DurableLock(BaseJournalFileLock):
    """A lock that ends with its owner. Half a line, which a killed one left, is cut off before the next is written."""

    def __init__(self, journal: Path) -> None:
        self._journal, self._descriptor = journal, -1

    def acquire(self) -> bool:
        """Wait until no other process writes."""
        self._descriptor = os.open(f"{self._journal}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        rows = JsonLines(self._journal)
        rows.open(None)
        rows.close_quietly()
        return True

    def release(self) -> None:
        """Let others write."""
        os.close(self._descriptor)


class Study:
    """A study on disk. What it proposes next depends on its seed and on what it was told, not on the process."""

    def __init__(
        self, directory: Path, space: Mapping[str, Distribution], options: Mapping[str, Any], seed: int
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space, self._options, self._seed = space, options, seed
        self._distributions = {key: distribution_of(values) for key, values in space.items()}
        with _quiet():
            self._study = optuna.create_study(
                storage=_storage(directory, options["storage"]),
                study_name=STUDY,
                direction=options["goal"],
                pruner=_pruner(options),
                load_if_exists=True,
            )
        self._trials: dict[int, optuna.trial.Trial] = {}
        self._looked_at: dict[int, int] = {}  # how many values of a trial were judged

    def settle(self) -> None:
        """Refuse another measure than the one by which trials were told already."""
        now = {key: self._options[key] for key in ("metric", "score")}
        before = self._study.user_attrs
        is_measured = any(trial.state in ("complete", "pruned") for trial in self.trials())
        for key, value in now.items():
            if is_measured and before.get(key) != value:
                raise ConfigError(
                    f"tune.{key}: {value!r}, but the trials of this search were measured by {before.get(key)!r}; "
                    "undo that, or give another --dir"
                )
            self._study.set_user_attr(key, value)

    def ask(self) -> Told:
        """Return a new setting to try."""
        with _quiet():
            self._study.sampler = self._sampler(len(self._study.get_trials(deepcopy=False)))
            trial = self._study.ask()
        return self._suggested(trial)

    def adopt(self, number: int) -> Told:
        """Take over a trial of a process that has died; one that died while it asked gets what it would have got."""
        frozen = self._study.get_trials(deepcopy=False)[number]
        with _quiet():
            self._study.sampler = self._sampler(number)
            trial = optuna.trial.Trial(self._study, frozen._trial_id)
        return self._suggested(trial)

    def _suggested(self, trial: optuna.trial.Trial) -> Told:
        self._trials[trial.number] = trial
        with _quiet():
            for key, distribution in self._distributions.items():
                suggest(trial, key, distribution)
        return self._read(self._study.get_trials(deepcopy=False)[trial.number])

    def report(self, number: int, values: Sequence[float]) -> bool:
        """Tell all values of a trial on its way, in order; return whether it is hopeless."""
        trial = self._trials[number]
        known = self._study.get_trials(deepcopy=False)[number].intermediate_values
        for step in range(self._looked_at.get(number, 0) + 1, len(values) + 1):
            self._looked_at[number] = step
            if step not in known:
                trial.report(values[step - 1], step)
            if step + 1 not in known and trial.should_prune():  # else it was judged before a restart
                return True
        return False

    def tell(self, number: int, ending: Ending, value: float | None = None, why: str = "") -> None:
        """Say how a trial ended, and why."""
        with _quiet():
            if why and self.trials()[number].state == "running":
                self._trials[number].set_user_attr("why", why)
            self._study.tell(number, value if ending == "complete" else None, _STATES[ending], skip_if_finished=True)

    def trials(self) -> list[Told]:
        """Return all trials."""
        return [self._read(trial) for trial in self._study.get_trials(deepcopy=False)]

    def best(self) -> Told | None:
        """Return the best complete trial."""
        complete = [trial for trial in self.trials() if trial.state == "complete" and trial.value is not None]
        sign = 1 if self._options["goal"] == "maximize" else -1
        return max(complete, key=lambda trial: sign * (trial.value or 0.0), default=None)

    def importances(self) -> dict[str, float]:
        """Return how much of the difference between good trials and all trials each key explains (PED-ANOVA)."""
        if len([trial for trial in self.trials() if trial.state == "complete"]) < 4:
            return {}
        with _quiet():
            found = optuna.importance.get_param_importances(self._study)
        return {key: float(value) for key, value in found.items()}

    def _read(self, trial: FrozenTrial) -> Told:
        chosen = {key: value_of(self._space[key], trial.params[key]) for key in self._space if key in trial.params}
        value = trial.value if trial.state == TrialState.COMPLETE else None
        return Told(trial.number, chosen, value, trial.state.name.lower(), trial.user_attrs.get("why", ""))

    def _sampler(self, number: int) -> optuna.samplers.BaseSampler:
        """Return a sampler whose draws depend on the trial's number alone, so that a restart changes none of them."""
        return sampler_of(self._options["sampler"], zlib.crc32(f"{self._seed}/{number}".encode()))


def sampler_of(name: str, seed: int) -> optuna.samplers.BaseSampler:
    """Return the sampler of this name."""
    if name == "tpe":
        return optuna.samplers.TPESampler(seed=seed)
    if name == "cma_es":
        return optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)
    return optuna.samplers.RandomSampler(seed=seed)


def _quiet() -> warnings.catch_warnings:
    """Return a context without warnings: of experimental interfaces and of choices that are lists."""
    return warnings.catch_warnings(action="ignore")


def _storage(directory: Path, name: str) -> optuna.storages.BaseStorage:
    if name == "journal":
        file = directory / "study.journal"
        return optuna.storages.JournalStorage(JournalFileBackend(str(file), lock_obj=_DurableLock(file)))
    return _database(name)


def check_storage(name: str) -> None:
    """Refuse a database that cannot be opened, before anything of a search is written."""
    if name != "journal":
        _database(name)


def _database(name: str) -> optuna.storages.RDBStorage:
    from sqlalchemy.engine import URL, make_url
    from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

    try:
        url = make_url(name)
    except ArgumentError as error:
        raise ConfigError("tune.storage: must be journal or a database such as sqlite:///study.db") from error
    try:
        return optuna.storages.RDBStorage(name)
    except (SQLAlchemyError, ImportError) as error:
        lines = str(error.orig if isinstance(error, DBAPIError) else error).splitlines() or [type(error).__name__]
        shown = URL.create(url.drivername, host=url.host, port=url.port, database=url.database)  # nothing secret
        raise ConfigError(f"tune.storage: cannot open {shown}: {lines[0]}") from error


def _pruner(options: Mapping[str, Any]) -> optuna.pruners.BasePruner:
    name, startup = options["pruner"], options["startup_trials"]
    if name == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=startup, n_warmup_steps=2)  # not by the first evaluation
    if name == "halving":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
    if name == "hyperband":
        return optuna.pruners.HyperbandPruner(min_resource=1, max_resource="auto")
    return optuna.pruners.NopPruner()


def distribution_of(values: Distribution) -> BaseDistribution:
    """Return what a sampler chooses from."""
    if values.kind == "choice":  # by index: a choice may be a list, which the study cannot keep
        return CategoricalDistribution(list(range(len(values.choices))))
    if values.kind in ("int", "log_int"):
        is_log = values.kind == "log_int"
        return IntDistribution(int(values.low), int(values.high), log=is_log, step=int(values.step or 1))
    assert values.kind in ("uniform", "log_uniform"), values.kind
    return FloatDistribution(values.low, values.high, log=values.kind == "log_uniform", step=values.step)


def suggest(trial: optuna.trial.Trial, key: str, distribution: BaseDistribution) -> None:
    """Let a trial's sampler choose the value of a key."""
    if isinstance(distribution, CategoricalDistribution):
        trial.suggest_categorical(key, distribution.choices)
    elif isinstance(distribution, IntDistribution):
        trial.suggest_int(key, distribution.low, distribution.high, step=distribution.step, log=distribution.log)
    elif isinstance(distribution, FloatDistribution):
        trial.suggest_float(key, distribution.low, distribution.high, step=distribution.step, log=distribution.log)


def value_of(values: Distribution, chosen: Any) -> Any:
    """Return what the study's number for a key means."""
    return values.choices[chosen] if values.kind == "choice" else chosen
