"""How to make one gymnasium environment, here or in a worker process. Knows no torch, so that workers start light."""

from __future__ import annotations

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

Wrapper = Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]]
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recipe:
    """A resolved gymnasium spec with the constructor arguments and wrappers (innermost first) of the user."""

    spec: Any  # gymnasium.envs.registration.EnvSpec; workers need not know its registration
    kwargs: Mapping[str, Any]
    wrappers: tuple[Wrapper, ...] = ()

    def make(self) -> gymnasium.Env[Any, Any]:
        """Make one environment, without the checker (the lab checks by itself) and without noise on the terminal."""
        _quieten(str(self.spec.entry_point), self.kwargs.get("render_mode"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Box2D and pygame, while they are imported
            env = gymnasium.make(self.spec, disable_env_checker=True, **self.kwargs)
        if self.is_gymnasiums_own and type(env.unwrapped.action_space) is Discrete:
            env.unwrapped.action_space = QuickDiscrete(env.unwrapped.action_space)
        for wrapper in self.wrappers:
            env = wrapper(env)
        return env

    @property
    def is_gymnasiums_own(self) -> bool:
        """Return whether the environment is part of gymnasium itself."""
        return str(self.spec.entry_point).startswith("gymnasium.envs.")


class QuickDiscrete(Discrete):
    """The same space with a quick answer to the usual question; the slow one is a quarter of CartPole's step."""

    def __init__(self, space: Discrete) -> None:
        super().__init__(space.n, start=space.start, dtype=space.dtype)
        self._first, self._end = int(space.start), int(space.start + space.n)

    def contains(self, x: Any) -> bool:
        """Return whether `x` is a member."""
        return bool(type(x) is np.int64 and self._first <= x < self._end) or super().contains(x)


def _quieten(entry_point: str, render_mode: str | None) -> None:
    """Keep pygame and MuJoCo from writing to the terminal, and let both draw on a machine without a display."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if render_mode is not None:
        os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
        if "DISPLAY" not in os.environ and "WAYLAND_DISPLAY" not in os.environ:
            os.environ.setdefault("MUJOCO_GL", "egl")
    if "mujoco" in entry_point:
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
