"""`lab train +experiment=NAME key=value ...`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from rl_lab.cli.options import DEFAULT_ROOT, ConfigDir, Debug, Json, Overrides, Plugin
from rl_lab.cli.report import Reported

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from rl_lab.cli.running import Job


def train(
    overrides: Overrides = None,
    seed: Annotated[str | None, typer.Option("--seed", help="One seed, or several: 1,2,3.", show_default=False)] = None,
    run_dir: Annotated[
        str | None, typer.Option("--run-dir", help="Exactly this directory; a run in it is continued.")
    ] = None,
    from_run: Annotated[
        str | None, typer.Option("--from-run", help="Begin anew with the config of this run; key=value goes on top.")
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
        from rl_lab.cli.running import opened, print_results, result_of
        from rl_lab.config.overrides import expand_seeds

        lists = expand_seeds(overrides or [], seed)
        if cfg is not None:
            _print_config(cfg, package, _composed(lists[0], config_dir, from_run))
            return
        _check_run_dir(run_dir, len(lists))
        results = []
        for each in lists:
            job = _job(each, run_dir, config_dir, from_run, plugin or [], quiet=as_json)
            if not as_json:
                typer.echo(f"run: {job.run.path}")
            with opened(job, quiet=as_json) as orchestrator:
                orchestrator.run()
            results.append(result_of(job.run))
        print_results(results, as_json)


def _check_run_dir(run_dir: str | None, count: int) -> None:
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


def _job(
    overrides: list[str],
    run_dir: str | None,
    config_dir: str | None,
    from_run: str | None,
    plugins: list[str],
    *,
    quiet: bool,
) -> Job:
    """Return a new run, or the one that lies in `run_dir` already."""
    from pathlib import Path

    from rl_lab.cli.running import continued_job, new_job
    from rl_lab.config.allow_list import AllowList, load_plugins
    from rl_lab.config.resume import recompose
    from rl_lab.config.targets import Targets
    from rl_lab.tracking.run_directory import RunDirectory

    targets = Targets(AllowList(load_plugins(plugins)))
    if run_dir is None or not (Path(run_dir) / "manifest.json").is_file():
        return new_job(_composed(overrides, config_dir, from_run), targets, run_dir, quiet=quiet)
    run = RunDirectory.open(run_dir)
    composed = _composed(overrides, config_dir, from_run) if overrides or from_run else recompose(run)
    return continued_job(run, composed, targets, quiet=quiet)


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
