"""The `wrappers:` list of a config: short names, one-key mappings or callables, innermost first. Knows no torch."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import gymnasium
from gymnasium.wrappers import TimeLimit as GymnasiumTimeLimit

from rl_lab.environments.exact.state import Env, layers
from rl_lab.environments.hosting.foreign import config_error
from rl_lab.environments.hosting.recipe import Wrapper
from rl_lab.environments.wrappers import actions, base, noise, parts, pixels, video

WRAPPERS: dict[str, type[base.LabWrapper]] = {
    "time_limit": base.TimeLimit,
    "action_repeat": base.ActionRepeat,
    "sticky_actions": base.StickyActions,
    "episode_statistics": base.EpisodeStatistics,
    "observation_delay": noise.ObservationDelay,
    "observation_noise": noise.ObservationNoise,
    "observation_parts": parts.ObservationParts,
    "reward_noise": noise.RewardNoise,
    "clip_reward": base.ClipReward,
    "life_loss": base.LifeLoss,
    "clip_actions": actions.ClipActions,
    "rescale_actions": actions.RescaleActions,
    "action_noise": noise.ActionNoise,
    "frame_stack": pixels.FrameStack,
    "grayscale": pixels.Grayscale,
    "resize": pixels.Resize,
    "video": video.Video,
}


def build_wrappers(entries: Sequence[Any]) -> tuple[Wrapper, ...]:
    """Return callables env -> env that a worker process can be sent; raises ConfigError for unknown names."""
    if isinstance(entries, str | Mapping) or not isinstance(entries, Sequence):
        raise config_error(f"environment.wrappers is a list, innermost first, not {entries!r}")
    return tuple(_build(entry) for entry in entries)


def frames_per_step(env: Env) -> int:
    """Return how many frames of the simulator one step of the outermost layer takes."""
    return math.prod(int(layer.frames_per_step) for layer in layers(env) if isinstance(layer, Repeating))


def steps_per_second(env: Env) -> float | None:
    """Return how many steps of the outermost layer a second of the task has; None: it does not tell."""
    repeats = 1.0
    for layer in layers(env):
        if isinstance(layer, Timed):
            return layer.steps_per_second / repeats
        repeats *= layer.frames_per_step if isinstance(layer, Repeating) else 1
    return None


def measured(env: Env) -> dict[str, Any] | None:
    """Return how the outermost layer's observations show what was done (`core.spaces.Measured`); None: they do not."""
    return env.measured() if isinstance(env, Measuring) else None


def episode_limit(env: Env) -> int | None:
    """Return after how many steps of the outermost layer an episode is cut; None: never."""
    limit: int | None = None
    for layer in reversed(list(layers(env))):
        if isinstance(layer, Repeating) and limit is not None:
            limit = math.ceil(limit / layer.frames_per_step)
        own = _own_limit(layer)
        limit = own if limit is None else limit if own is None else min(own, limit)
    return limit


def description(env: Env) -> dict[str, Any]:
    """Return what the outermost layer that describes itself says; nothing when none does."""
    return next((layer.describe() for layer in layers(env) if isinstance(layer, Described)), {})


@runtime_checkable
class Repeating(Protocol):
    """A layer that takes several frames per step."""

    frames_per_step: int


@runtime_checkable
class Timed(Protocol):
    """A layer that tells how many of its steps are a second."""

    steps_per_second: float


@runtime_checkable
class Described(Protocol):
    """A layer that tells what a policy must know of it where it is deployed."""

    def describe(self) -> dict[str, Any]:
        """Return a tree for JSON."""
        ...


@runtime_checkable
class Measuring(Protocol):
    """A robot whose observations show what came of its actions."""

    def measured(self) -> dict[str, Any] | None:
        """Return the arguments of `core.spaces.Measured`."""
        ...


@runtime_checkable
class Limited(Protocol):
    """A layer that cuts its episodes; None: it does not."""

    max_episode_steps: int | None


def _own_limit(layer: gymnasium.Env[Any, Any]) -> int | None:
    if isinstance(layer, GymnasiumTimeLimit):
        return int(layer._max_episode_steps)
    return layer.max_episode_steps if isinstance(layer, Limited) else None


def _build(entry: Any) -> Wrapper:
    if callable(entry):
        return entry  # the user's own, by _target_ and _partial_
    if isinstance(entry, str):
        return _partial(entry, {})
    if not isinstance(entry, Mapping) or len(entry) != 1 or "_target_" in entry:
        shape = "a name, a mapping of one name to its argument or arguments, or {_target_: ..., _partial_: true}"
        raise config_error(f"an entry of environment.wrappers is {shape}, not {entry!r}")
    ((name, value),) = entry.items()
    return _partial(name, {} if value is None else _plain(value))


def _partial(name: Any, value: Any) -> Wrapper:
    if name not in WRAPPERS:
        raise base.unknown_choice("wrapper in environment.wrappers", name, WRAPPERS)
    parameters = {
        key: parameter
        for key, parameter in inspect.signature(WRAPPERS[name]).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    arguments = value if isinstance(value, Mapping) else {next(iter(parameters), "value"): value}
    unknown = next((key for key in arguments if key not in parameters), None)
    if unknown is not None:
        raise base.unknown_choice(f"argument of environment.wrappers.{name}", unknown, parameters)
    missing = [key for key, it in parameters.items() if it.default is it.empty and key not in arguments]
    if missing:
        raise config_error(f"environment.wrappers.{name} needs {', '.join(missing)}, e.g. {{{name}: ...}}")
    return functools.partial(WRAPPERS[name], **arguments)


def _plain(value: Any) -> Any:
    """Return OmegaConf's containers as plain ones, which any worker can unpickle."""
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(part) for part in value]
    return value
