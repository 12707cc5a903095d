"""`lab start +experiment=NAME ...`: a learner and its actors, each a process; actors perhaps on a Ray cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_lab.cli.options import ConfigDir, Debug, Json, Overrides, Plugin
from rl_lab.cli.report import Reported
from rl_lab.cli.sweep import Address, check_place

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from rl_lab.distributed.crew import Process

    Elsewhere = Callable[[Sequence[str], Path], Process]


def start(
    overrides: Overrides = None,
    run_dir: Annotated[
        str | None, typer.Option("--run-dir", help="Exactly this directory; a run in it is continued.")
    ] = None,
    on: Annotated[
        str, typer.Option("--on", help="Where actors run: local (this machine) or ray (a cluster).")
    ] = "local",
    address: Address = None,
    config_dir: ConfigDir = None,
    plugin: Plugin = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run a learner and `transport.actors` actors; their logs are in the run's `logs`. Actors that die begin again."""
    with Reported(debug):
        from rl_lab.cli.learner import check_kind
        from rl_lab.cli.train import existing, wanted
        from rl_lab.config.remote import ADDRESS, FILES
        from rl_lab.distributed.crew import Crew, Member

        check_place(on, address)
        run = existing(run_dir)
        chosen = _on_processes(overrides or [], wanted(overrides or [], run, config_dir, None), is_new=run is None)
        composed = wanted(chosen, run, config_dir, None)
        check_kind(composed, "a learner")
        if on == "local":
            _reject_certificates(composed)
        _reject_people(composed)
        path = Path(run_dir or _new_directory(composed)).absolute()
        shared = [word for name in plugin or [] for word in ("--plugin", name)]
        trees = [] if config_dir is None else ["--config-dir", config_dir]
        lab = [sys.executable, "-m", "rl_lab"]
        learner = Member("learner", [*lab, "learner", *chosen, "--run-dir", str(path), *shared, *trees])
        count = composed.transport.actors
        names = (
            [composed.transport.actor] if count == 1 else [f"{composed.transport.actor}-{i + 1}" for i in range(count)]
        )
        words = {name: ["actor", str(path), *_own_options(composed, name), *shared] for name in names}
        told = path / FILES / ADDRESS
        if run is None or not run.is_locked():
            told.unlink(missing_ok=True)  # of the learner before this one, on another port
        known = told if composed.transport.kind == "network" else path / "manifest.json"
        with _place(on, address, composed) as elsewhere:
            echo = partial(typer.echo, err=as_json)  # of what is printed, only the result is JSON
            echo(f"run: {path}")
            actors = [
                Member(name, each if elsewhere else [*lab, *each], elsewhere=elsewhere) for name, each in words.items()
            ]
            code = Crew(learner, actors, path / "logs", echo).run(known.is_file)
        if as_json and code == 0:
            _print_result(path)
        raise typer.Exit(code)


def _print_result(path: Path) -> None:
    from rl_lab.cli.running import print_results, result_of
    from rl_lab.tracking.run_directory import RunDirectory

    print_results([result_of(RunDirectory.open(path))], as_json=True)


@contextmanager
def _place(on: str, address: str | None, composed: DictConfig) -> Iterator[Elsewhere | None]:
    """Yield what starts actors elsewhere; None: they run here."""
    if on == "local":
        yield None
        return
    from rl_lab.core.errors import UsageError
    from rl_lab.tuning.ray_cluster import ray_cluster

    with ray_cluster(address, cpus=1, gpus=0) as cluster:
        count, room = composed.transport.actors, cluster.room()
        if count > room:
            raise UsageError(f"--on ray: transport.actors={count} need a CPU each, and the cluster has {room}")
        if composed.transport.certificate is None and not cluster.is_here_alone():
            raise UsageError(
                "transport.certificate: the cluster has nodes on other machines, which are reached with "
                "transport.kind=network and certificates alone (lab certs)"
            )
        yield lambda words, log: cluster(words, {}, log)


def _own_options(composed: DictConfig, name: str) -> list[str]:
    """Return what one actor is told: its name and, beside the learner's certificate, its own."""
    from rl_lab.core.errors import UsageError

    options = [f"transport.actor={name}"]
    if composed.transport.certificate is None:
        return options
    certificate = Path(composed.transport.certificate).absolute().with_name(f"{name}.pem")
    if not certificate.is_file():
        raise UsageError(
            f"transport.certificate: {certificate} is missing: lab certs issue {name} --role actor --dir "
            f"{certificate.parent}"
        )
    return [*options, f"transport.certificate={certificate}"]


def _on_processes(overrides: list[str], composed: DictConfig, *, is_new: bool) -> list[str]:
    """Return the overrides with which actors are processes, of one robot each, whatever an experiment asks for."""
    from omegaconf import OmegaConf

    if not (is_new or overrides):
        return overrides
    chosen = list(overrides)
    if OmegaConf.select(composed, "transport.kind") not in ("host", "network"):
        chosen.append("transport.kind=host")
    is_said = any(word.lstrip("+").startswith("environment.num_envs=") for word in overrides)
    if OmegaConf.select(composed, "environment.num_envs", default=1) != 1 and not is_said:
        chosen.append("environment.num_envs=1")
    if OmegaConf.select(composed, "transport.samplers") is not None:
        chosen.append("transport.samplers=null")  # they are there
    return chosen


def _reject_certificates(composed: DictConfig) -> None:
    from rl_lab.core.errors import UsageError

    if composed.transport.certificate is not None:
        raise UsageError(
            "transport.certificate: lab start runs all on one machine, without; start lab learner and lab actor where "
            "each of them belongs"
        )


def _reject_people(composed: DictConfig) -> None:
    """Refuse a person who has no terminal, or several robots."""
    from omegaconf import OmegaConf

    from rl_lab.core.errors import UsageError

    target = str(OmegaConf.select(composed, "training.operator._target_") or "")
    if not target.startswith(("rl_lab.human.operators.", "rl_lab.human.web.")):
        return
    if target.endswith(".KeyboardOperator"):
        raise UsageError(
            "training.operator: a keyboard needs a terminal; run lab learner here and lab actor in another"
        )
    if composed.transport.actors > 1:
        raise UsageError(
            f"training.operator: a person has one robot, not transport.actors={composed.transport.actors} (lab actor "
            "for each, with an operator of its own)"
        )


def _new_directory(composed: DictConfig) -> str:
    """Return the path of a new run, which the learner will make."""
    import secrets
    import time

    from omegaconf import OmegaConf

    experiment = OmegaConf.to_container(composed.experiment, resolve=True)
    assert isinstance(experiment, dict)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime())
    return str(Path(experiment["root"]) / f"{experiment['name']}_{stamp}_s{experiment['seed']}_{secrets.token_hex(3)}")
