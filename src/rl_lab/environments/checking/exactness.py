"""How the running episodes of an environment come back after a restart."""

from __future__ import annotations

from rl_lab.core import VectorEnv
from rl_lab.environments.gymnasium import GymnasiumEnv

NATIVE, REPLAY, NOT_EXACT = "exact (native state)", "exact (replay)", "not exact"
KINDS = (NATIVE, REPLAY, NOT_EXACT)


def exactness(env: VectorEnv) -> str:
    """Return `exact (native state)`, `exact (replay)` or `not exact`."""
    if not env.spec.exact_resume:
        return NOT_EXACT
    return REPLAY if isinstance(env, GymnasiumEnv) and _replays(env) else NATIVE


def _replays(env: GymnasiumEnv) -> bool:
    """A member that has to repeat its episode keeps the actions of it."""
    return any("actions" in member for member in env.get_state()["members"])
