"""`lab export RUN`: a run's policy as files for other programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_lab.cli.options import DEFAULT_ROOT, Debug, Json, Plugin, Root, RunCode
from rl_lab.cli.report import Reported

if TYPE_CHECKING:
    from rl_lab.tracking.run_directory import RunDirectory


def export(
    context: typer.Context,
    run: Annotated[str | None, typer.Argument(help="A run directory; none: the newest.", show_default=False)] = None,
    checkpoint: Annotated[str, typer.Option("--checkpoint", help="latest, best, cycle:N or a path.")] = "latest",
    formats: Annotated[
        list[str] | None,
        typer.Option("--format", help="torchscript, onnx or mnn, several times (those installed).", show_default=False),
    ] = None,
    out: Annotated[str | None, typer.Option("--out", help="Directory of the files (export, in the run's).")] = None,
    noise: Annotated[
        str, typer.Option("--noise", help="Where the policy draws: input (given from outside) or neutral (no draws).")
    ] = "input",
    calls: Annotated[
        int, typer.Option("--calls", min=1, help="How many answers of files and policy are compared.")
    ] = 1000,
    check: Annotated[
        str | None, typer.Option("--check", help="Only verify this file or directory of an earlier export.")
    ] = None,
    run_code: RunCode = False,
    root: Root = None,
    plugin: Plugin = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Export a policy as a function of observations and state, checked against the policy itself."""
    with Reported(debug):
        if check is not None:
            _check(Path(check), as_json)
            return
        from rl_lab.cli.code_state import settle_code
        from rl_lab.tracking.catalogue import find_run

        found = find_run(root or DEFAULT_ROOT, run)
        settle_code(found, plugin or [], context if run_code else None)
        folder = Path(out) if out else found.path / "export"
        metadata = _export(found, checkpoint, formats, folder, noise, calls, plugin or [])
        if as_json:
            typer.echo(json.dumps({"directory": str(folder.absolute()), **metadata}, indent=1))
            return
        for name, facts in metadata["files"].items():
            typer.echo(f"{name}: {_difference(facts)} of {facts['calls']} calls, {facts['bytes']:,} bytes")
        typer.echo(f"export: {folder.absolute()}")


def _export(
    run: RunDirectory,
    checkpoint: str,
    formats: list[str] | None,
    folder: Path,
    noise: str,
    num_calls: int,
    plugins: list[str],
) -> dict[str, Any]:
    import torch

    from rl_lab.config.allow_list import AllowList, load_plugins
    from rl_lab.config.policy import load_policy
    from rl_lab.config.targets import Targets
    from rl_lab.core.errors import UsageError, unknown_name
    from rl_lab.deploy.export import export_policy
    from rl_lab.deploy.formats import FILES, installed_formats
    from rl_lab.deploy.function import NOISES
    from rl_lab.tracking.checkpoint_choice import choose_checkpoint

    for name in formats or ():
        if name not in FILES:
            raise UsageError(unknown_name("--format", name, FILES))
    if noise not in NOISES:
        raise UsageError(unknown_name("--noise", noise, NOISES))
    chosen = list(dict.fromkeys(formats or installed_formats()))
    targets = Targets(AllowList(load_plugins(plugins)))
    policy = load_policy(
        run, choose_checkpoint(run, checkpoint), targets, torch.device("cpu"), precision="float32"
    )  # files compute in full precision
    try:
        return export_policy(policy, chosen, folder, noise=NOISES[noise], num_calls=num_calls)
    finally:
        policy.env.close()


def _check(path: Path, as_json: bool) -> None:
    from rl_lab.deploy.package import check

    checked = {name: parity._asdict() for name, parity in check(path).items()}
    if as_json:
        typer.echo(json.dumps(checked, indent=1))
        return
    for name, facts in checked.items():
        typer.echo(f"{name}: as exported, golden calls: {_difference(facts)}")


def _difference(facts: dict[str, Any]) -> str:
    unstable = f" ({facts['unstable']} unstable)" if facts["unstable"] else ""
    return f"largest difference {facts['max_difference']:.1e}{unstable}"
