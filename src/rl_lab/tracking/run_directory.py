"""The directory of one run: where everything is, who owns it, and how small files in it are written."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from rl_lab.core.durable import reason
from rl_lab.core.errors import ConfigError, RunDirectoryError
from rl_lab.tracking.atomic import remove_leftovers, replace_file
from rl_lab.tracking.lock import exclusive_lock, is_locked

SCHEMA_VERSION = 1
Status = Literal["running", "done", "failed", "stopped"]
_NAME = re.compile(r"[\w=+@,-][\w.=+@,-]{0,99}")
_HEARTBEAT_S = 5.0


class RunDirectory:
    """Paths and small files of a run. Make one with `create` or `open`."""

    def __init__(self, path: Path, run_id: str) -> None:
        self.path, self.id = path, run_id
        self.config_file = path / "config.yaml"
        self.manifest_file = path / "manifest.json"
        self.metrics_file = path / "metrics.jsonl"
        self.perf_file = path / "perf.jsonl"
        self.events_file = path / "events.jsonl"
        self.step_chain_file = path / "steps.chain"
        self.update_chain_file = path / "updates.chain"
        self.summary_file = path / "metrics.json"
        self.status_file = path / "status"
        self.heartbeat_file = path / "heartbeat"
        self.lock_file = path / "lock"
        self.checkpoints = path / "checkpoints"
        self.crash = path / "crash"
        self.media = path / "media"
        self.tb = path / "tb"
        self.code = path / "code"
        self._last_beat = -_HEARTBEAT_S

    @classmethod
    def create(
        cls,
        root: Path | str,
        name: str,
        seed: int,
        exact_path: Path | str | None = None,
        files: Mapping[str, str] | None = None,
    ) -> RunDirectory:
        """Make `root/<name>_<time>_s<seed>_<id>`, or exactly `exact_path`, which must be new or hold no run.

        The manifest makes it a run and is written last, after `files`: one that dies in between is no run.
        """
        if not _NAME.fullmatch(name):
            raise ConfigError(f"experiment.name {name!r} must be 1 to 100 letters, digits or any of _ - . = + @ ,")
        run_id, created = secrets.token_hex(3), time.time()
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(created))
        path = Path(exact_path) if exact_path is not None else Path(root) / f"{name}_{stamp}_s{seed}_{run_id}"
        run = cls(path.absolute(), run_id)
        try:
            run._make_directories(files or {})
            for file, text in (files or {}).items():
                run.write_text(file, text)
            run.write_manifest({"id": run_id, "name": name, "seed": seed, "created": created})
        except OSError as error:
            hint = "choose a writable experiment.root, LAB_EXPERIMENTS or --run-dir"
            raise RunDirectoryError(f"cannot create run directory {run.path}: {reason(error)}; {hint}") from error
        return run

    @classmethod
    def open(cls, path: Path | str) -> RunDirectory:
        """Open an existing run for reading; take `lock()` before writing."""
        run = cls(Path(path).absolute(), "")
        if not run.path.is_dir():
            raise RunDirectoryError(f"no run directory at {run.path} (expected a directory with manifest.json)")
        manifest = run.read_manifest()
        if type(manifest.get("id")) is not str:
            raise RunDirectoryError(f"{run.manifest_file} names no run id; this is not a run of the lab")
        run.id = manifest["id"]
        return run

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Own the directory: a second process is refused with the owner's pid and host."""
        with exclusive_lock(self.lock_file):
            for directory in (self.path, self.checkpoints):
                if directory.is_dir():
                    remove_leftovers(directory)
            yield

    def is_locked(self) -> bool:
        """Return whether a living process owns the directory."""
        return is_locked(self.lock_file)

    def write_text(self, name: str, text: str) -> None:
        """Write a small file of the run, such as config.yaml."""
        self._write(self.path / name, text)

    def read_config(self) -> str:
        """Return the resolved config, YAML text."""
        return self._read(self.config_file)

    def write_manifest(self, fields: Mapping[str, Any]) -> None:
        """Add fields to the manifest; those that are there already are replaced."""
        old = self.read_manifest() if self.manifest_file.exists() else {"schema_version": SCHEMA_VERSION}
        self._write(self.manifest_file, json.dumps({**old, **fields}, indent=1) + "\n")

    def read_manifest(self) -> dict[str, Any]:
        """Return the manifest; raises RunDirectoryError when it is missing, damaged or from a newer lab."""
        if not self.manifest_file.is_file():
            raise RunDirectoryError(f"{self.path} is not a run directory (it has no manifest.json)")
        manifest = self._read_json(self.manifest_file)
        version = manifest.get("schema_version")
        if type(version) is not int:
            raise RunDirectoryError(f"{self.manifest_file} has no schema_version; this is not a run of the lab")
        if version > SCHEMA_VERSION:
            limit = f"this lab reads up to {SCHEMA_VERSION}: update it"
            raise RunDirectoryError(f"{self.manifest_file} has schema_version {version}; {limit}")
        return manifest

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the final `metrics.json`."""
        self._write(self.summary_file, json.dumps(summary, indent=1) + "\n")

    def read_summary(self) -> dict[str, Any] | None:
        """Return the final `metrics.json`, or None while the run has none."""
        return self._read_json(self.summary_file) if self.summary_file.is_file() else None

    def set_status(self, status: Status) -> None:
        """Say how the run stands."""
        self._write(self.status_file, status + "\n")

    def read_status(self) -> str:
        """Return running, done, failed, stopped, or `killed` for a run whose process died without a word."""
        status = self._read(self.status_file).strip() if self.status_file.is_file() else "new"
        return "killed" if status == "running" and not self.is_locked() else status

    def heartbeat(self, **fields: Any) -> None:
        """Say that the run is alive, every five seconds at most. Best effort: it never stops a run."""
        now = time.monotonic()
        if now - self._last_beat >= _HEARTBEAT_S:
            self._last_beat = now
            with suppress(OSError):
                replace_file(self.heartbeat_file, json.dumps({"time": time.time(), **fields}) + "\n", durable=False)

    def _make_directories(self, files: Mapping[str, str]) -> None:
        if self.manifest_file.exists():
            raise RunDirectoryError(f"{self.path} already holds a run; continue it with `lab resume {self.path}`")
        ours = (self.checkpoints, self.media, self.tb, self.code)
        unfinished = {*(directory.name for directory in ours), *files, "logs"}  # of one that died while it was made
        remains = [entry.name for entry in self.path.iterdir()] if self.path.is_dir() else []
        if any(name not in unfinished and not name.startswith(".tmp-") for name in remains):
            raise RunDirectoryError(f"{self.path} is not empty and not a run directory; give a new or an empty one")
        for directory in ours:
            directory.mkdir(parents=True, exist_ok=True)

    def _write(self, path: Path, text: str) -> None:
        try:
            replace_file(path, text)
        except OSError as error:
            raise RunDirectoryError(f"cannot write {path}: {reason(error)}") from error

    def _read(self, path: Path) -> str:
        try:
            return path.read_text()
        except OSError as error:
            raise RunDirectoryError(f"cannot read {path}: {reason(error)}") from error
        except UnicodeDecodeError as error:
            raise RunDirectoryError(f"{path} is damaged: it is not text") from error

    def _read_json(self, path: Path) -> dict[str, Any]:
        try:
            content = json.loads(self._read(path))
        except json.JSONDecodeError as error:
            raise RunDirectoryError(f"{path} is damaged: it is not JSON") from error
        if not isinstance(content, dict):
            raise RunDirectoryError(f"{path} is damaged: expected a JSON object")
        return content
