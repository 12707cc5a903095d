"""A run's config as one level of dotted keys: what filters, groups and diffs speak of."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_LEFT_OUT = ("budget", "schema_version")  # caps that the other blocks have already obeyed
_BUDGET = re.compile(r"^budget:\n(?: .*\n)*", re.M)  # half of a long text, and of the time to read it


def read_yaml(text: str) -> dict[str, Any] | None:
    """Return the mapping in a YAML text without its budget, None when it holds none."""
    import yaml  # a list of runs that are known reads none

    loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader  # ten times as fast
    try:
        tree = yaml.load(_BUDGET.sub("", text), Loader=loader)
    except yaml.YAMLError:
        return None
    return tree if isinstance(tree, dict) else None


def flatten(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return `a.b.0.c` -> value; a list of plain values is a value itself."""
    kept = {key: value for key, value in config.items() if key not in _LEFT_OUT}
    return dict(_leaves(kept, ""))


def _leaves(node: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping) and node:
        items = [(str(key), value) for key, value in node.items()]
    elif isinstance(node, list) and any(isinstance(value, Mapping | list) for value in node):
        items = [(str(number), value) for number, value in enumerate(node)]
    else:
        yield prefix, node
        return
    for key, value in items:
        yield from _leaves(value, f"{prefix}.{key}" if prefix else key)


def differences(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return what each config says under keys on which they disagree; a key that one lacks is None there."""
    keys = dict.fromkeys(key for config in configs for key in config)
    told = {key: [(key in config, config.get(key)) for config in configs] for key in keys}
    return {key: [value for _, value in each] for key, each in told.items() if any(x != each[0] for x in each)}


def algorithm_of(config: Mapping[str, Any]) -> str:
    """Return the workflow's module, such as `ppo`."""
    target = str(config.get("workflow._target_", ""))
    module = target.split(":")[0] if ":" in target else target.rpartition(".")[0]
    return module.rpartition(".")[2] or target


def environment_of(config: Mapping[str, Any]) -> str:
    """Return the environment's name, of a robot its name, or else its class."""
    named = config.get("environment.name") or config.get("environment.robot")
    target = str(config.get("environment._target_", ""))
    return str(named or target.replace(":", ".").rpartition(".")[2])
