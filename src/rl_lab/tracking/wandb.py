"""Weights & Biases, an extra: `pip install 'rl-lab[wandb]'`. A resumed run continues the same W&B run."""

from __future__ import annotations

import importlib
import secrets
from collections.abc import Mapping
from typing import Any

from rl_lab.tracking.run_directory import RunDirectory
from rl_lab.tracking.sinks import Row, Sink

_ID_FILE = "wandb_id"


class WandbSink(Sink):
    """Sends every row to W&B, over env steps."""

    def __init__(
        self, run: RunDirectory, project: str, config: Mapping[str, Any] | None = None, mode: str = "online"
    ) -> None:
        self._wandb = importlib.import_module("wandb")
        self._run, self._project, self._config, self._mode = run, project, dict(config or {}), mode
        self._session: Any = None

    def open(self, *, total_steps: int, start_step: int, resumed: bool) -> None:
        """Begin a W&B run, or continue the one whose id is in the run directory."""
        self._session = self._wandb.init(
            project=self._project,
            name=self._run.path.name,
            id=self._id(),
            resume="allow",
            dir=str(self._run.path),
            config=self._config,
            mode=self._mode,
        )
        # Steps are a metric like others: W&B drops rows whose own step goes back, as after a resume.
        self._session.define_metric("step")
        self._session.define_metric("*", step_metric="step")

    def row(self, row: Row) -> None:
        """Send the metrics and the position."""
        self._session.log(dict(row))

    def perf(self, row: Row) -> None:
        """Send the wall-clock numbers."""
        self.row(row)

    def close(self) -> None:
        """Wait until everything is sent."""
        if self._session is not None:
            self._session.finish()

    def _id(self) -> str:
        path = self._run.path / _ID_FILE
        if not path.is_file():
            path.write_text(secrets.token_hex(4))
        return path.read_text().strip()
