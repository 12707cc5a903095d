"""An experiment as a Trainable of Ray Tune, for `lab tune --engine tune` and searches written with Tune itself.

A step is `lab train --until` in a process of its own, and what Tune saves and hands from trial to trial is the run's
directory: a trial goes on to the bit, and one that takes over another's state with other settings (PBT) forks it.
Without `--engine tune` nothing is left to Tune, which forgets what its schedulers know when its driver dies.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_lab.core.errors import ConfigError, LabError, UsageError, unknown_name
from rl_lab.tracking.atomic import replace_file
from rl_lab.tracking.jsonl import read_rows
from rl_lab.tracking.run_directory import RunDirectory
from rl_lab.tuning.rounds import may_move
from rl_lab.tuning.trial_configs import hydra_value
from rl_lab.tuning.trial_process import start_process

try:
    import ray.tune as tune
    from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, PopulationBasedTraining
except ImportError as error:  # Tune's own message names its packages
    raise UsageError("rl_lab.tuning.trainable needs Ray Tune: pip install 'rl-lab[ray]' 'ray[tune]'") from error

_POLL_S = 0.05
ITERATION = "training_iteration"  # a report
KEEP = 3  # checkpoints of a trial: a copy of another one may wait for its turn
SAVE_S = "2"  # between two times that Tune writes down how a search stands
COMPLETE = "is_complete"  # of a report: the run has come to its end, nobody ended it


class LabTrainable(tune.Trainable):
    """Trains what `trainable` names; the settings of a trial are options by their keys (`optimizers.policy.lr`)."""

    overrides: Sequence[str] = ()
    every_steps: int = 1
    metric: str | None = None  # that every report must hold
    read: Callable[[dict[str, Any]], dict[str, Any]] | None = None  # from what Tune says of a trial to its options
    _settings: dict[str, Any]  # options of the trial
    _origin: dict[str, str]  # options by which the run goes on from another's

    def setup(self, config: dict[str, Any]) -> None:
        """Begin a run with the settings of a trial."""
        self._begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Begin another trial in this process."""
        self.cleanup()
        self._begin(new_config)
        return True

    def step(self) -> dict[str, Any]:
        """Train for some env steps, and return the newest value of every metric."""
        self._goal += self.every_steps
        options = [*self.overrides, *_words(self._settings), *_words(self._origin)]
        log = self._run.with_name("log.txt")
        process = start_process(["train", *options, "--run-dir", str(self._run), "--until", str(self._goal)], {}, log)
        while (code := process.poll()) is None:
            time.sleep(_POLL_S)
        if code:
            raise LabError(f"lab train ended with {code}: {(log.read_text().splitlines() or [''])[-1]}")
        values: dict[str, Any] = {}
        for row in read_rows(self._run / "metrics.jsonl"):
            values |= row
        if self.metric is not None and self.metric not in values:
            raise LabError(unknown_name("metric", self.metric, [name for name in values if "/" in name]))
        is_complete = RunDirectory.open(self._run).read_status() == "done"
        return {**values, "done": is_complete, COMPLETE: is_complete}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Copy the run, which paused with a checkpoint."""
        shutil.copytree(self._run, Path(checkpoint_dir, "run"))
        told = {"settings": self._settings, "origin": self._origin, "goal": self._goal}
        Path(checkpoint_dir, "trial.json").write_text(json.dumps(told))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Go on with a copy of a saved run, as a fork where the settings are others."""
        told = json.loads(Path(checkpoint_dir, "trial.json").read_text())
        settings = self._settings
        self.cleanup()
        self._make_place()
        self._settings, self._goal = settings, told["goal"]
        given = {key: value for key, value in self._settings.items() if may_move(key)}
        self._settings = told["settings"] | given  # what an agent cannot change any more comes with it
        if told["settings"] == self._settings:
            self._origin, copied = told["origin"], self._run
        else:
            copied = self._run.with_name("source")
            self._origin = {"training.resume_path": str(copied), "training.resume_mode": "fork"}
        shutil.copytree(Path(checkpoint_dir, "run"), copied)

    def cleanup(self) -> None:
        """Remove the run: what is left of a trial is what Tune has saved."""
        shutil.rmtree(self._run.parent, ignore_errors=True)

    def _begin(self, settings: Mapping[str, Any]) -> None:
        """Begin in a directory of its own: a trial has those of several processes."""
        options = settings if self.read is None else self.read(dict(settings))
        self._settings = json.loads(json.dumps(options, default=lambda number: number.item()))  # NumPy's, too
        self._make_place()

    def _make_place(self) -> None:
        self._run, self._goal = Path(tempfile.mkdtemp(prefix="lab_", dir=self.logdir), "run"), 0
        self._origin = {}


def _words(options: Mapping[str, Any]) -> list[str]:
    return [f"++{key}={hydra_value(value)}" for key, value in options.items()]


