"""Random streams: one seed, many named independent streams, all of them saved and restored."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


class RngStreams:
    """Derives a seed per name. Workflows draw from torch's global stream, environments from their own.

    Args:
        seed: Of the run.
        rank: Of the process, where several train the run: each has streams of its own.
    """

    def __init__(self, seed: int, rank: int = 0) -> None:
        self.root = seed
        self._own = (f"rank_{rank}",) if rank else ()

    def seed(self, *names: str | int) -> int:
        """Return the seed of the stream with this name: 63 bits, the same on every machine."""
        text = "/".join(str(part) for part in (self.root, *self._own, *names))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and torch's global streams."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def global_rng_state() -> dict[str, Any]:
    """Return the state of Python's, NumPy's, torch's and CUDA's global streams as arrays and numbers."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": {"version": version, "words": list(words), "gauss": gauss},
        "numpy": {"kind": kind, "keys": keys, "position": position, "has_gauss": has_gauss, "cached": cached},
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_global_rng_state(state: Mapping[str, Any]) -> None:
    """Restore what `global_rng_state` returned."""
    python, numpy = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["words"]), python["gauss"]))
    keys = np.asarray(numpy["keys"], dtype=np.uint32)
    np.random.set_state((numpy["kind"], keys, numpy["position"], numpy["has_gauss"], numpy["cached"]))
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(list(state["cuda"]))


@contextmanager
def isolated_rng(seed: int) -> Iterator[None]:
    """Run a block on its own global streams; those outside go on as if it had not happened."""
    saved = global_rng_state()
    seed_everything(seed)
    try:
        yield
    finally:
        set_global_rng_state(saved)
