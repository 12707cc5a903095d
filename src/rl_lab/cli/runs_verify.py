"""`lab runs verify RUN`: does the run come out again?"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_lab.cli.options import DEFAULT_ROOT, Debug, Json, Plugin, Root
from rl_lab.cli.report import Reported

if TYPE_CHECKING:
    from pathlib import Path

    from rl_lab.tracking.run_directory import RunDirectory
    from rl_lab.tracking.verification import Verdict

_POLL_S = 0.2
_KEPT = 1_000_000  # checkpoints of the repetition: those that the run still has may be any
_QUIET = {f"logging.{name}": "false" for name in ("terminal", "tensorboard", "csv", "wandb")}
_HALTED = ("stopped", "failed")


def verify(
    run: Annotated[str | None, typer.Argument(help="A run directory, name or id; none: the newest.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Env steps; none: as far as the run came.")] = None,
    root: Root = None,
    plugin: Plugin = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Repeat a run in a fresh process, with its own config, seed and code, and say where it first differs.

    Exit code 1 when it does. The run itself is only read.
    """
    with Reported(debug):
        from rl_lab.tracking.catalogue import find_run

        found = find_run(root or DEFAULT_ROOT, run)
        _tell_versions(found)
        verdict = _verified(found, steps, plugin or [])
        _print(found, verdict, as_json)
        if verdict.divergence is not None:
            raise typer.Exit(1)


def _verified(run: RunDirectory, steps: int | None, plugins: list[str]) -> Verdict:
    """Train the replica in a directory that goes with this command, and compare."""
    from rl_lab.cli.code_state import START, own_code, own_plugin
    from rl_lab.config.migration import as_written
    from rl_lab.core.errors import RunDirectoryError
    from rl_lab.tracking.run_directory import RunDirectory
    from rl_lab.tracking.verification import compare_runs

    last = _last_step(run.path)
    limit = last if steps is None else min(steps, last)
    with own_code(run) as own:
        replica = own.sources.parent / "replica"
        origin = as_written(run, own.sources.parent / "origin")
        words = ["train", "--from-run", str(origin.path), "--run-dir", str(replica), *_overrides(run, origin)]
        words += [word for entry in plugins for word in ("--plugin", own_plugin(entry, own.sources))]
        command = [sys.executable, "-P", "-c", START, *words]
        with (own.sources.parent / "said").open("wb") as said:
            options: dict[str, Any] = {"env": own.environment, "pass_fds": [own.lifeline]}
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, **options) as child:
                was_asked = _wait(child, replica, limit)
        told = (own.sources.parent / "said").read_text(errors="replace").strip().splitlines()
        errors = [line.removeprefix("error: ") for line in told if line.startswith("error: ")]
        reason = (errors or told or [f"it said nothing and ended with {child.returncode}"])[-1]
        if not _has_begun(replica):
            raise RunDirectoryError(f"the run could not be repeated: {reason}")
        verdict = compare_runs(run, RunDirectory.open(replica), steps)
        is_alike = child.returncode == 0 or was_asked or _ended_alike(run, replica, limit)
        if verdict.divergence is None and not is_alike:
            raise RunDirectoryError(f"the run could not be repeated: {reason}")
        return verdict


def _has_begun(replica: Path) -> bool:
    from rl_lab.tracking.jsonl import last_row

    is_told_of = last_row(replica / "metrics.jsonl") is not None  # where nothing is collected, env steps stay at 0
    return (replica / "manifest.json").is_file() and (is_told_of or _last_step(replica) > 0)


def _ended_alike(run: RunDirectory, replica: Path, limit: int) -> bool:
    """Return whether a repetition that ended by itself is behind what is compared, or was halted where the run was."""
    from rl_lab.tracking.run_directory import RunDirectory

    last, status = _last_step(replica), RunDirectory.open(replica).read_status()
    was_halted = status in _HALTED and status == run.read_status()
    return last > limit or (last == limit and (limit < _last_step(run.path) or was_halted))


def _overrides(run: RunDirectory, origin: RunDirectory) -> list[str]:
    """Return what makes the repetition compute the same, whatever is automatic, keep all checkpoints and tell nobody.

    The run's own code may know fewer options than today's: those that its config lacks are left alone.
    """
    import yaml

    from rl_lab.config.alerts import told_keys
    from rl_lab.config.resume import GOES_ON
    from rl_lab.core.trees import tree_leaves

    config, manifest = yaml.safe_load(origin.read_config()), run.read_manifest()
    wanted = {"training.keep_last": str(_KEPT), "training.video_frequency": "null", **_QUIET}
    training, known = config["training"], {".".join(key.split(".")[:2]) for key, _ in tree_leaves(config)}
    source = training.get("resume_path")
    goes_on = source is not None and training.get("resume_mode") in GOES_ON  # its updates run as those before
    if manifest.get("updates") in ("eager", "compiled", "captured") and not goes_on:
        wanted["experiment.compile"] = manifest["updates"]
    words = [f"{key}={value}" for key, value in wanted.items() if key in known]
    words += [f"{key}=[log]" for key in told_keys(config.get("alerts", {}))]
    return words if source is None else [*words, f"training.resume_path={_quoted(_beginning(run, source))}"]


def _quoted(path: str) -> str:
    """Return a path as the value of an override; it may hold = and commas."""
    from hydra.core.override_parser.types import Quote, QuotedString

    return str(QuotedString(path, Quote.single).with_quotes())


def _beginning(run: RunDirectory, source: str) -> str:
    """Return the checkpoint that a run began with; its source may have written newer ones since."""
    from pathlib import Path

    from rl_lab.tracking.jsonl import read_rows

    begun = [Path(str(event["checkpoint"])) for event in read_rows(run.events_file) if event.get("kind") == "resume"]
    return next((str(path) for path in reversed(begun) if Path(source).absolute() in (path, *path.parents)), source)


def _wait(child: subprocess.Popen[bytes], replica: Path, limit: int) -> bool:
    """Return when the replica has ended, and whether it was asked to, because it is past the limit."""
    was_asked = False
    try:
        while child.poll() is None:
            if not was_asked and _last_step(replica) > limit:
                child.terminate()  # it checkpoints and leaves
                was_asked = True
            time.sleep(_POLL_S)
    finally:
        if child.poll() is None:
            child.kill()
    return was_asked


def _last_step(run: Path) -> int:
    """Return the last env step that a run has written of, in its metrics or its hash chain."""
    from rl_lab.tracking.chain_comparison import last_chained_step
    from rl_lab.tracking.jsonl import last_row

    row = last_row(run / "metrics.jsonl") or {}
    return max(int(row.get("step", 0)), last_chained_step(run / "steps.chain"))


def _tell_versions(run: RunDirectory) -> None:
    from rl_lab.config.resume import version_changes

    if changed := ", ".join(version_changes(run)):
        typer.echo(f"note: {changed}: a run comes out again only with the versions it was made with", err=True)


def _print(run: RunDirectory, verdict: Verdict, as_json: bool) -> None:
    import json
    from dataclasses import asdict

    if as_json:
        typer.echo(json.dumps({"run": str(run.path), **asdict(verdict)}, indent=1))
        return
    has_chain = verdict.vector_steps + verdict.updates > 0
    chain = f"{verdict.vector_steps} vector steps, {verdict.updates} updates, " if has_chain else ""
    compared = f"{chain}{verdict.rows} rows and {verdict.checkpoints} checkpoints up to env step {verdict.step}"
    equal = verdict.divergence is None
    typer.echo(
        f"verified: {compared} are equal to the bit" if equal else f"{verdict.divergence} (compared: {compared})"
    )
