"""Where a buffer's rows live, and how its batches reach the device that trains."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from rl_lab.core import ConfigError, LabError, Tree, tree_map, unknown_name

Storage = Literal["device", "host", "disk"]
STORAGES = ("device", "host", "disk")


class Placement:
    """On the training device, in the host's memory, or in mapped files of the run's directory."""

    def __init__(self, storage: Storage, device: torch.device | str) -> None:
        if storage not in STORAGES:
            raise ConfigError(unknown_name("storage of a buffer", storage, STORAGES))
        self.device = torch.device(device)
        self.home = self.device if storage == "device" else torch.device("cpu")  # of rows, indices and the generator
        self.is_on_disk = storage == "disk"
        self._directory: Path | None = None

    def attach(self, directory: Path) -> None:
        """Learn where files may lie."""
        self._directory = directory

    def file(self, name: str) -> Path | None:
        """Return the file for the rows of this name; None: they live in memory."""
        if not self.is_on_disk:
            return None
        if self._directory is None:
            raise LabError("a buffer with storage=disk needs a directory before its first rows: call attach")
        return self._directory / f"{name}.rows"

    def deliver(self, tree: Tree) -> Tree:
        """Return the tree on the training device."""
        return tree if self.home == self.device else tree_map(lambda leaf: leaf.to(self.device), tree)

    def fetch(self, tree: Tree) -> Tree:
        """Return the tree where the rows live."""
        return tree_map(lambda leaf: leaf.to(self.home), tree)

    def bring(self, numbers: Tensor) -> Tensor:
        """Return a host tensor where the rows live, without waiting for the device."""
        return numbers if self.home.type == "cpu" else numbers.pin_memory().to(self.home, non_blocking=True)
