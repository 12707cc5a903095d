"""The words behind `lab launch PLACE`: read and checked as the command itself would, before anything is sent."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_lab.cli.code_state import arguments_of
from rl_lab.cli.options import DEFAULT_ROOT
from rl_lab.config.compose import resolve
from rl_lab.config.overrides import expand_seeds
from rl_lab.config.validate import validate
from rl_lab.core.errors import UsageError, unknown_name
from rl_lab.launching.order import Order, check_directory
from rl_lab.launching.record import check_name, new_name
from rl_lab.tracking.groups import seed_name

if TYPE_CHECKING:
    from omegaconf import DictConfig

PATHS = {"run_dir": "--run-dir", "place": "--dir", "config_dir": "--config-dir", "root": "--root"}


def read_order(words: Sequence[str], name: str | None, launches: Path, *, shares_files: bool) -> Order:
    """Return what is to be launched; a command that could not run is refused in one line."""
    if not words or words[0] not in COMMANDS:
        given = words[0] if words else ""
        raise UsageError(unknown_name("command to launch", given, COMMANDS))
    context = _parsed(words)
    if name is not None:
        check_name(name)
    _take_from_here(context.params)
    if not shares_files:
        _reject_paths(context.params)
    order = COMMANDS[words[0]](context, name, launches)
    if not shares_files:
        _reject_outside("the directory of the runs", check_directory("the directory of the runs", order.results))
    return order


def canonical(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command with its options in the order of their declaration."""
    return tuple(arguments_of(_parsed(words)))


def _parsed(words: Sequence[str]) -> Any:
    """Return the context of the command, as its own command line reads it."""
    from rl_lab.cli.compat import read_command

    try:
        context = read_command(list(words))
    except UsageError as error:
        raise UsageError(f"{error} (options of lab launch stand before `{words[0]}`)") from error
    for option in ("cfg", "dry_run"):
        if context.params.get(option):
            raise UsageError(
                f"--{option.replace('_', '-')} of lab {words[0]} only prints: give it here, without launch"
            )
    for parameter in context.command.params:
        if context.params[parameter.name] == parameter.default:
            context.params[parameter.name] = None  # the command line stays short
    return context


def _train(context: Any, name: str | None, launches: Path) -> Order:
    """One task per seed, each with a run directory of its own, in which the same command goes on."""
    from rl_lab.cli.train import check_run_dir, wanted

    params = context.params
    lists = expand_seeds(params["overrides"] or [], params["seed"])
    check_run_dir(params["run_dir"], len(lists))
    composed = [wanted(each, None, params["config_dir"], params["from_run"]) for each in lists]
    _check_configs(composed, params["plugin"] or [])
    root = below_here(str(resolve(composed[0])["experiment"]["root"]))
    name = name or new_name(composed[0].experiment.name)
    place = params["run_dir"] or f"{root}/{name}"
    many = {**params, "overrides": _with_root(params["overrides"] or [], root)}
    tasks = []
    for overrides, config in zip(lists, composed, strict=True):
        own = place if len(lists) == 1 else f"{place}/{seed_name(config.experiment.seed)}"
        tasks.append(_words(context, {**params, "overrides": overrides, "seed": None, "run_dir": own}))
    words = tasks[0] if len(tasks) == 1 else _words(context, many)
    return _order(name, words, tasks, place, launches)


def _sweep(context: Any, name: str | None, launches: Path) -> Order:
    from rl_lab.cli.sweep import checked_trials, targets_of
    from rl_lab.tuning.sweep_file import read_sweep

    params = context.params
    file = read_sweep(params["arguments"][0])
    checked_trials(file, targets_of(params["plugin"] or []), params["config_dir"], params["arguments"][1:])
    return _queue(context, name or new_name(file.name), launches)


def _tune(context: Any, name: str | None, launches: Path) -> Order:
    from rl_lab.cli.sweep import targets_of
    from rl_lab.tuning.search import check_search
    from rl_lab.tuning.sweep_file import read_sweep
    from rl_lab.tuning.trial_configs import open_configs

    params = context.params
    file, overrides = read_sweep(params["arguments"][0]), params["arguments"][1:]
    with open_configs(file, targets_of(params["plugin"] or []), params["config_dir"], overrides) as configs:
        check_search(file, configs)
    return _queue(context, name or new_name(file.name), launches)


