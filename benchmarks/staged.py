"""Processes that get ready at the same time, which takes long, and are then timed one by one while the others sleep."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Staged:
    """A process of its own with an empty cache of compiled code.

    Its command prints a line once it is ready, is timed when it is given a line, and ends with a line of JSON.

    Args:
        name: What it is called where it fails.
        command: To run.
        folder: Where its cache and what it says on the way lie.
        variables: Further ones of its environment.
    """

    def __init__(self, name: str, command: Sequence[str], folder: Path, **variables: str) -> None:
        self.name, own = name, name.replace(":", "_")
        self._said = folder / f"{own}.txt"
        with self._said.open("w") as said:
            self._process = subprocess.Popen(
                command,
                env=os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(folder / own)} | variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )

    def is_ready(self, until: float) -> bool:
        """Return whether it is ready before a moment of the monotonic clock; one that is not is ended."""
        assert self._process.stdout is not None
        found, _, _ = select.select([self._process.stdout], [], [], max(0.0, until - time.monotonic()))
        if found and self._process.stdout.readline():  # an empty one: it is gone
            return True
        self._process.kill()
        print(f"{self.name}: not ready. {self._said.read_text()[-1500:]}", flush=True)
        return False

    def row(self) -> dict[str, Any] | None:
        """Let it be timed; return what it found."""
        text, _ = self._process.communicate("go\n")
        if self._process.returncode:
            print(f"{self.name}: {self._said.read_text()[-1500:]}", flush=True)
            return None
        row: dict[str, Any] = json.loads(text.splitlines()[-1])
        return row
