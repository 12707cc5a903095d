"""An experiment as a Trainable of Ray Tune, for searches that are written with Tune itself.

A step is `lab train --until` in a process of its own, and what Tune saves and hands from trial to trial is the run's
directory: a trial goes on to the bit, and one that takes over another's state with other settings (PBT) forks it.
`lab tune --on ray` does without all this, because Tune forgets what its schedulers know when its driver dies.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_lab.core.errors import ConfigError, LabError, UsageError
from rl_lab.tracking.jsonl import read_rows
from rl_lab.tracking.run_directory import RunDirectory
from rl_lab.tuning.trial_process import start_process

try:
    import ray.tune as tune
except ImportError as error:  # Tune's own message names its packages
    raise UsageError("rl_lab.tuning.trainable needs Ray Tune: pip install 'rl-lab[ray]' 'ray[tune]'") from error

_POLL_S = 0.05


class LabTrainable(tune.Trainable):
    """Trains what `trainable` names; the settings of a trial are options by their keys (`optimizers.policy.lr`)."""

    overrides: Sequence[str] = ()
    every_steps: int = 1
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
        return {**values, "done": RunDirectory.open(self._run).read_status() == "done"}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Copy the run, which paused with a checkpoint."""
        shutil.copytree(self._run, Path(checkpoint_dir, "run"))
        told = {"settings": self._settings, "origin": self._origin, "goal": self._goal}
        Path(checkpoint_dir, "trial.json").write_text(json.dumps(told))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Go on with a copy of a saved run, as a fork where the settings are others."""
        told = json.loads(Path(checkpoint_dir, "trial.json").read_text())
        self.cleanup()
        self._begin(self._settings)
        self._goal = told["goal"]
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
        self._settings = json.loads(json.dumps(settings, default=lambda number: number.item()))  # NumPy's, too
        self._run, self._goal = Path(tempfile.mkdtemp(prefix="lab_", dir=self.logdir), "run"), 0
        self._origin = {}


def _words(options: Mapping[str, Any]) -> list[str]:
    return [f"++{key}={json.dumps(value)}" for key, value in options.items()]


def trainable(overrides: Sequence[str], every_steps: int) -> type[LabTrainable]:
    """Return a class for `tune.Tuner`: of `lab train OVERRIDES`, reporting after every so many env steps."""
    if every_steps < 1:
        raise ConfigError(f"every_steps: must be 1 or more, not {every_steps}")
    return type("Experiment", (LabTrainable,), {"overrides": tuple(overrides), "every_steps": every_steps})
