"""The self-test at the end of a debug run: does a resume from an earlier checkpoint come out the same?"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import typer
from omegaconf import OmegaConf

from rl_lab.cli.running import Job, continued_job, let_go, run_to_end
from rl_lab.config.alerts import told_keys
from rl_lab.config.resume import restores_exactly
from rl_lab.core.errors import LabError
from rl_lab.tracking.checkpoint import CheckpointStore
from rl_lab.tracking.run_directory import RunDirectory
from rl_lab.tracking.verification import compare_runs

_NOT_COPIED = ("code", "tb", "media", "crash", "trace.json.gz")
_QUIET = ("terminal", "tensorboard", "csv", "wandb")


def check_resume(job: Job) -> None:
    """Repeat the end of a debug run in a copy, with everything made anew, and say whether it is the same to the bit.

    Raises LabError when it is not; what was found is in the manifest too. The job has no parts after it.
    """
    if not job.parts.config["experiment"]["debug"] or not job.parts.context.ranks.is_first:
        return
    entries = CheckpointStore(job.run.checkpoints).entries()
    obstacle = _obstacle(job, len(entries))
    if obstacle is not None:
        _tell(job.run, f"not done: {obstacle}")
        return
    first, last = entries[0], entries[-1]
    with tempfile.TemporaryDirectory(prefix="lab_self_test_") as folder:
        copy = _copied(job.run, Path(folder) / job.run.path.name, only=first.path.name)
        run_to_end(_continued(job, copy), quiet=True)
        verdict = compare_runs(job.run, copy)
    if verdict.divergence is not None:
        _tell(job.run, f"failed: resumed from checkpoint {first.path.name}, {verdict.divergence}")
        raise LabError(f"resume self-test: from checkpoint {first.path.name}, {verdict.divergence}")
    steps, updates = (last.counters[key] - first.counters[key] for key in ("env_steps", "updates"))
    again = f"{steps} env steps and {updates} updates from checkpoint {first.path.name}"
    _tell(job.run, f"passed: {again} came out again to the bit ({verdict.rows} rows compared)")


def _obstacle(job: Job, num_checkpoints: int) -> str | None:
    """Return why there is nothing to test."""
    if job.parts.context.ranks.size > 1:
        return "the run has several processes"
    if job.parts.config["transport"]["kind"] in ("host", "network"):
        return "its steps come from actors"
    if not restores_exactly(job.parts):
        return f"environment {job.parts.env.spec.id!r} cannot be restored exactly"
    if not job.parts.env.spec.exact_steps:
        return f"steps of environment {job.parts.env.spec.id!r} differ in their last bits"
    return None if num_checkpoints > 1 else "there is no checkpoint before the last"


def _copied(run: RunDirectory, target: Path, only: str) -> RunDirectory:
    """Return a copy of the run with one checkpoint, as if it had been killed before the next."""
    shutil.copytree(run.path, target, ignore=shutil.ignore_patterns(*_NOT_COPIED))
    for checkpoint in (target / "checkpoints").glob("[0-9]*"):
        if checkpoint.name != only:
            shutil.rmtree(checkpoint)
    return RunDirectory.open(target)


def _continued(job: Job, copy: RunDirectory) -> Job:
    """Return the job that goes on in a copy; nobody is told of its alerts a second time."""
    told = told_keys(job.parts.config["alerts"])
    composed, targets, _ = let_go(job)
    composed = composed.copy()
    for key in _QUIET:
        OmegaConf.update(composed, f"logging.{key}", False)
    for key in told:
        OmegaConf.update(composed, key, ["log"], force_add=True)
    return continued_job(copy, composed, targets, quiet=True)


def _tell(run: RunDirectory, text: str) -> None:
    run.write_manifest({"resume_self_test": text})
    typer.echo(f"resume self-test {text}", err=True)
