"""What gymnasium's own wrappers, classic control and toy texts remember of a running episode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rl_lab.environments.exact.adapter import Adapter, LayerState, attributes

_COMMON = "gymnasium.wrappers.common."
_CLASSIC = "gymnasium.envs.classic_control."
_TOYS = "gymnasium.envs.toy_text."
_WALKER = attributes("s", "lastaction")


def _read_lake(lake: Any) -> LayerState:
    return {**_WALKER.read(lake), "map": lake.desc.view(np.uint8).copy()}


def _write_lake(lake: Any, state: Mapping[str, Any]) -> None:
    """Put the walker back; a lake without map_name drew its map when it was made, so that it is made again."""
    drawn = np.asarray(state["map"], np.uint8)
    if not np.array_equal(lake.desc.view(np.uint8), drawn):
        options = {key: value for key, value in lake.spec.kwargs.items() if key not in ("desc", "map_name")}
        rows = ["".join(map(chr, row)) for row in drawn]
        same = type(lake)(desc=rows, **options)
        for name in ("desc", "nrow", "ncol", "initial_state_distrib", "P"):
            setattr(lake, name, vars(same)[name])
    _WALKER.write(lake, {key: state[key] for key in state if key != "map"})


ADAPTERS: dict[str, Adapter] = {
    _COMMON + "TimeLimit": attributes("_elapsed_steps"),
    _COMMON + "OrderEnforcing": attributes("_has_reset"),
    _COMMON + "PassiveEnvChecker": attributes("checked_reset", "checked_step", "checked_render"),
    _CLASSIC + "cartpole.CartPoleEnv": attributes("state", "steps_beyond_terminated"),
    _CLASSIC + "acrobot.AcrobotEnv": attributes("state"),
    _CLASSIC + "mountain_car.MountainCarEnv": attributes("state"),
    _CLASSIC + "continuous_mountain_car.Continuous_MountainCarEnv": attributes("state"),
    _CLASSIC + "pendulum.PendulumEnv": attributes("state", "last_u"),
    _TOYS + "blackjack.BlackjackEnv": attributes(
        "player", "dealer", "dealer_top_card_suit", "dealer_top_card_value_str"
    ),
    _TOYS + "cliffwalking.CliffWalkingEnv": _WALKER,
    _TOYS + "frozen_lake.FrozenLakeEnv": Adapter(_read_lake, _write_lake),
    _TOYS + "taxi.TaxiEnv": attributes("s", "lastaction", "fickle_step", "taxi_orientation"),
}
