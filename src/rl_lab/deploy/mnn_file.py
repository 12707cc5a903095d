"""MNN, for phones and small computers; an extra: `pip install 'rl-lab[mnn]'`. It runs in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from rl_lab.core.errors import LabError, UsageError
from rl_lab.deploy.capture import Captured
from rl_lab.deploy.formats import FILES, Runtime, load_format
from rl_lab.deploy.ports import Arrays, Port

WORKER = "rl_lab.deploy.mnn_worker"


def write(captured: Captured, path: Path, metadata: Mapping[str, str]) -> None:
    """Write a policy by way of ONNX: from the file beside it, or from one that is made for it."""
    made = path.with_name(FILES["onnx"])
    with tempfile.TemporaryDirectory(prefix="rl_lab_mnn_") as folder:
        source = made if made.is_file() else Path(folder, made.name)
        if source is not made:
            load_format("onnx").write(captured, source, metadata)
        said = _work("convert", source, path)
    if not path.is_file():
        why = re.search(r"Op Not Support: *(.*)", said)
        raise LabError(f"--format mnn: MNN cannot convert this policy: {why[1].strip() if why else said[-200:]}")


def read_metadata(path: Path) -> None:
    """Return None: MNN files have no room for metadata."""


def load(path: Path, inputs: Sequence[Port], outputs: Sequence[Port]) -> Runtime:
    """Return a policy that MNN runs."""
    return partial(_run, path, tuple(inputs), tuple(outputs))


def _run(path: Path, inputs: Sequence[Port], outputs: Sequence[Port], arrays: Arrays) -> Arrays:
    with tempfile.TemporaryDirectory(prefix="rl_lab_mnn_") as folder:
        given, found = Path(folder, "inputs.npz"), Path(folder, "outputs.npz")
        np.savez(given, **{port.name: arrays[port.name] for port in inputs})  # type: ignore[arg-type]
        _work("run", path, given, found, *(port.name for port in outputs))
        results = dict(np.load(found, allow_pickle=False))
    return {port.name: results[port.name].reshape(-1, *port.shape).astype(port.dtype) for port in outputs}


def _work(*arguments: str | Path) -> str:
    """Return what the worker printed."""
    if find_spec("MNN") is None:
        raise UsageError("--format mnn: MNN is not installed: pip install 'rl-lab[mnn]'")
    command = [sys.executable, "-m", WORKER, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"its process ended with {done.returncode}"])[-1]
        raise LabError(f"--format mnn: MNN cannot {arguments[0]} this policy: {last}")
    return done.stdout + done.stderr
