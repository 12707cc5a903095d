"""`lab tune FILE.yaml`: search the space of a sweep's file for the best setting; the same command goes on."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_lab.cli.options import ConfigDir, Debug, Json, Plugin, Root
from rl_lab.cli.report import Reported
from rl_lab.cli.sweep import (
    Address,
    FileAndOverrides,
    Jobs,
    On,
    Place,
    check_place,
    directory_of,
    open_crew,
    targets_of,
    tell_notes,
)
from rl_lab.cli.table import print_table

if TYPE_CHECKING:
    from rl_lab.tuning.crew import Crew
    from rl_lab.tuning.optuna_study import Told
    from rl_lab.tuning.sweep_file import SweepFile
    from rl_lab.tuning.trial_configs import TrialConfigs
    from rl_lab.tuning.tuner import TellTrial


def tune(
    arguments: FileAndOverrides,
    trials: Annotated[
        int | None, typer.Option("--trials", min=1, help="Settings to try (tune.trials).", show_default=False)
    ] = None,
    place: Place = None,
    jobs: Jobs = None,
    on: On = "local",
    address: Address = None,
    engine: Annotated[
        str, typer.Option("--engine", help="Who drives it on Ray: lab, or tune (Ray Tune's ASHA, PBT, OptunaSearch).")
    ] = "lab",
    root: Root = None,
    config_dir: ConfigDir = None,
    plugin: Plugin = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check the file and show one setting.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Search for the best setting; several of these commands may work on one directory."""
    with Reported(debug):
        from rl_lab.tuning.search import check_search, prepare_search
        from rl_lab.tuning.sweep_file import read_sweep
        from rl_lab.tuning.trial_configs import open_configs

        check_place(on, address)
        _check_engine(engine, on)
        file, overrides = read_sweep(arguments[0]), arguments[1:]
        tell_notes(file)
        options = file.tune | ({} if trials is None else {"trials": trials})
        with open_configs(file, targets_of(plugin or []), config_dir, overrides) as configs:
            settled = _settled(file, configs, options, engine)
            if dry_run:
                typer.echo(json.dumps({"tune": options, "setting": check_search(file, configs)}, indent=1))
                return
            directory = directory_of(place, root, file)
            if directory.is_planned():  # compared, nothing is written
                prepare_search(directory, file, overrides, configs, settled)
            else:
                check_search(file, configs)
            if settled is None and engine == "lab":
                from rl_lab.tuning.optuna_study import check_storage

                check_storage(options["storage"])
            with open_crew(file, directory, jobs, plugin or [], on, address) as crew:
                prepare_search(directory, file, overrides, configs, settled)
                if engine == "tune":
                    report = _search_by_tune(crew, file, configs, options, as_json)
                else:
                    search = _search if settled is None else _search_in_rounds
                    report = search(crew, file, configs, options, as_json)
        if as_json:
            typer.echo(json.dumps(report, indent=1))
        else:
            _print(report)
        _leave(report, crew.stop_signal)


def _search(
    crew: Crew, file: SweepFile, configs: TrialConfigs, options: dict[str, Any], as_json: bool
) -> dict[str, Any]:
    """Search to the end, or until it is asked to stop, and return what was found."""
    from rl_lab.tuning.optuna_study import Study
    from rl_lab.tuning.search import search_space
    from rl_lab.tuning.search_report import write_report
    from rl_lab.tuning.tuner import Tuner

    directory = crew.directory
    study = Study(directory.path, search_space(file.space), options, file.options["sample_seed"])
    study.settle()
    tuner = Tuner(crew, study, file.space, configs, file.seeds, options)
    if not as_json:
        typer.echo(f"search: {directory.path}: {options['trials']} settings, {len(crew.slots)} runs at once")
    tuner.run(_teller(options["metric"], as_json), lambda: None)
    return write_report(directory, study, tuner, configs, options)


def _check_engine(engine: str, on: str) -> None:
    """Refuse who cannot drive a search there, before anything is written."""
    from rl_lab.core.errors import UsageError, unknown_name

    if engine not in ("lab", "tune"):
        raise UsageError(unknown_name("--engine", engine, ("lab", "tune")))
    if engine == "tune" and on != "ray":
        raise UsageError("--engine tune goes with --on ray")


