"""A search that Ray Tune drives itself, by ASHA or PBT, OptunaSearch and our Trainable: `lab tune --engine tune`.

What it keeps lies in `.ray_tune` of the search's directory, pickled by Tune; the same command goes on by
`Tuner.restore`. At its end the runs are copied to `trials`, where they are runs like any other.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from rl_lab.core.errors import ConfigError
from rl_lab.core.signal_handlers import handling
from rl_lab.tracking.atomic import replace_file
from rl_lab.tuning.plan import derived
from rl_lab.tuning.rounds import SAMPLERS, TOTAL, explored, first_members
from rl_lab.tuning.search import search_space
from rl_lab.tuning.space import Space
from rl_lab.tuning.sweep import trial_name
from rl_lab.tuning.sweep_directory import SweepDirectory, Trial
from rl_lab.tuning.sweep_file import SweepFile
from rl_lab.tuning.trial_configs import TrialConfigs

FOLDER = ".ray_tune"
BASE, BEST = Trial("base"), Trial("best")
MEMBER = "member"  # key of a trial's config that holds all values, where no searcher chose them
EVALUATION = "training.eval_frequency"
_STAMP = len("2026-11-19_21-10-15")  # that the name of a trial's directory ends with
_LONG = 300  # letters of an error


def check_engine(file: SweepFile, configs: TrialConfigs, options: Mapping[str, Any]) -> None:
    """Refuse what Tune is not asked to do."""
    if file.seeds:
        raise ConfigError("seeds: with --engine tune every trial is one run (give experiment.seed)")
    for key, choices in {"score": ("last",), "storage": ("journal",), "pruner": ("halving", "none")}.items():
        is_asked = key != "pruner" or (options["population"], options["halving"]) == (None, None)
        if is_asked and options[key] not in choices:
            raise ConfigError(f"tune.{key}: {options[key]!r} is not for --engine tune (choices: {', '.join(choices)})")
    if TOTAL in file.space:
        raise ConfigError(f"sweep.{TOTAL}: with --engine tune trials are compared at the same env steps")
    if SAMPLERS in file.space or configs.known[SAMPLERS] is not None:
        raise ConfigError(f"{SAMPLERS}: with --engine tune trials pause at an env step, which a run with actors cannot")
    steps_per_report(configs, options)


def steps_per_report(configs: TrialConfigs, options: Mapping[str, Any]) -> int:
    """Return after how many env steps Tune is told how a trial stands."""
    if options["population"] is not None:
        return int(options["population"]["every_steps"])
    if options["halving"] is not None:
        return int(options["halving"]["first_steps"])
    if not configs.known.get(EVALUATION):
        raise ConfigError(f"{EVALUATION}: --engine tune compares trials after so many env steps; give it")
    return int(configs.known[EVALUATION])


def settings_of(space: Space, known: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a trial's config stands for."""
    from rl_lab.tuning.optuna_study import value_of

    if MEMBER in config:
        return dict(config[MEMBER])

    chosen = {key: value_of(values, config[key]) for key, values in search_space(space).items()}
    return chosen | derived(space, chosen, known)


