"""Which code a command on a run uses: the installed one, with a word when that differs, or the run's own."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

if TYPE_CHECKING:
    from rl_lab.tracking.run_directory import RunDirectory

# On Linux the process ends with the one that waits for it, as Ctrl-C and SIGTERM would end it.
START = """
import ctypes, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
sys.argv[0] = "lab"
from rl_lab.cli.main import main
main()
"""


class OwnCode(NamedTuple):
    """Where a run's sources lie for a while, and what a process needs to import them."""

    sources: Path
    environment: dict[str, str]
    lifeline: int  # a file descriptor that such a process inherits


def settle_code(run: RunDirectory, plugins: list[str], context: typer.Context | None) -> None:
    """Say in one line when the installed code is not the run's; with a context, its command runs in the run's code.

    It then ends with the exit code of that command, which is told this very run, though a newer one may be there by
    then. Nothing but a temporary directory is written.
    """
    if context is not None:
        if "run" in context.params:
            context.params["run"] = str(run.path)
        raise typer.Exit(_run_own_code(run, context))
    from rl_lab.config.allow_list import AllowList, load_plugins
    from rl_lab.config.record import plugin_sources
    from rl_lab.core.errors import RunDirectoryError
    from rl_lab.tracking.code_snapshot import changed_sources

    try:
        changed = changed_sources(run.code, plugin_sources(AllowList(load_plugins(plugins))))
    except RunDirectoryError as error:
        typer.echo(f"note: {error}; the installed code is used", err=True)
        return
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        hint = "--run-code uses the code of the run"
        typer.echo(f"note: the installed code differs from the run's in {changed[0]}{more}; {hint}", err=True)


@contextmanager
def own_code(run: RunDirectory) -> Iterator[OwnCode]:
    """Lay out the run's sources in a directory that lives as long as this block and the processes started in it."""
    import rl_lab
    from rl_lab.tracking.code_snapshot import lay_out
    from rl_lab.tracking.scratch import scratch_directory

    with scratch_directory(Path(tempfile.gettempdir(), f"rl_lab_code_{secrets.token_hex(4)}")) as scratch:
        sources = scratch.path / "sources"
        lay_out(run.code, sources)
        data = Path(rl_lab.__file__).parent / "data"  # no code: a snapshot has none of it
        if not (sources / "rl_lab" / "data").exists():
            (sources / "rl_lab" / "data").symlink_to(data)
        paths = [str(sources), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        if "LAB_PLUGINS" in environment:
            entries = environment["LAB_PLUGINS"].split(os.pathsep)
            environment["LAB_PLUGINS"] = os.pathsep.join(own_plugin(entry, sources) for entry in entries)
        yield OwnCode(sources, environment, scratch.lifeline)


def _run_own_code(run: RunDirectory, context: typer.Context) -> int:
    """Run the command again in a process that imports the run's sources, and return its exit code."""
    with own_code(run) as own:
        words = arguments_of(context, lambda entry: own_plugin(entry, own.sources))
        command = [sys.executable, "-P", "-c", START, *words]
        with subprocess.Popen(command, env=own.environment, pass_fds=[own.lifeline]) as child:
            handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to both
            signal.signal(signal.SIGTERM, lambda number, _: child.send_signal(number))
            try:
                code = child.wait()
            finally:
                for number, handler in handlers.items():
                    signal.signal(number, handler)
    return code if code >= 0 else 128 - code  # killed by a signal: as a shell says it


def arguments_of(context: typer.Context, plugin: Callable[[str], str] = str) -> list[str]:
    """Return the words of this command line without `--run-code`; `plugin` says where each plugin lies."""
    words = [str(context.info_name)]
    named: list[str] = []
    for parameter in context.command.params:
        value = context.params.get(str(parameter.name))
        if value is None or value is False or value in ((), []) or parameter.name == "run_code":
            continue
        values: list[Any] = list(value) if isinstance(value, list | tuple) else [value]
        if parameter.name == "plugin":
            values = [plugin(each) for each in values]
        if parameter.param_type_name == "argument":
            named += map(str, values)
        elif value is True:
            words.append(parameter.opts[0])
        else:
            words += [word for each in values for word in (parameter.opts[0], str(each))]
    return [*words, "--", *named] if named else words


def own_plugin(entry: str, sources: Path) -> str:
    """Return where a plugin lies in the snapshot; one that is not there stays what it is."""
    own = sources / Path(entry).name
    return str(own) if own.exists() else entry
