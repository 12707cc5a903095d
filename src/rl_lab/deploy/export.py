"""From a trained policy to a directory that a robot's program can take: written, compared, and only then shown."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import rl_lab
from rl_lab.config.freeze import config_hash, thaw
from rl_lab.config.policy import TrainedPolicy
from rl_lab.core.errors import LabError, UsageError
from rl_lab.deploy.capture import capture
from rl_lab.deploy.formats import FILES, load_format
from rl_lab.deploy.function import Noise, PolicyFunction
from rl_lab.deploy.observing import from_sensors
from rl_lab.deploy.package import (
    GOLDEN,
    METADATA,
    NUM_GOLDEN,
    SCHEMA_VERSION,
    check_golden,
    embedded,
    file_hash,
    load_file,
    write_golden,
    write_metadata,
)
from rl_lab.deploy.parity import TOLERANCE, Calls, compare, record, steadiest
from rl_lab.tracking.atomic import remove_directory, temporary_sibling
from rl_lab.tracking.scratch import scratch_directory


def export_policy(
    policy: TrainedPolicy, formats: Sequence[str], out: Path, *, noise: Noise, num_calls: int
) -> dict[str, Any]:
    """Write a policy into the directory `out` and return its metadata.

    An earlier export there is replaced at the end; when anything goes wrong before, it stays and nothing else appears.
    """
    _check_place(out)
    workflow, spec, env = from_sensors(policy.workflow, policy.spec, policy.env)
    captured = capture(PolicyFunction(workflow, spec, noise))
    calls = record(captured.function, env, num_calls)
    metadata = _describe(policy, captured.function, noise)
    out.parent.mkdir(parents=True, exist_ok=True)
    with scratch_directory(temporary_sibling(out)) as scratch:
        folder = scratch.path
        write_golden(steadiest(captured.function, calls, NUM_GOLDEN), folder / GOLDEN)
        metadata["golden"] = {"file": GOLDEN, "sha256": file_hash(folder / GOLDEN)}
        files = {}
        for name in sorted(formats, key=list(FILES).index):  # MNN is made from ONNX
            load_format(name).write(captured, folder / FILES[name], embedded(metadata))
            files[name] = _verify(name, captured.function, calls, folder, metadata)
            check_golden(name, folder, metadata)
        metadata["files"] = files
        write_metadata(metadata, folder)
        if out.exists():
            remove_directory(out)
        os.rename(folder, out)
    return metadata


def _check_place(out: Path) -> None:
    """Refuse to replace anything but an earlier export."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out}: a file is in the way")
    ours = {METADATA, GOLDEN, *FILES.values()}
    if out.is_dir() and not {path.name for path in out.iterdir()} <= ours:
        raise UsageError(f"--out {out}: neither empty nor an earlier export; give another directory")


def _verify(
    name: str, function: PolicyFunction, calls: Calls, folder: Path, metadata: dict[str, Any]
) -> dict[str, Any]:
    """Compare a file with the policy on all recorded calls; raises when it computes anything else."""
    count = len(next(iter(calls.outputs.values())))
    parity = compare(function, calls, load_file(name, folder, metadata)(calls.inputs))
    if not parity.is_good:
        raise LabError(
            f"--format {name}: the file differs from the policy by {parity.max_difference:.2g} (allowed: "
            f"{TOLERANCE:g}) in {count} calls; nothing was written"
        )
    path = folder / FILES[name]
    facts = {"file": path.name, "sha256": file_hash(path), "bytes": path.stat().st_size}
    return {**facts, "calls": count, **parity._asdict()}


def _describe(policy: TrainedPolicy, function: PolicyFunction, noise: Noise) -> dict[str, Any]:
    """Return all of `policy.json` that does not depend on the files."""
    spec, env = policy.env.spec, policy.env.describe()
    facts = {"steps_per_second": spec.steps_per_second, "action_repeat": spec.action_repeat}
    described: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "lab": rl_lab.__version__,
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "run": policy.run.id,
        "experiment": policy.config["experiment"]["name"],
        "checkpoint": policy.loaded.path.name,
        "env_steps": policy.step,
        "workflow": type(policy.workflow).__name__,
        "config_hash": config_hash(policy.config),
        "parameters_hash": policy.sha256,
        "inputs": [port.to_json() for port in function.inputs],
        "outputs": [port.to_json() for port in function.outputs],
        "noise": noise,
        "tolerance": TOLERANCE,
        "environment": {"id": spec.id, **facts, **thaw(env)},
    }
    try:
        text = json.dumps(described, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise LabError(f"what environment {spec.id!r} says of itself is no plain JSON: {error}") from error
    return dict(json.loads(text))
