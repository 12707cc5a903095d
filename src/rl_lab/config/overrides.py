"""The command line's `key=value` list: seeds expanded, keys made addable, mistakes told in one line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException

from rl_lab.config.trees import group_files
from rl_lab.core.errors import ConfigError, UsageError, unknown_name

SEED = "experiment.seed"
_SHORT = re.compile(r"^(?P<sign>\+{0,2})(?P<key>debug|devices)=")  # of the block `experiment`
_EXAMPLES = "expected key=value, +group=option or ~key"


def parse_overrides(overrides: Iterable[str]) -> list[Override]:
    """Parse by Hydra's grammar; numbers such as 3e-4 and 1e6 are numbers."""
    return [_parse(text) for text in overrides]


def _parse(text: str) -> Override:
    try:
        parsed = OverridesParser.create().parse_override(text)
    except HydraException as error:
        hint = f"; did you mean +experiment={text}?" if text in group_files("experiment") else ""
        raise UsageError(f"cannot read the override {text!r}: {_EXAMPLES}{hint}") from error
    if not parsed.key_or_group:
        raise UsageError(f"cannot read the override {text!r}: {_EXAMPLES}")
    return parsed


def expand_seeds(overrides: Sequence[str], seeds: str | None = None) -> list[list[str]]:
    """Return one override list per seed of `experiment.seed=1,2,3` or of `--seed 1,2,3`."""
    if seeds is not None and any(parsed.key_or_group == SEED for parsed in parse_overrides(overrides)):
        raise UsageError(f"--seed {seeds} and {SEED} are both given: give one of them")
    given = [*overrides, f"{SEED}={seeds}"] if seeds is not None else list(overrides)
    lists: list[list[str]] = [[]]
    for text, parsed in zip(given, parse_overrides(given), strict=True):
        if not parsed.is_sweep_override():
            lists = [[*each, text] for each in lists]
        elif parsed.key_or_group == SEED:
            values = list(parsed.sweep_string_iterator())
            lists = [[*each, f"{SEED}={value}"] for each in lists for value in values]
        else:
            raise UsageError(f"{text}: only {SEED} takes a comma list; write a list as {parsed.key_or_group}=[...]")
    return lists


def spelled_out(overrides: Iterable[str]) -> list[str]:
    """Return the overrides with short forms in full: `debug=true` is `experiment.debug=true`, so is `devices=2`."""
    return [_SHORT.sub(r"\g<sign>experiment.\g<key>=", text) for text in overrides]


def addable(overrides: Sequence[str], groups: Iterable[str]) -> list[str]:
    """Let a plain `key=value` also add a key: whether the key exists is decided by the schema and the signatures.

    A group choice (`budget=tiny`, `+experiment=NAME`) stays as it is.
    """
    known, texts = set(groups), []
    for text, parsed in zip(overrides, parse_overrides(overrides), strict=True):
        is_group = parsed.key_or_group in known
        if is_group and not isinstance(parsed.value(), str | list | None):
            raise UsageError(f"{text}: {parsed.key_or_group} is a config group; give the name of one of its options")
        is_plain = parsed.type in (OverrideType.CHANGE, OverrideType.ADD)
        texts.append(text if is_group or not is_plain else f"++{text.lstrip('+')}")
    return texts


def unknown_option(group: str, name: str, options: Iterable[str]) -> ConfigError:
    """Return the error for `+group=name` with the choices."""
    more = f"lab list {group}s" if group in ("experiment", "environment", "workflow") else ""
    return ConfigError(unknown_name(group, name, options, more))
