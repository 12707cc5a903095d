"""What the tables of flags are made of, and how a command line is read by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rl_lab.core.errors import UsageError, unknown_name


@dataclass(frozen=True)
class Flag:
    """What a flag is here: a config key, an option of the `lab` command, nothing, or what the shim itself makes of it.

    Args:
        key: Config key that its value goes to.
        option: Option of the `lab` command that takes its value.
        words: What a flag without a value becomes.
        takes: Whether a value follows it.
        why: Why it changes nothing here; a note says so.
    """

    key: str | None = None
    option: str | None = None
    words: tuple[str, ...] = ()
    takes: bool = True
    why: str | None = None


OWN = Flag()  # has a value that the shim looks at
SWITCH = Flag(takes=False)  # has none, and the shim looks whether it is there


def no_effect(why: str, *, takes: bool = True) -> Flag:
    """Return a flag that is read and changes nothing."""
    return Flag(takes=takes, why=why)


def words(*translated: str) -> Flag:
    """Return a flag without a value that becomes these words."""
    return Flag(words=translated, takes=False)


@dataclass
class Given:
    """A command line that was read."""

    program: str
    values: dict[str, str] = field(default_factory=dict)  # by flag, without dashes; of a switch it is empty
    others: list[str] = field(default_factory=list)  # what is no flag, in order
    translated: list[str] = field(default_factory=list)  # of the flags that the table alone decides
    notes: list[str] = field(default_factory=list)

    def has(self, name: str) -> bool:
        """Return whether a flag was given."""
        return name in self.values

    def get(self, name: str, default: str | None = None) -> str | None:
        """Return a flag's value."""
        return self.values.get(name, default)

    def need(self, name: str) -> str:
        """Return the value of a flag that must be given."""
        if name not in self.values:
            raise UsageError(f"{self.program}: --{name} is missing")
        return self.values[name]

    def number(self, name: str, default: int) -> int:
        """Return a flag's whole number."""
        text = self.values.get(name, str(default))
        try:
            return int(text)
        except ValueError as error:
            raise UsageError(f"{self.program}: --{name} must be a whole number, not {text!r}") from error

    def no_others(self) -> None:
        """Refuse words that are no flags."""
        if self.others:
            raise UsageError(f"{self.program}: cannot read {self.others[0]!r}: a flag was expected")


def read_flags(program: str, given: Sequence[str], table: Mapping[str, Flag]) -> Given:
    """Read `--flag value`, `--flag=value` and the rest; `_` and `-` within a flag are the same."""
    known, result, left = {_plain(name): (name, flag) for name, flag in table.items()}, Given(program), list(given)
    while left:
        word = left.pop(0)
        if not word.startswith("--"):
            result.others.append(word)
            continue
        name, equals, value = word[2:].partition("=")
        if _plain(name) not in known:
            raise UsageError(unknown_name(f"flag of {program}", f"--{name}", (f"--{each}" for each in table)))
        name, flag = known[_plain(name)]
        if flag.takes and not equals:
            if not left or left[0].startswith("--"):
                raise UsageError(f"{program}: --{name} needs a value")
            value = left.pop(0)
        if not flag.takes and equals:
            raise UsageError(f"{program}: --{name} takes no value, not {value!r}")
        _take(result, name, flag, value)
    return result


def _take(result: Given, name: str, flag: Flag, value: str) -> None:
    result.values[name] = value
    result.translated += flag.words
    if flag.key is not None:
        result.translated.append(f"{flag.key}={value}")
    if flag.option is not None:
        result.translated += [flag.option, value]
    if flag.why is not None:
        result.notes.append(f"--{name} has no effect: {flag.why}")


def _plain(name: str) -> str:
    return name.replace("_", "-")


@dataclass(frozen=True)
class Translation:
    """What a command line is here.

    Args:
        command: The words behind `lab`.
        notes: What a person should know of it, a line each.
    """

    command: list[str]
    notes: list[str] = field(default_factory=list)


Shim = Callable[[str, list[str]], Translation]  # takes the program's name and the words behind it