def _settled(file: SweepFile, configs: TrialConfigs, options: dict[str, Any], engine: str) -> dict[str, Any] | None:
    """Return what a search must go on with, beside its space, once it is checked; None: nothing more."""
    from rl_lab.tuning.sweep_file import ROUNDS

    is_in_rounds = any(options[key] is not None for key in ROUNDS)
    if is_in_rounds:
        from rl_lab.tuning.rounds import check_rounds

        check_rounds(file, configs, options)
    if engine == "tune":
        from rl_lab.tuning.tune_engine import check_engine

        check_engine(file, configs, options)
        return {"engine": engine, **{key: options[key] for key in ("trials", "metric", "sampler", "pruner", *ROUNDS)}}
    return {key: options[key] for key in ("trials", "metric", "score", *ROUNDS)} if is_in_rounds else None


def _search_by_tune(
    crew: Crew, file: SweepFile, configs: TrialConfigs, options: dict[str, Any], as_json: bool
) -> dict[str, Any]:
    """Let Ray Tune search to the end, or until it is asked to stop, and return what was found."""
    from rl_lab.tuning.tune_engine import TuneSearch, write_report

    if not as_json:
        typer.echo(f"search: {crew.directory.path}: {options['trials']} trials by Ray Tune, {len(crew.slots)} at once")
    search = TuneSearch(crew.directory, file, configs, options, crew.plugins, len(crew.slots))
    rows = search.run()
    if any(row["state"] == "running" for row in rows):
        crew.stop_signal = signal.SIGINT
    return write_report(crew.directory, rows, configs, options)


def _search_in_rounds(
    crew: Crew, file: SweepFile, configs: TrialConfigs, options: dict[str, Any], as_json: bool
) -> dict[str, Any]:
    """Search round by round to the end, or until it is asked to stop, and return what was found."""
    from rl_lab.tuning.rounds import Rounds
    from rl_lab.tuning.rounds_report import write_report

    rounds = Rounds(crew, file, configs, options)
    if not as_json:
        typer.echo(f"search: {crew.directory.path}: {options['trials']} members, {len(crew.slots)} runs at once")
    rounds.run(lambda line: None if as_json else typer.echo(line))
    return write_report(crew.directory, rounds.journal, options)


def _teller(metric: str, quiet: bool) -> TellTrial:
    """Return what says, in a line each, how trials ended."""

    def tell(told: Told, why: str) -> None:
        value = "" if told.value is None else f", {metric} {told.value:.6g}"
        if not quiet:
            typer.echo(f"trial {told.number} {told.state}{value}{': ' * bool(why)}{why}")

    return tell


def _print(report: dict[str, Any]) -> None:
    """Print the trials from best to worst, what mattered, and how to run the best."""
    trials = report["trials"]
    keys = list(dict.fromkeys(key for trial in trials for key in trial["values"]))
    titles = ["trial", *(key.rpartition(".")[2] for key in keys), "state", report["metric"], "why"]
    sign, rows = -1 if report["goal"] == "maximize" else 1, []
    for trial in sorted(trials, key=lambda each: (each["value"] is None, sign * (each["value"] or 0.0))):
        shown = [_short(trial["values"].get(key, "")) for key in keys]
        rows.append(
            [
                str(trial.get("run", trial["number"])),
                *shown,
                trial["state"],
                _short(trial["value"]),
                trial.get("why", ""),
            ]
        )
    print_table(titles, rows)
    if report["importances"]:
        print_table(["key", "importance"], [[key, f"{share:.2f}"] for key, share in report["importances"].items()])
    if report["best"] is not None:
        best = report["best"]["number"]
        typer.echo(f"best: {report['best'].get('run') or 'trial ' + str(best)}: {report['command']}")


def _short(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _leave(report: dict[str, Any], stop_signal: int | None) -> None:
    """End with the exit code that says how the search stands."""
    states = [trial["state"] for trial in report["trials"]]
    if stop_signal is not None:
        ended = len(states) - states.count("running")
        typer.echo(f"stopped: {ended} trials have ended; the same command goes on", err=True)
        raise typer.Exit(128 + stop_signal)
    if report["best"] is None:
        typer.echo(f"error: none of {len(states)} trials came to its end", err=True)
        raise typer.Exit(1)
