"""What a search has found: the best setting as an experiment, what mattered, and every trial."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rl_lab.core.errors import ConfigError
from rl_lab.tracking.atomic import replace_file
from rl_lab.tuning.optuna_study import Study, Told
from rl_lab.tuning.sweep_directory import SweepDirectory, Trial
from rl_lab.tuning.trial_configs import TrialConfigs
from rl_lab.tuning.tuner import Tuner

BEST = Trial("best")


def write_report(
    directory: SweepDirectory, study: Study, tuner: Tuner, configs: TrialConfigs, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Write `report.json` and, as soon as a trial is complete, the experiment `best`; return the report."""
    best, rows = study.best(), []
    for told in study.trials():
        row = {"number": told.number, "state": told.state, "value": told.value, "values": _values(tuner, told)}
        rows.append(row | ({"why": told.why} if told.why else {}))
    report: dict[str, Any] = {"search": str(directory.path), "metric": options["metric"], "goal": options["goal"]}
    report |= {"best": None, "importances": study.importances(), "trials": rows}
    if best is not None:
        report["best"] = rows[best.number]
        directory.add(BEST, configs.text(tuner.values_of(best)))
        report["command"] = f"lab train +experiment={BEST.name} --config-dir {directory.configs}"
    replace_file(directory.path / "report.json", json.dumps(report, indent=1) + "\n")
    return report


def _values(tuner: Tuner, told: Told) -> dict[str, Any]:
    """Return all values of a trial, or as many as are there: it may have died while it asked, or cannot be computed."""
    if len(told.chosen) < tuner.num_chosen:
        return told.chosen
    try:
        return tuner.values_of(told)
    except ConfigError:
        return told.chosen