def _queue(context: Any, name: str, launches: Path) -> Order:
    """Return an order for many trials in one directory, which the same command goes on with."""
    params = context.params
    place = params["place"] or f"{params['root'] or DEFAULT_ROOT}/{name}"
    words = _words(context, {**params, "place": place, "root": None})
    return _order(name, words, [words], place, launches)


def _resume(context: Any, name: str | None, launches: Path) -> Order:
    from rl_lab.cli.resume import read_run
    from rl_lab.config.resume import recompose

    params = context.params
    if params["mode"] not in (None, "exact"):
        raise UsageError(
            f"--mode {params['mode']}: launched again it would begin again; launch lab train with training.resume_path"
        )
    run, overrides = read_run(params["arguments"] or [], params["root"] or DEFAULT_ROOT)
    config = recompose(run, overrides)
    _check_configs([config], params["plugin"] or [])
    place = below_here(str(run.path))
    words = _words(context, {**params, "arguments": [place, *overrides], "root": None})
    return _order(name or new_name(config.experiment.name), words, [words], place, launches, resumed=place)


COMMANDS: dict[str, Callable[[Any, str | None, Path], Order]] = {
    "train": _train,
    "resume": _resume,
    "sweep": _sweep,
    "tune": _tune,
}


def _order(
    name: str,
    words: tuple[str, ...],
    tasks: Sequence[tuple[str, ...]],
    results: str,
    launches: Path,
    resumed: str | None = None,
) -> Order:
    directory = (launches / name).absolute()
    return Order(check_name(name), words, tuple(tasks), os.path.normpath(results), Path.cwd(), directory, resumed)


def _words(context: Any, params: dict[str, Any]) -> tuple[str, ...]:
    context.params = params
    return tuple(arguments_of(context))


def _with_root(overrides: list[str], root: str) -> list[str]:
    """Return the overrides with the runs' directory in them: another machine may have another one for itself."""
    return (
        overrides
        if any(word.startswith("experiment.root=") for word in overrides)
        else [
            *overrides,
            f"experiment.root={root}",
        ]
    )


def _check_configs(composed: Sequence[DictConfig], plugins: list[str]) -> None:
    from rl_lab.cli.sweep import targets_of

    targets = targets_of(plugins)
    for config in composed:
        validate(resolve(config), targets)


def _take_from_here(params: dict[str, Any]) -> None:
    """Say paths below the project as they are from there: another machine has it in another place."""
    for key in PATHS:
        if params.get(key) is not None:
            params[key] = below_here(params[key])
    if params.get("plugin"):
        params["plugin"] = [below_here(entry) for entry in params["plugin"]]
    if params.get("arguments") and "=" not in params["arguments"][0]:
        params["arguments"] = [below_here(params["arguments"][0]), *params["arguments"][1:]]
    if params.get("overrides"):
        key = "experiment.root="
        params["overrides"] = [
            key + below_here(word.removeprefix(key)) if word.startswith(key) else word for word in params["overrides"]
        ]


def below_here(path: str) -> str:
    """Return an absolute path below the current directory as it is from there; others as they are."""
    is_below = os.path.isabs(path) and Path(os.path.normpath(path)).is_relative_to(Path.cwd())
    return os.path.relpath(path) if is_below else path


def _reject_paths(params: dict[str, Any]) -> None:
    """Refuse what another machine does not have."""
    if params.get("from_run") is not None:
        raise UsageError("--from-run: another machine has no runs of this one; launch lab train with the config itself")
    given = [(option, params[key]) for key, option in PATHS.items() if params.get(key) is not None]
    given += [("--plugin", entry) for entry in params.get("plugin") or [] if "/" in entry]
    given += [("the sweep's file", entry) for entry in (params.get("arguments") or [])[:1] if "=" not in entry]
    for option, path in given:
        _reject_outside(option, path)


def _reject_outside(what: str, path: str) -> None:
    if os.path.isabs(path) or os.path.normpath(path).split("/")[0] == "..":
        raise UsageError(f"{what} {path}: only what lies below {Path.cwd()} is copied to another machine and back")
