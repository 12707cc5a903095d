"""A machine behind ssh: the project is copied there, and `lab launch local` does the rest on it."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import PurePosixPath

from rl_lab.core.errors import UsageError
from rl_lab.launching.order import Command, Order, Plan, check_directory, lab

OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10")  # nobody is asked for a password, nobody waits for long
NOT_SENT = (".git", ".venv", "__pycache__")
ON_MACHINE = {"status": ("status",), "logs": ("logs",), "follow": ("logs", "--follow"), "down": ("down",)}
_HOST = re.compile(r"[\w.@:\[\]%-]+")


@dataclass(frozen=True)
class Ssh:
    """A machine behind ssh.

    Attributes:
        host: As ssh knows it.
        directory: There, for the project; from the home directory on. None: `rl-lab/NAME`.
        python: There, of an environment that has the lab.
        setup: Run there before the first start, in the project's directory.
    """

    host: str
    directory: str | None = None
    python: str = "python3"
    setup: tuple[str, ...] = ()

    shares_files = False

    def plan(self, order: Order) -> Plan:
        """Return the command lines; there is no file to write."""
        if not _HOST.fullmatch(self.host) or self.host.startswith("-"):
            raise UsageError(f"--host {self.host!r} must be a name or an address, with or without user@")
        place = check_directory("--dir", self.directory or f"rl-lab/{order.name}").removeprefix("~/")
        check_directory("--python", self.python)
        copies = [self._send("./", place, excluded=(order.results.split("/")[0], order.file("").split("/")[0]))]
        if order.resumed is not None:
            sent = ["--ignore-existing", f"./{order.resumed}"]  # in a second start: what went on there is newer
            copies.append(["rsync", "-azR", *self._shell(), *sent, f"{self.host}:{place}/"])
        begin = self._there(place, on_machine(self.python, order))
        above = PurePosixPath(order.results).parent
        return Plan(
            commands={
                "start": [
                    ["ssh", *OPTIONS, self.host, f"mkdir -p {shlex.quote(place)}"],
                    *copies,
                    *(self._there(place, line) for line in self.setup),
                    begin,
                ],
                "up": [begin],
                **{
                    verb: [self._there(place, lab(self.python, ("launch", *words, order.name)))]
                    for verb, words in ON_MACHINE.items()
                },
                "pull": [
                    ["mkdir", "-p", str(above)],
                    ["rsync", "-az", *self._shell(), f"{self.host}:{place}/{order.results}", f"{above}/"],
                ],
            }
        )

    def _there(self, place: str, line: str) -> Command:
        return ["ssh", *OPTIONS, self.host, f"cd {shlex.quote(place)} && {line}"]

    def _shell(self) -> Command:
        return ["-e", shlex.join(["ssh", *OPTIONS])]

    def _send(self, source: str, place: str, excluded: tuple[str, ...]) -> Command:
        names = [*NOT_SENT, *(f"/{name}" for name in dict.fromkeys(excluded))]
        filters = ["--filter=:- .gitignore", *(f"--exclude={name}" for name in names)]
        return ["rsync", "-az", *self._shell(), *filters, source, f"{self.host}:{place}/"]


def on_machine(python: str, order: Order) -> str:
    """Return the command that starts an order, or goes on with it, on the machine where it is given."""
    return lab(python, ("launch", "local", "--again", "--name", order.name, *order.words))
