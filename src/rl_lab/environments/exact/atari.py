"""The state of ale_py's AtariEnv: the emulator with its random stream, as the bytes it writes by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rl_lab.environments.exact.adapter import Adapter, LayerState


def read(env: Any) -> LayerState:
    """Return the emulator's state; without its random stream sticky actions would differ."""
    return {"emulator": np.frombuffer(env.ale.cloneState(include_rng=True).serialize(), np.uint8).copy()}


def write(env: Any, state: Mapping[str, Any]) -> None:
    """Put the emulator back."""
    import ale_py

    env.ale.restoreState(ale_py.ALEState(np.asarray(state["emulator"], np.uint8).tobytes()))


ADAPTERS = {"ale_py.env.AtariEnv": Adapter(read, write)}