class TuneSearch:
    """A search and what is needed to run it.

    Args:
        directory: Of the search.
        file: That it was read from.
        configs: Composer of its trials.
        options: Of `tune`.
        plugins: Words of `--plugin`.
        jobs: Trials at once; of a population it is as many as there is room for.
    """

    def __init__(
        self,
        directory: SweepDirectory,
        file: SweepFile,
        configs: TrialConfigs,
        options: Mapping[str, Any],
        plugins: Sequence[str],
        jobs: int,
    ) -> None:
        self._directory, self._file, self._configs = directory, file, configs
        self._options, self._plugins, self._jobs = options, plugins, jobs
        self._every = steps_per_report(configs, options)
        self._read = partial(settings_of, dict(file.space), dict(configs.known))

    def run(self) -> list[dict[str, Any]]:
        """Search, or go on, until all trials have ended or somebody asks to stop; return how they stand."""
        from rl_lab.tuning.trainable import tuned

        options, given = self._options, self._file.options
        space: dict[str, Any] = {}
        mode = "max" if options["goal"] == "maximize" else "min"
        how: dict[str, Any] = {"metric": options["metric"], "mode": mode, **self._scheduler()}
        if options["population"] is not None:  # takes no searcher; each member must begin, so that only room limits it
            space[MEMBER] = [member.values for member in first_members(self._file, self._configs, options)]
        else:
            how |= {"num_samples": options["trials"], "max_concurrent_trials": self._jobs}
            how["search_alg"] = self._searcher(mode)
        resources = {"cpu": given["cpus_per_trial"], "gpu": given["gpus_per_trial"] or 0}
        with self._directory.claim("tune"), handling((signal.SIGTERM,), _as_interrupt):
            found = tuned(self._trainable(), self._directory.path / FOLDER, resources, space, **how)
        results = sorted(found, key=lambda result: begun(result.path))
        rows = [self._row(number, result) for number, result in enumerate(results)]
        if all(row["state"] != "running" for row in rows):
            for row, result in zip(rows, results, strict=True):
                self._hand_over(row["run"], result)
        return rows

    def _trainable(self) -> Any:
        from rl_lab.tuning.trainable import trainable

        self._directory.add(BASE, self._configs.text({}))
        plugins = [word for plugin in self._plugins for word in ("--plugin", plugin)]
        words = [f"+experiment={BASE.name}", "--config-dir", str(self._directory.configs), *plugins]
        return trainable(words, self._every, self._options["metric"], self._read)

    def _searcher(self, mode: str) -> Any:
        from rl_lab.tuning.optuna_study import sampler_of
        from rl_lab.tuning.trainable import optuna_search

        suggest = partial(_suggest_all, search_space(self._file.space))
        sampler = sampler_of(self._options["sampler"], self._file.options["sample_seed"])
        return optuna_search(suggest, sampler, self._options["metric"], mode)

    def _scheduler(self) -> dict[str, Any]:
        from rl_lab.tuning.trainable import KeptHalving, KeptPopulation

        population, halving = self._options["population"], self._options["halving"]
        if population is not None:
            explore = partial(_explored, dict(self._file.space), dict(self._configs.known), population)
            file = self._directory.path / "population.json"
            return {"scheduler": KeptPopulation(file, population["share"], explore)}
        if halving is None and self._options["pruner"] == "none":
            return {}
        reports = math.ceil(int(self._configs.known[TOTAL]) / self._every)
        factor = 3.0 if halving is None else 1 / halving["keep"]
        return {"scheduler": KeptHalving(self._directory.path / "halving.pickle", reports, factor)}

    def _row(self, number: int, result: Any) -> dict[str, Any]:
        """Return how a trial stands."""
        from rl_lab.tuning.trainable import COMPLETE

        metrics = result.metrics or {}
        state = "running"
        if result.error is not None:
            state = "fail"
        elif metrics.get("done"):
            state = "complete" if metrics.get(COMPLETE) else "pruned"
        value = metrics.get(self._options["metric"]) if state == "complete" else None
        row = {"number": number, "run": trial_name(number), "state": state, "value": value}
        row["values"] = self._values(result)
        return row | ({"why": _reason(result.error)} if state == "fail" else {})

    def _values(self, result: Any) -> dict[str, Any]:
        """Return the settings of a trial: what came with a copied agent stays."""
        if result.checkpoint is None:
            return self._read(result.config) if result.config else {}
        told: dict[str, Any] = json.loads(Path(result.checkpoint.path, "trial.json").read_text())
        return told["settings"]

    def _hand_over(self, name: str, result: Any) -> None:
        """Copy a trial's run to where runs are looked for."""
        target = self._directory.run_path(Trial(name))
        if result.checkpoint is None or target.exists():
            return
        aside = target.with_name(f".{name}")
        shutil.rmtree(aside, ignore_errors=True)
        shutil.copytree(Path(result.checkpoint.path, "run"), aside)
        aside.rename(target)


def write_report(
    directory: SweepDirectory, rows: list[dict[str, Any]], configs: TrialConfigs, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Write `report.json` and, where settings stay as they are, the best one as the experiment `best`; return it."""
    sign = -1 if options["goal"] == "maximize" else 1
    ended = sorted((row for row in rows if row["value"] is not None), key=lambda row: sign * row["value"])
    report: dict[str, Any] = {"search": str(directory.path), "metric": options["metric"], "goal": options["goal"]}
    report |= {"engine": "tune", "best": ended[0] if ended else None, "importances": {}, "trials": rows}
    if ended and options["population"] is None:
        directory.add(BEST, configs.text(ended[0]["values"]))
        report["command"] = f"lab train +experiment={BEST.name} --config-dir {directory.configs}"
    elif ended:
        report["command"] = f"lab evaluate {directory.run_path(Trial(ended[0]['run']))}"
    replace_file(directory.path / "report.json", json.dumps(report, indent=1) + "\n")
    return report


def begun(path: str) -> tuple[str, str]:
    """Return when a trial was begun, and its name: what trials are numbered by. Tune restores them in any order."""
    name = Path(path).name
    return name[-_STAMP:], name


def _suggest_all(space: Mapping[str, Any], trial: Any) -> None:
    from rl_lab.tuning.optuna_study import distribution_of, suggest

    for key, values in space.items():
        suggest(trial, key, distribution_of(values))


def _explored(
    space: Space, known: Mapping[str, Any], options: Mapping[str, Any], config: dict[str, Any]
) -> dict[str, Any]:
    """Return a member's config with values near those it has."""
    return {**config, MEMBER: explored(config[MEMBER], space, known, options, np.random.default_rng())}


def _as_interrupt(number: int, frame: FrameType | None) -> None:
    os.kill(os.getpid(), signal.SIGINT)  # which Tune listens to


def _reason(error: BaseException) -> str:
    """Return an error of a trial in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1].partition("Error: ")[2][:_LONG] or lines[-1][:_LONG]
