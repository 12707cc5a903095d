"""PushT (Chi et al., 2023): push a T-shaped block onto its goal, `gym_pusht/PushT-v0`.

The action is where the pusher shall go, [0, 512] in both directions; the reward is the share of the goal that is
covered, of the 95 % that end the episode; `info["is_success"]` tells of them. Every random number comes from
`np_random` and each reset builds the world anew, so that an episode is restored by replaying it.
Knows no torch, so that worker processes start light.
"""

from __future__ import annotations

import copy
from typing import Any, Literal

import gymnasium

from rl_lab.environments.hosting.family_options import check_choice, unknown_task
from rl_lab.environments.hosting.foreign import load_package
from rl_lab.environments.wrappers.base import LabWrapper

OBSERVATIONS = ("state", "pixels", "pixels_agent_pos", "environment_state_agent_pos")


def make_env(
    name: str,
    *,
    obs_type: Literal["state", "pixels", "pixels_agent_pos", "environment_state_agent_pos"] = "state",
    max_episode_steps: int | None = None,
    **env_kwargs: Any,
) -> gymnasium.Env[Any, Any]:
    """Return `gym_pusht/PushT-v0`.

    Args:
        name: Of the task.
        obs_type: state (pusher, block and angle: 5 numbers), pixels (96 x 96), pixels_agent_pos (a dict of both) or
            environment_state_agent_pos (a dict of the block's corners and the pusher).
        max_episode_steps: Env steps after which an episode is truncated; null: 300.
        env_kwargs: Further arguments of `PushTEnv`, e.g. observation_width, observation_height or damping.
    """
    check_choice("obs_type", obs_type, OBSERVATIONS)
    load_package("gym_pusht", name, "pusht")  # which registers its ids
    if name not in gymnasium.registry:
        raise unknown_task(name, (known for known in gymnasium.registry if known.startswith("gym_pusht/")))
    spec = copy.deepcopy(gymnasium.spec(name))
    spec.order_enforce = False  # the lab resets before it steps
    limit = {} if max_episode_steps is None else {"max_episode_steps": max_episode_steps}
    env: gymnasium.Env[Any, Any] = gymnasium.make(
        spec, disable_env_checker=True, obs_type=obs_type, **limit, **env_kwargs
    )
    return PushT(env)


class PushT(LabWrapper):
    """The task at the ten steps per second of its controller, which demonstrations must have too."""

    steps_per_second: float = 10.0
