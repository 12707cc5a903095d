"""Where `lab` begins. A plain `lab runs list` is done here and now; everything else is left to the whole command line.

Loading all commands and what reads their options takes several times as long as listing ten thousand runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

DEFAULT_ROOT = "experiments"
_COMMAND = ["runs", "list"]
_VALUES = {"--sort": "sort", "--columns": "columns", "--limit": "limit", "--root": "root"}
_FLAGS = {"--reverse": "reverse", "--json": "as_json"}


def main() -> None:
    """Run the command line."""
    options = read_list(sys.argv[1:])
    if options is None or not _is_listed(options):
        from rl_lab.cli.main import main as whole

        whole()


def read_list(arguments: Sequence[str]) -> dict[str, Any] | None:
    """Return what `lab runs list` is asked for; None where it is another command, or not as plain as that."""
    if [*arguments[:2]] != _COMMAND:
        return None
    options: dict[str, Any] = {"words": [], "root": os.environ.get("LAB_EXPERIMENTS")}
    rest = iter(arguments[2:])
    for argument in rest:
        name, is_given, value = argument.partition("=")
        if not argument.startswith("-"):
            options["words"].append(argument)
        elif argument in _FLAGS:
            options[_FLAGS[argument]] = True
        elif name in _VALUES:
            options[_VALUES[name]] = value if is_given else next(rest, "-")
        else:
            return None
    options["limit"] = options.get("limit", "50")
    if not options["limit"].isdecimal() or any((options.get(key) or "").startswith("-") for key in _VALUES.values()):
        return None
    return options | {"limit": int(options["limit"])}


def _is_listed(options: dict[str, Any]) -> bool:
    """Print the list; where that fails nothing has been printed, and the whole command line says what is wrong."""
    import sqlite3

    from rl_lab.cli.runs_list import print_runs
    from rl_lab.core.errors import LabError

    try:
        print_runs(**options)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except (LabError, OSError, ValueError, sqlite3.Error):
        return False
    return True
