"""`lab train +experiment=NAME key=value ...`."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_lab.cli.options import DEFAULT_ROOT, ConfigDir, Debug, Json, Overrides, Plugin
from rl_lab.cli.report import Reported

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from rl_lab.cli.running import Job
    from rl_lab.core.ranks import Ranks
    from rl_lab.orchestration.signals import Interrupted
    from rl_lab.tracking.run_directory import RunDirectory


def train(
    context: typer.Context,
    overrides: Overrides = None,
    seed: Annotated[str | None, typer.Option("--seed", help="One seed, or several: 1,2,3.", show_default=False)] = None,
    run_dir: Annotated[
        str | None, typer.Option("--run-dir", help="Exactly this directory; a run in it is continued.")
    ] = None,
    from_run: Annotated[
        str | None, typer.Option("--from-run", help="Begin anew with the config of this run; key=value goes on top.")
    ] = None,
    until: Annotated[
        int | None,
        typer.Option(
            "--until", min=1, help="Env steps: pause with a checkpoint at the end of the cycle that reaches them."
        ),
    ] = None,
    cfg: Annotated[str | None, typer.Option("--cfg", help="Print the config (job) instead of training.")] = None,
    package: Annotated[str | None, typer.Option("--package", help="With --cfg: only this block.")] = None,
    config_dir: ConfigDir = None,
    plugin: Plugin = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Train an experiment, one run per seed, or continue the run in --run-dir."""
    with Reported(debug):
        from rl_lab.config.overrides import expand_seeds

        lists = expand_seeds(overrides or [], seed)
        if cfg is not None:
            _print_config(cfg, package, _composed(lists[0], config_dir, from_run))
            return
        from rl_lab.cli.processes import ranks_of
        from rl_lab.cli.running import print_results

        check_run_dir(run_dir, len(lists))
        run = existing(run_dir)  # before the first process of several makes it
        composed = [wanted(each, run, config_dir, from_run) for each in lists]
        if composed[0].get("transport", {}).get("samplers") is not None:
            other = {"--seed": len(lists) > 1, "--from-run": from_run, "--until": until}
            _start(composed[0].transport.samplers, [name for name, value in other.items() if value])(
                lists[0], run_dir, config_dir=config_dir, plugin=plugin, as_json=as_json, debug=debug
            )
        with ranks_of(context, composed[0]) as ranks:
            make = partial(_job, run=run, run_dir=run_dir, plugins=plugin or [], ranks=ranks, quiet=as_json)
            ends = [_train(partial(make, one), as_json, until) for one in composed]
            halts = [halt for _, halt in ends if halt is not None]
            if ranks.is_first and (len(ends) > 1 or not halts):
                print_results([result for result, _ in ends], as_json)
            if halts:
                raise max(halts, key=lambda halt: halt.exit_code)  # the first of the worst


def _train(make: Callable[[], Job], as_json: bool, until: int | None) -> tuple[dict[str, Any], Interrupted | None]:
    """Run a job to its end, or until it pauses or an alert stops it, and return its result and what halted it."""
    from rl_lab.cli.running import result_of, run_to_end
    from rl_lab.cli.self_test import check_resume
    from rl_lab.orchestration.monitor import StoppedByAlert
    from rl_lab.orchestration.signals import Paused

    job = make()
    if not as_json and job.parts.context.ranks.is_first:
        typer.echo(f"run: {job.run.path}")
    try:
        run_to_end(job, quiet=as_json, until=until)
    except (Paused, StoppedByAlert) as halt:  # other seeds have their turn; its trace would keep this run in memory
        return result_of(job.run), halt.with_traceback(None)
    check_resume(job)
    return result_of(job.run), None


def _start(place: str, given: list[str]) -> Callable[..., None]:
    """Return `lab start` at the place that `transport.samplers` names; `given` are options that it has not."""
    from rl_lab.cli.start import start
    from rl_lab.core.errors import UsageError, unknown_name

    on, _, address = place.partition(":")
    if on not in ("local", "ray") or (on == "local" and address):
        raise UsageError(unknown_name("transport.samplers", place, ("local", "ray", "ray:HOST:PORT")))
    if given:
        raise UsageError(f"transport.samplers: {given[0]} does not go with it")
    return partial(start, on=on, address=address or None)


def check_run_dir(run_dir: str | None, count: int) -> None:
    """Refuse one directory for several runs."""
    from rl_lab.core.errors import UsageError

    if run_dir is not None and count > 1:
        raise UsageError(f"--run-dir {run_dir} is one run, but {count} seeds are given")


def _composed(overrides: list[str], config_dir: str | None, from_run: str | None) -> DictConfig:
    """Return the config that is asked for; of another run it is taken without the weights which that began with."""
    from rl_lab.config.compose import compose
    from rl_lab.config.resume import recompose
    from rl_lab.tracking.catalogue import find_run

    if from_run is None:
        return compose(overrides, config_dir)
    run = find_run(os.environ.get("LAB_EXPERIMENTS", DEFAULT_ROOT), from_run)
    return recompose(run, ["training.resume_path=null", *overrides])


def existing(run_dir: str | None) -> RunDirectory | None:
    """Return the run that lies in `run_dir` already."""
    from rl_lab.tracking.run_directory import RunDirectory

    if run_dir is None or not os.path.isfile(os.path.join(run_dir, "manifest.json")):
        return None
    return RunDirectory.open(run_dir)


def wanted(overrides: list[str], run: RunDirectory | None, config_dir: str | None, from_run: str | None) -> DictConfig:
    """Return the config that is asked for; where nothing is, that of the run which is continued."""
    from rl_lab.config.resume import recompose

    if run is None or overrides or from_run:
        return _composed(overrides, config_dir, from_run)
    return recompose(run)


def _job(
    composed: DictConfig,
    run: RunDirectory | None,
    run_dir: str | None,
    plugins: list[str],
    ranks: Ranks,
    *,
    quiet: bool,
) -> Job:
    """Return a new run in `run_dir`, or the one that lies there already."""
    from rl_lab.cli.running import continued_job, new_job
    from rl_lab.config.allow_list import AllowList, load_plugins
    from rl_lab.config.targets import Targets

    targets, quiet = Targets(AllowList(load_plugins(plugins))), quiet or not ranks.is_first
    if run is None:
        return new_job(composed, targets, run_dir, quiet=quiet, ranks=ranks)
    return continued_job(run, composed, targets, quiet=quiet, ranks=ranks)


def _print_config(kind: str, package: str | None, config: DictConfig) -> None:
    """Print the composed config as YAML, with its interpolations, as Hydra's `--cfg job --package P` does."""
    from omegaconf import OmegaConf

    from rl_lab.core.errors import UsageError, unknown_name

    if kind != "job":
        raise UsageError(unknown_name("--cfg", kind, ["job"]))
    selected = OmegaConf.select(config, package) if package else config
    if selected is None:
        raise UsageError(unknown_name("--package", package, [str(key) for key in config]))
    is_node = OmegaConf.is_config(selected)
    typer.echo(OmegaConf.to_yaml(selected).rstrip() if is_node else str(selected))
