"""Reads `training.phases`: checks every phase before anything runs and gives each its hooks, type and duration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, get_args

from rl_lab.core.errors import ConfigError, unknown_name
from rl_lab.core.phase import BUILT_IN_HOOKS, COLLECT, EVALUATE, HookCall, Phase, PhaseType, Unit
from rl_lab.core.workflow import HookInfo

_ALIASES = {
    "steps": "duration_steps",
    "updates": "duration_updates",
    "cycles": "duration_cycles",
    "hooks": "workflow_hooks",
}
_DURATIONS: dict[str, Unit] = {"duration_steps": "steps", "duration_updates": "updates", "duration_cycles": "cycles"}
PHASE_KEYS = {  # key -> type, meaning; any other key is free and readable by the workflow as phase["key"]
    "name": ("str", "Unique name of the phase."),
    "workflow_hooks": (
        "list",
        "What a cycle runs, in order: `hook`, `hook: times` or `hook: {options}`; alias `hooks`.",
    ),
    "duration_steps": ("int >= 1", "The phase ends with the cycle that reaches so many env steps; alias `steps`."),
    "duration_updates": ("int >= 1", "Instead: so many updates (calls of update hooks); alias `updates`."),
    "duration_cycles": ("int >= 1", "Instead: so many cycles; alias `cycles`."),
    "type": (
        "'online' | 'offline' | 'eval_only'",
        "Follows from the hooks and is checked; alone it brings its default hooks.",
    ),
    "buffer": ("str", "Where `collect` stores and updates sample; may be left out when there is only one."),
    "teacher_share": (
        "float | [float, float]",
        "Beside a teacher (training.teacher): how likely it is to act, 0 to 1; a pair is a line over the phase.",
    ),
    "train_ratio": ("float > 0", "Runs of the update hooks, as a group, per env step; left out: once per cycle."),
}
HOOK_OPTIONS = {
    "times": ("int >= 1", "Calls per cycle; for `collect`, vector steps."),
    "every_steps": ("int >= 1", "Run only when another multiple of so many env steps has passed."),
    "every_updates": ("int >= 1", "Run only when another multiple of so many updates has passed."),
}
_KEYS = tuple(PHASE_KEYS)
_CLOCKS = ("every_steps", "every_updates")


class DurationError(ConfigError):
    """A phase would last for less than one step, update or cycle."""


def parse_phases(
    phases: Sequence[Mapping[str, Any]], hooks: Mapping[str, HookInfo], buffers: Collection[str]
) -> tuple[Phase, ...]:
    """Return the phases of a run; `hooks` is what the workflow offers and `buffers` the names that exist."""
    if not phases:
        raise ConfigError("training.phases is empty: a run needs at least one phase")
    parsed = tuple(_parse_phase(index, phase, hooks, buffers) for index, phase in enumerate(phases))
    for name, count in Counter(phase.name for phase in parsed).items():
        if count > 1:
            raise ConfigError(f"training.phases has {count} phases named {name!r}; names must be unique")
    return parsed


def _parse_phase(
    index: int, given: Mapping[str, Any], hooks: Mapping[str, HookInfo], buffers: Collection[str]
) -> Phase:
    values = _known_keys(index, given)
    name = values.pop("name", None)
    if not isinstance(name, str) or not name:
        raise ConfigError(f"training.phases[{index}].name is missing")
    unit, duration = _duration(name, values)
    phase_type = values.pop("type", None)
    if phase_type is not None and phase_type not in get_args(PhaseType):
        raise ConfigError(unknown_name(f"type of phase {name!r}", phase_type, get_args(PhaseType)))
    calls = _hook_calls(name, values.pop("workflow_hooks", None), phase_type, hooks)
    phase = Phase(
        name=name,
        type=_checked_type(name, phase_type, calls),
        hooks=calls,
        unit=unit,
        duration=duration,
        buffer=_buffer(name, values.pop("buffer", None), calls, hooks, buffers),
        train_ratio=_train_ratio(name, values.pop("train_ratio", None), calls),
        options=MappingProxyType(values),
    )
    _reject_endless(phase)
    return phase


def _known_keys(index: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """Resolve aliases; a free key that looks like a misspelt known one is an error."""
    values: dict[str, Any] = {}
    for key, value in given.items():
        known = _ALIASES.get(key, key)
        if known in values:
            raise ConfigError(f"training.phases[{index}] gives {known!r} twice ({key!r} is an alias)")
        near = get_close_matches(key, [*_KEYS, *_ALIASES], n=1, cutoff=0.85)
        if known not in _KEYS and near:
            raise ConfigError(unknown_name(f"key of training.phases[{index}]", key, _KEYS))
        values[known] = value
    return values


def _duration(name: str, values: dict[str, Any]) -> tuple[Unit, int]:
    given = [(key, values.pop(key)) for key in _DURATIONS if key in values]
    if len(given) != 1:
        found = ", ".join(key for key, _ in given) or "none"
        raise ConfigError(f"phase {name!r} needs exactly one of {', '.join(_DURATIONS)} (found: {found})")
    key, value = given[0]
    label = f"{key} of phase {name!r}"
    if type(value) in (int, float) and value < 1:
        raise DurationError(f"{label} must be a whole number >= 1, not {value!r}")
    return _DURATIONS[key], _positive_int(label, value)


def _positive_int(label: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 1:
        raise ConfigError(f"{label} must be a whole number >= 1, not {value!r}")
    return int(value)


def _hook_calls(
    name: str, given: Sequence[Any] | None, phase_type: PhaseType | None, hooks: Mapping[str, HookInfo]
) -> tuple[HookCall, ...]:
    if not given:
        updates = [hook for hook, info in hooks.items() if info.is_update]
        defaults = {"online": [COLLECT, *updates], "offline": updates, "eval_only": [EVALUATE]}
        if phase_type is None:
            raise ConfigError(
                f"phase {name!r} lists no workflow_hooks (choices: {', '.join([*BUILT_IN_HOOKS, *hooks])})"
            )
        given = defaults[phase_type]
    return tuple(_hook_call(name, entry, hooks) for entry in given)


def _hook_call(name: str, entry: Any, hooks: Mapping[str, HookInfo]) -> HookCall:
    """Read `hook`, `{hook: times}` or `{hook: {times, every_steps | every_updates}}`."""
    if isinstance(entry, Mapping) and len(entry) != 1:
        raise ConfigError(
            f"phase {name!r}: a hook entry is `hook`, `hook: times` or `hook: {{...}}`, not {dict(entry)!r}"
        )
    hook, value = next(iter(entry.items())) if isinstance(entry, Mapping) else (entry, 1)
    if hook not in hooks and hook not in BUILT_IN_HOOKS:
        raise ConfigError(unknown_name(f"hook of phase {name!r}", hook, [*BUILT_IN_HOOKS, *hooks]))
    label = f"{hook} of phase {name!r}"
    options = dict(value) if isinstance(value, Mapping) else {"times": value}
    for key in options:
        if key not in HOOK_OPTIONS:
            raise ConfigError(unknown_name(f"option of hook {label}", key, HOOK_OPTIONS))
    options = {key: _positive_int(f"{key} of hook {label}", number) for key, number in options.items()}
    clocks = [key for key in _CLOCKS if key in options]
    if len(clocks) > 1 or (clocks and hook == COLLECT):
        raise ConfigError(
            f"hook {label} takes {'no clock' if hook == COLLECT else 'one clock'}, not {', '.join(clocks)}"
        )
    return HookCall(hook, **options, is_update=hook in hooks and hooks[hook].is_update)


def _checked_type(name: str, given: PhaseType | None, calls: Sequence[HookCall]) -> PhaseType:
    collects = any(call.name == COLLECT for call in calls)
    updates = any(call.is_update for call in calls)
    derived: PhaseType = "online" if collects else "offline" if updates else "eval_only"
    if given is not None and given != derived:
        listed = ", ".join(call.name for call in calls)
        raise ConfigError(f"phase {name!r} is declared {given!r} but its hooks ({listed}) make it {derived!r}")
    return derived


def _buffer(
    name: str, given: Any, calls: Sequence[HookCall], hooks: Mapping[str, HookInfo], buffers: Collection[str]
) -> str | None:
    if given is not None:
        if given not in buffers:
            raise ConfigError(unknown_name(f"buffer of phase {name!r}", given, buffers))
        return str(given)
    needs_one = any(call.name == COLLECT or (call.name in hooks and hooks[call.name].needs_batch) for call in calls)
    if not needs_one:
        return None
    if len(buffers) != 1:
        raise ConfigError(
            f"phase {name!r} must say which buffer it uses (choices: {', '.join(sorted(buffers)) or 'none'})"
        )
    return next(iter(buffers))


def _train_ratio(name: str, value: Any, calls: Sequence[HookCall]) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise ConfigError(f"train_ratio of phase {name!r} must be a number > 0, not {value!r}")
    positions = [index for index, call in enumerate(calls) if call.is_update]
    collects = [index for index, call in enumerate(calls) if call.name == COLLECT]
    contiguous = positions and positions == list(range(positions[0], positions[-1] + 1))
    if not collects or not contiguous or min(collects) > positions[0]:
        raise ConfigError(f"train_ratio of phase {name!r} needs `collect` and then its update hooks one after another")
    if any(call.every_steps or call.every_updates for call in calls if call.is_update):
        raise ConfigError(f"phase {name!r} paces its updates both by train_ratio and by every_steps/every_updates")
    return float(value)


def _reject_endless(phase: Phase) -> None:
    """Refuse a duration that can never be reached."""
    collects = phase.type == "online"
    if phase.unit == "steps" and not collects:
        raise ConfigError(f"phase {phase.name!r} never ends: duration_steps without the hook `collect`")
    moves = any(
        call.is_update and not call.every_updates and (collects or not call.every_steps) for call in phase.hooks
    )
    updates = [call for call in phase.hooks if call.is_update]
    if updates and all(call.every_updates for call in updates):
        raise ConfigError(f"phase {phase.name!r} can never update: every update hook waits for updates (every_updates)")
    if phase.unit == "updates" and not moves:
        raise ConfigError(f"phase {phase.name!r} never ends: duration_updates without a hook that always updates")
