"""`lab evaluate RUN`: whole episodes with a run's policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_lab.cli.options import DEFAULT_ROOT, Debug, Json, Plugin, Root, RunCode
from rl_lab.cli.report import Reported

if TYPE_CHECKING:
    from rl_lab.tracking.run_directory import RunDirectory

SUCCESS = "info/is_success"


def evaluate(
    context: typer.Context,
    run: Annotated[str | None, typer.Argument(help="A run directory; none: the newest.", show_default=False)] = None,
    episodes: Annotated[int | None, typer.Option("--episodes", min=1, help="Episodes (as trained).")] = None,
    checkpoint: Annotated[str, typer.Option("--checkpoint", help="latest, best, cycle:N or a path.")] = "latest",
    explore: Annotated[bool, typer.Option("--explore", help="Sample actions as in training.")] = False,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="Other episodes than those of the run.")] = None,
    run_code: RunCode = False,
    root: Root = None,
    plugin: Plugin = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Evaluate a run's policy; the run itself is only read."""
    with Reported(debug):
        from rl_lab.cli.code_state import settle_code
        from rl_lab.tracking.catalogue import find_run

        found = find_run(root or DEFAULT_ROOT, run)
        settle_code(found, plugin or [], context if run_code else None)
        result = _evaluate(found, episodes, checkpoint, explore, seed, plugin or [])
        _print(result, as_json)


def _evaluate(
    run: RunDirectory,
    episodes: int | None,
    checkpoint: str,
    explore: bool,
    seed: int | None,
    plugins: list[str],
) -> dict[str, Any]:
    from rl_lab.config.allow_list import AllowList, load_plugins
    from rl_lab.config.build import assemble, build_evaluator
    from rl_lab.config.resume import recompose
    from rl_lab.config.targets import Targets
    from rl_lab.ops.intervals import with_interval
    from rl_lab.tracking.checkpoint_choice import choose_checkpoint

    loaded = choose_checkpoint(run, checkpoint)
    overrides = [] if seed is None else [f"experiment.seed={seed}"]
    parts = assemble(recompose(run, overrides), Targets(AllowList(load_plugins(plugins))), with_teacher=False)
    parts.workflow.load_state_dict(loaded.state["workflow"])
    parts.workflow.set_state(loaded.state["workflow_state"])
    evaluator = build_evaluator(parts, episodes or parts.config["training"]["num_eval_episodes"], explore=explore)
    metrics = evaluator.evaluate(parts.workflow, step=loaded.manifest["counters"]["env_steps"])
    for env in (parts.env, evaluator.env):
        env.close()
    return {"run": str(run.path), "checkpoint": str(loaded.path), **with_interval(metrics or {}, SUCCESS, "episodes")}


def _print(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        import json

        typer.echo(json.dumps(result, indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("metric", "value", title="evaluation")
    for key, value in result.items():
        table.add_row(key, f"{value:.6g}" if isinstance(value, float) else value)
    Console(soft_wrap=True).print(table)