def trainable(
    overrides: Sequence[str],
    every_steps: int,
    metric: str | None = None,
    read: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> type[LabTrainable]:
    """Return a class for `tune.Tuner`: of `lab train OVERRIDES`, reporting after every so many env steps.

    With `metric` a report without it ends the trial as failed. `read` makes options of what Tune says of a trial.
    """
    if every_steps < 1:
        raise ConfigError(f"every_steps: must be 1 or more, not {every_steps}")
    given = {"overrides": tuple(overrides), "every_steps": every_steps, "metric": metric}
    return type("Experiment", (LabTrainable,), {**given, "read": None if read is None else staticmethod(read)})


class KeptHalving(ASHAScheduler):
    """ASHA that keeps in a file how trials stood: Tune forgets that when the process dies that drives the search.

    Args:
        file: Where it is kept, by Tune's own `save`.
        max_reports: Of a trial that comes to its end.
        factor: Of so many trials the best one goes on; the first report is the first rung.
    """

    def __init__(self, file: Path, max_reports: int, factor: float) -> None:
        super().__init__(time_attr=ITERATION, max_t=max_reports, grace_period=1, reduction_factor=factor)
        self._file, self._decided = str(file), dict[str, str]()

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Take metric and mode, and go on with what was kept."""
        is_taken: bool = super().set_search_properties(metric, mode, **spec)
        if os.path.isfile(self._file):
            self.restore(self._file)
        return is_taken

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Return whether a trial goes on; one that repeats a stretch is told what it was told before."""
        place = f"{trial.trial_id}/{result[ITERATION]}"
        if place not in self._decided:
            self._decided[place] = super().on_trial_result(tune_controller, trial, result)
            self.save(f"{self._file}.new")
            os.replace(f"{self._file}.new", self._file)
        return self._decided[place]


class KeptPopulation(PopulationBasedTraining):
    """PBT in step that keeps in a file which config each trial has now: a restored trial would have its first one.

    Args:
        file: Where they are kept, as JSON.
        share: Of the members, the worst, that become copies of the best.
        explore: From a donor's config to that of its copy.
    """

    _next_perturbation_sync: float

    def __init__(self, file: Path, share: float, explore: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        given: dict[str, Any] = {"quantile_fraction": share, "custom_explore_fn": explore}
        super().__init__(time_attr=ITERATION, perturbation_interval=1, synch=True, **given)
        self._file, self._configs = file, dict[str, Any]()

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Give a restored trial the config that it had."""
        if not self._configs and self._file.is_file():
            self._configs = json.loads(self._file.read_text())
        if trial.trial_id in self._configs:
            trial.set_config(self._configs[trial.trial_id])
        super().on_trial_add(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Return whether a trial goes on, and keep what became of all configs."""
        decision: str = super().on_trial_result(tune_controller, trial, result)
        reached = [self._trial_state[each].last_train_time for each in tune_controller.get_live_trials()]
        if reached:  # after a restore all may be where it waits for them, and it would wait for ever
            self._next_perturbation_sync = max(self._next_perturbation_sync, min(reached) + 1)
        configs = {each.trial_id: each.config for each in tune_controller.get_trials()}
        if configs != self._configs:
            replace_file(self._file, json.dumps(configs))
            self._configs = json.loads(json.dumps(configs))
        return decision


def optuna_search(suggest: Callable[[Any], None], sampler: Any, metric: str, mode: str) -> Any:
    """Return Tune's searcher by Optuna; `suggest` asks a trial of Optuna's for each key."""
    from ray.tune.search.optuna import OptunaSearch

    return OptunaSearch(suggest, metric=metric, mode=mode, sampler=sampler)


def tuned(
    kind: type[LabTrainable],
    folder: Path,
    resources: Mapping[str, float],
    space: Mapping[str, Sequence[Any]],
    **how: Any,
) -> list[Any]:
    """Search, or go on with what lies in `folder`, until all trials have ended or somebody interrupts; return results.

    Args:
        kind: Of the trials.
        folder: Where Tune keeps what it knows; nothing of it is written twice.
        resources: Of each trial.
        space: Values of configs, each of them once; nothing: a searcher chooses them.
        **how: Options of `tune.TuneConfig`.
    """
    given = {"TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1", "TUNE_GLOBAL_CHECKPOINT_S": SAVE_S, "RAY_AIR_NEW_OUTPUT": "0"}
    os.environ.update(given)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # it warns of files that are not written
    placed = tune.with_resources(kind, dict(resources))
    if tune.Tuner.can_restore(str(folder)):
        return list(tune.Tuner.restore(str(folder), trainable=placed).fit())
    shutil.rmtree(folder, ignore_errors=True)  # of one that died before it had begun
    how.setdefault("scheduler", FIFOScheduler())
    tuner = tune.Tuner(
        placed,
        param_space={key: tune.grid_search(list(values)) for key, values in space.items()},
        tune_config=tune.TuneConfig(reuse_actors=True, **how),
        run_config=tune.RunConfig(
            name=folder.name,
            storage_path=str(folder.parent),
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1, num_to_keep=KEEP),
        ),
    )
    return list(tuner.fit())
