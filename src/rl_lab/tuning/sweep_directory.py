"""A sweep on disk. What was planned is written once; how each trial stands is read from its run directory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rl_lab.core.durable import reason
from rl_lab.core.errors import RunDirectoryError
from rl_lab.tracking.atomic import replace_file
from rl_lab.tracking.groups import RUN_FILE, SWEEP_FILE, TRIALS
from rl_lab.tracking.jsonl import last_row, read_rows
from rl_lab.tracking.lock import exclusive_lock, is_locked
from rl_lab.tracking.run_directory import RunDirectory

SCHEMA_VERSION = 1
State = Literal["waiting", "running", "stopped", "done", "failed"]
_LOG_TAIL_BYTES = 8192


@dataclass(frozen=True)
class Trial:
    """One run of a sweep."""

    name: str
    values: dict[str, Any] = field(default_factory=dict, compare=False)


class SweepDirectory:
    """Paths and small files of a sweep."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).absolute()
        self.plan_file = self.path / SWEEP_FILE
        self.configs = self.path / "configs"  # a config tree: one experiment per trial
        self.trials = self.path / TRIALS  # run directories
        self.logs = self.path / "logs"  # what trials printed
        self.claims = self.path / "claims"  # locks of those who look after a trial
        self._log_starts: dict[str, int] = {}  # bytes that were there when the attempt of this process began

    def is_planned(self) -> bool:
        """Return whether a sweep lies here."""
        return self.plan_file.is_file()

    def make(self) -> None:
        """Make the directories."""
        try:
            for folder in (self.configs / "experiment", self.trials, self.logs, self.claims):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunDirectoryError(f"cannot create {self.path}: {reason(error)}; choose another --dir") from error

    def add(self, trial: Trial, text: str) -> None:
        """Write the experiment of a trial."""
        self._write(self.config_file(trial), text)

    def has(self, trial: Trial) -> bool:
        """Return whether the experiment of a trial was written."""
        return self.config_file(trial).is_file()

    def config_file(self, trial: Trial) -> Path:
        """Return the experiment of a trial."""
        return self.configs / "experiment" / f"{trial.name}.yaml"

    def write_plan(self, raw: Mapping[str, Any], trials: Sequence[Trial]) -> None:
        """Write what makes this a sweep, after all that it names: one that dies before is no sweep."""
        rows = [{"name": trial.name, "values": trial.values} for trial in trials]
        content = {"schema_version": SCHEMA_VERSION, "definition": raw, "trials": rows}
        self._write(self.plan_file, json.dumps(content, indent=1) + "\n")

    def read_plan(self) -> tuple[dict[str, Any], list[Trial]]:
        """Return the definition and the trials."""
        try:
            content = json.loads(self.plan_file.read_text())
            trials = [Trial(row["name"], row["values"]) for row in content["trials"]]
            definition, version = content["definition"], content["schema_version"]
        except OSError as error:
            raise RunDirectoryError(f"no sweep in {self.path}: {reason(error)}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise RunDirectoryError(f"{self.plan_file} is damaged: {error}") from error
        if version != SCHEMA_VERSION:
            raise RunDirectoryError(f"{self.plan_file} has schema_version {version}; this lab reads {SCHEMA_VERSION}")
        return definition, trials

    def _write(self, path: Path, text: str) -> None:
        try:
            replace_file(path, text)
        except OSError as error:
            raise RunDirectoryError(f"cannot write {path}: {reason(error)}") from error

    def run_path(self, trial: Trial) -> Path:
        """Return the run directory of a trial."""
        return self.trials / trial.name

    def log_file(self, trial: Trial) -> Path:
        """Return where a trial's process prints to."""
        return self.logs / f"{trial.name}.txt"

    def failure_file(self, trial: Trial) -> Path:
        """Return where it is noted why a trial failed."""
        return self.logs / f"{trial.name}.failed"

    def train_words(self, trial: Trial) -> list[str]:
        """Return the `lab` command that begins a trial, and that goes on with it wherever it stopped."""
        tree = ["--config-dir", str(self.configs)]
        return ["train", f"+experiment={trial.name}", *tree, "--run-dir", str(self.run_path(trial)), "--json"]

    def state(self, trial: Trial) -> State:
        """Return how a trial stands."""
        path = self.run_path(trial)
        if not (path / RUN_FILE).is_file():
            return "failed" if self.failure_file(trial).is_file() else "waiting"
        status = RunDirectory.open(path).read_status()
        if status == "failed" or (status != "done" and self.failure_file(trial).is_file()):
            return "failed"
        return status if status in ("done", "running") else "stopped"  # type: ignore[return-value]

    def note_failure(self, trial: Trial, exit_code: int) -> str:
        """Write down, and return, in one line why a trial's process ended."""
        message = self._last_error(trial) or _ended(exit_code)
        self._write(self.failure_file(trial), json.dumps({"exit_code": exit_code, "message": message}) + "\n")
        return message

    def forget_failure(self, trial: Trial) -> None:
        """Let a failed trial be tried again; what its log says so far is of earlier attempts."""
        self.failure_file(trial).unlink(missing_ok=True)
        log = self.log_file(trial)
        self._log_starts[trial.name] = log.stat().st_size if log.is_file() else 0

    def failure(self, trial: Trial) -> str:
        """Return why a trial failed."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            return str(json.loads(self.failure_file(trial).read_text())["message"])
        return "see its log"

    def _last_error(self, trial: Trial) -> str | None:
        file = self.log_file(trial)
        if not file.is_file():
            return None
        with open(file, "rb") as log:
            log.seek(max(self._log_starts.get(trial.name, 0), file.stat().st_size - _LOG_TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
        said = [line.removeprefix("learner | ") for line in lines]  # of a trial with actors of its own
        return next((line.removeprefix("error: ") for line in reversed(said) if line.startswith("error: ")), None)

    def steps(self, trial: Trial) -> int:
        """Return how many env steps a trial has written rows of."""
        return int((last_row(self.run_path(trial) / "metrics.jsonl") or {}).get("step", 0))

    def last_value(self, trial: Trial, metric: str) -> float | None:
        """Return the last value of a metric."""
        rows = read_rows(self.run_path(trial) / "metrics.jsonl")
        values = [row[metric] for row in rows if isinstance(row.get(metric), int | float)]
        return float(values[-1]) if values else None

    def metrics(self, trial: Trial) -> set[str]:
        """Return the names of all metrics that a trial has written."""
        rows = read_rows(self.run_path(trial) / "metrics.jsonl")
        return {key for row in rows for key in row if "/" in key}

    def is_claimed(self, name: str) -> bool:
        """Return whether a living process looks after something of this name."""
        return is_locked(self.claims / name)

    @contextmanager
    def claim(self, name: str) -> Iterator[None]:
        """Look after something; raises RunDirectoryError when another process does. Ends with this process."""
        with exclusive_lock(self.claims / name):
            yield


def _ended(exit_code: int) -> str:
    return f"killed by signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}, no message"
