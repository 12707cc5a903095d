"""How to make one gymnasium environment, here or in a worker process. Knows no torch, so that workers start light."""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete

from rl_lab.environments.hosting import fresh_world
from rl_lab.environments.hosting.foreign import BadOutcome
from rl_lab.environments.hosting.fresh_world import FreshWorld

Env = gymnasium.Env[Any, Any]
Wrapper = Callable[[Env], Env]
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Registered:
    """An environment that `gymnasium.make` knows how to build."""

    spec: Any  # gymnasium.envs.registration.EnvSpec; workers need not know its registration

    @property
    def entry_point(self) -> str:
        """Return where the environment's code lies."""
        return str(self.spec.entry_point)

    def make(self, kwargs: Mapping[str, Any]) -> Env:
        """Make one environment, without the checker: the lab checks by itself."""
        env = gymnasium.make(self.spec, disable_env_checker=True, **kwargs)
        if self.entry_point.startswith(GYMNASIUMS_OWN) and type(env.unwrapped.action_space) is Discrete:
            env.unwrapped.action_space = QuickDiscrete(env.unwrapped.action_space)
        return FreshWorld(env) if self.entry_point == fresh_world.ENTRY_POINT else env


@dataclass(frozen=True)
class Factory:
    """An environment that a function builds; known by its name, so that a worker process can find it again."""

    entry_point: str  # module:function
    arguments: tuple[str, ...] = ()

    def make(self, kwargs: Mapping[str, Any]) -> Env:
        """Make one environment."""
        env = load_factory(self.entry_point)(*self.arguments, **kwargs)
        if not isinstance(env, gymnasium.Env):
            raise BadOutcome(f"came out of {self.entry_point} as a {type(env).__name__}, not as a gymnasium.Env")
        return env


@dataclass(frozen=True)
class Recipe:
    """Where an environment comes from, with the constructor arguments and wrappers (innermost first) of the user."""

    id: str
    source: Registered | Factory
    kwargs: Mapping[str, Any]
    wrappers: tuple[Wrapper, ...] = ()

    def make(self) -> Env:
        """Make one environment, without noise on the terminal."""
        _quieten(self.source.entry_point, self.kwargs.get("render_mode"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Box2D and pygame, while they are imported
            env = self.source.make(self.kwargs)
        for wrapper in self.wrappers:
            env = wrapper(env)
        return env

    @property
    def is_gymnasiums_own(self) -> bool:
        """Return whether the environment is part of gymnasium itself."""
        return self.source.entry_point.startswith(GYMNASIUMS_OWN)

    @property
    def is_nondeterministic(self) -> bool:
        """Return whether the environment's registration says that it cannot be repeated."""
        return isinstance(self.source, Registered) and bool(self.source.spec.nondeterministic)


GYMNASIUMS_OWN = "gymnasium.envs."


class QuickDiscrete(Discrete):
    """The same space with a quick answer to the usual question; the slow one is a quarter of CartPole's step."""

    def __init__(self, space: Discrete) -> None:
        super().__init__(space.n, start=space.start, dtype=space.dtype)
        self._first, self._end = int(space.start), int(space.start + space.n)

    def contains(self, x: Any) -> bool:
        """Return whether `x` is a member."""
        return bool(type(x) is np.int64 and self._first <= x < self._end) or super().contains(x)


def load_factory(entry_point: str) -> Callable[..., Any]:
    """Return the function or class of `module:function`; only what the module itself defines counts."""
    module_name, _, name = entry_point.partition(":")
    found = vars(importlib.import_module(module_name)).get(name)
    if not (inspect.isfunction(found) or inspect.isclass(found)):
        raise LookupError(f"{module_name} has no function {name!r}")
    home = found.__module__
    if home != module_name and not home.startswith(f"{module_name}."):
        # the allow-list was asked about this module, not about what it imports
        raise LookupError(f"{name!r} belongs to {home}: name it as {home}:{name}")
    return found


def _quieten(entry_point: str, render_mode: str | None) -> None:
    """Keep pygame and MuJoCo from writing to the terminal, and let both draw on a machine without a display."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if render_mode is not None:
        os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
        if "DISPLAY" not in os.environ and "WAYLAND_DISPLAY" not in os.environ:
            os.environ.setdefault("MUJOCO_GL", "egl")
    if any(part in entry_point for part in ("mujoco", "dm_control", "robotics")):
        _redirect_mujoco_warnings()


def _redirect_mujoco_warnings() -> None:
    """Send MuJoCo's warnings to `logging`; by itself it writes MUJOCO_LOG.TXT into the working directory."""
    try:
        import mujoco
    except ImportError:
        return  # making the environment says what is missing
    mujoco.set_mju_user_warning(_log_mujoco_warning)


def _log_mujoco_warning(message: str) -> None:
    logger.log(logging.DEBUG if "deprecated" in message else logging.WARNING, "MuJoCo: %s", message)
