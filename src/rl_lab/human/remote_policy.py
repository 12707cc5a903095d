"""A policy that lives elsewhere: chunks of actions from an openpi server (pi0, pi0-FAST, pi0.5), done one by one.

A workflow that only acts, as scripted experts do: it can be evaluated, be the teacher of another run
(`training.teacher.expert`), or what is watched by an operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_lab.components.action_chunks import ChunkWorkflow, RecedingHorizon
from rl_lab.core import (
    Actions,
    Box,
    Carry,
    ConfigError,
    Extras,
    Observation,
    WorkflowContext,
    leaves_of,
    unknown_name,
)
from rl_lab.core.context import as_it_is
from rl_lab.core.ranges import Count, Positive
from rl_lab.human.openpi_wire import OpenpiConnection, PolicyServerError


class RemotePolicy(ChunkWorkflow):
    """Asks a server for a chunk of actions, does the first ones, and asks again.

    Args:
        address: Of the server, such as `ws://127.0.0.1:8000`.
        prompt: The task in words.
        keys: What the server calls an observation, by its name here; null: as they are called here. An observation
            that is one array is called `state` here.
        action_horizon: Actions of a chunk that are done before the next one is asked for.
        timeout_s: For a connection, and for an answer, seconds.
        api_key: Sent along with the connection; openpi's own server does not look at it.
    """

    def __init__(
        self,
        address: str,
        prompt: str,
        keys: Mapping[str, str] | None = None,
        action_horizon: Count = 10,
        timeout_s: Positive = 10.0,
        api_key: str | None = None,
    ) -> None:
        super().__init__()
        self.prompt, self.keys, self.action_horizon = prompt, keys, action_horizon
        self._connection = OpenpiConnection(address, timeout_s, api_key)

    def initialize(self, context: WorkflowContext) -> None:
        """Refuse names that the environment does not show, and actions that are not one array of numbers."""
        action = context.spec.action
        if not (isinstance(action, Box) and len(action.shape) == 1):
            raise ConfigError(f"RemotePolicy gives a row of numbers; {context.spec.id!r} takes {action}")
        shown = [name or "state" for name in leaves_of(context.spec.observation)]
        for name in self.keys or ():
            if name not in shown:
                raise ConfigError("workflow.keys: " + unknown_name("observation", name, shown))
        self._names = dict(self.keys) if self.keys is not None else {name: name for name in shown}
        self._num_actions, self._bounds, self._device = action.shape[0], (action.low, action.high), context.device
        plain = replace(context, static=as_it_is)  # a question to a server is nothing to compile or capture
        self._horizon = RecedingHorizon(self._plan, history=1, num_actions=self.action_horizon, context=plain)

    def act(
        self, obs: Observation, carry: Carry, *, is_first: Tensor, explore: bool, step: int
    ) -> tuple[Actions, Extras, Carry]:
        """Return the next action of the running chunk; where it is done or an episode begins, ask for the next."""
        actions, carry = self._horizon(obs, carry, is_first)
        return actions, {}, carry

    def _plan(self, seen: Observation) -> Tensor:
        """Return the server's chunks for observations [n, 1, ...], one request after another."""
        named = {"state": seen} if isinstance(seen, Tensor) else seen
        arrays = {self._names[name]: _as_sent(leaf[:, -1]) for name, leaf in named.items() if name in self._names}
        rows = range(len(next(iter(arrays.values()))))
        chunks = [self._chunk({name: array[row] for name, array in arrays.items()}) for row in rows]
        return torch.from_numpy(np.stack(chunks)).to(self._device).clamp(*self._bounds)

    def _chunk(self, observation: dict[str, Any]) -> NDArray[Any]:
        """Return the actions [action_horizon, A] for one observation."""
        actions = self._connection.infer({**observation, "prompt": self.prompt}).get("actions")
        if not isinstance(actions, np.ndarray):
            raise PolicyServerError("the policy server's answer has no array `actions`")
        if actions.ndim != 2 or actions.shape[1] != self._num_actions or len(actions) < self.action_horizon:
            wanted = f"[{self.action_horizon} or more, {self._num_actions}]"
            raise PolicyServerError(f"the policy server's actions are {list(actions.shape)}, needed are {wanted}")
        if not np.isfinite(actions).all():
            raise PolicyServerError("the policy server's actions are not finite")
        return actions[: self.action_horizon].astype(np.float32)


def _as_sent(leaf: Tensor) -> NDArray[Any]:
    """Return numbers as they are and pictures [n, C, H, W] as [n, H, W, C], as openpi's transforms take them."""
    array: NDArray[Any] = leaf.cpu().numpy()
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1)) if array.ndim == 4 else array
