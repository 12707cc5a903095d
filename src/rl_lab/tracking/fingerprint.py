"""One hash per part of a run's newest checkpoint: two runs went the same way exactly when all of them agree."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_lab.core.buffer import Segment
from rl_lab.core.errors import CheckpointError
from rl_lab.tracking.checkpoint import CheckpointStore, Loaded
from rl_lab.tracking.run_directory import RunDirectory
from rl_lab.tracking.state_codec import encode

GROUPS = {  # name of the hash -> top-level keys of the checkpoint
    "parameters": ("workflow", "workflow_state"),
    "optimizers": ("optimizers",),
    "counters": ("counters", "scheduler", "evaluator"),
    "buffers": ("buffers",),
    "rng": ("rng",),
    "environment": ("collector",),
}


def fingerprint(run: RunDirectory, checkpoint: Path | None = None) -> dict[str, str]:
    """Return the hashes of a checkpoint (the newest whole one), all ranks' parts, and of the metrics up to it."""
    loaded = CheckpointStore.load(checkpoint) if checkpoint else CheckpointStore(run.checkpoints).load_newest()
    others = [CheckpointStore.load(path).state for path in sorted(loaded.path.glob("rank_*"))]
    states = [loaded.state, *others]
    hashes = {name: tree_hash([state.get(key) for state in states for key in keys]) for name, keys in GROUPS.items()}
    return {**hashes, "metrics": _metrics_hash(run, loaded)}


def tree_hash(tree: Any) -> str:
    """Return the sha256 of a state tree: types, shapes and bits, whatever the order of its keys.

    A segment counts as the tensor it is: its key is random, and where it lies is no part of what a run computed.
    """
    digest = hashlib.sha256()
    _feed(digest, tree)
    return digest.hexdigest()


def _feed(digest: Any, tree: Any) -> None:
    if isinstance(tree, Segment):
        _feed(digest, tree.tensor)
    elif isinstance(tree, dict):
        digest.update(f"dict{len(tree)}".encode())
        for key in sorted(tree):
            digest.update(f"key{len(key)}:{key}".encode())
            _feed(digest, tree[key])
    elif isinstance(tree, list | tuple):
        digest.update(f"{type(tree).__name__}{len(tree)}".encode())
        for part in tree:
            _feed(digest, part)
    elif isinstance(tree, Tensor | np.ndarray):
        kind = "tensor" if isinstance(tree, Tensor) else "array"
        digest.update(f"{kind}{tree.dtype}{tuple(tree.shape)}".encode())
        (data,) = encode(tree)[0].values()
        digest.update(data.reshape(-1).view(torch.uint8).numpy())
    else:
        digest.update(f"{type(tree).__name__}{tree!r};".encode())


def _metrics_hash(run: RunDirectory, loaded: Loaded) -> str:
    size = loaded.state.get("tracker", {}).get("offsets", {}).get("metrics", 0)
    content = run.metrics_file.read_bytes() if run.metrics_file.is_file() else b""
    if len(content) < size:
        raise CheckpointError(f"{run.metrics_file} has {len(content)} bytes, but {loaded.path} was made at {size}")
    return hashlib.sha256(content[:size]).hexdigest()
