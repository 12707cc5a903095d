"""Chunks of actions given a history of observations: how batches bring them, and how they are executed.

An `EpisodeBuffer` with `history` and `chunk_length` samples them. Execution is by receding horizon: a plan is made from
the last observations, its first actions are done one by one, and then the next plan is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from rl_lab.core import (
    Actions,
    Batch,
    Box,
    Carry,
    ConfigError,
    EnvSpec,
    Leaf,
    MultiDiscrete,
    Observation,
    Space,
    Tree,
    WorkflowContext,
    leaves_of,
    tree_map,
    tree_where,
)

CHUNK_KEYS = ("observations", "actions", "is_pad")
Plan = Callable[[Observation], Actions]  # observations [n, history, ...] -> actions [n, num_actions or more, ...]


def read_chunks(batch: Batch, spec: EnvSpec, *, history: int, chunk_length: int) -> Batch:
    """Return what imitation reads of a batch; raises ConfigError when the buffer gives other chunks.

    `observations` [B, history, ...], oldest first (before an episode's start its first one repeated), `actions`
    [B, chunk_length, ...] from the newest observation on, and `is_pad` [B, chunk_length]: the episode was over (its
    last action repeated).
    """
    found = batch["is_pad"].shape[1] if "is_pad" in batch else None
    if found != chunk_length:
        raise ConfigError(f"the workflow learns chunks of {chunk_length} actions, its buffer has chunk_length={found}")
    name, leaf = next(iter(leaves_of(spec.observation).items()))
    seen = batch["observations"][name] if name else batch["observations"]
    found = seen.shape[1] if seen.ndim == 2 + len(_shape(leaf)) else None
    if found != history:
        raise ConfigError(f"the workflow reads {history} observations at once, its buffer has history={found}")
    return {key: batch[key] for key in CHUNK_KEYS}


class RecedingHorizon:
    """Does the first `num_actions` actions of a plan; where they are done, or an episode begins, it makes the next one.

    Each environment plans when it is its turn, whatever the others do. Those whose turn it is plan together, in groups
    whose sizes are powers of two: a plan is then a static function of few shapes.

    Args:
        plan: Makes plans, in the environment's terms.
        history: Observations that it reads.
        num_actions: Actions of a plan that are done.
        context: Of the workflow.
    """

    def __init__(self, plan: Plan, *, history: int, num_actions: int, context: WorkflowContext) -> None:
        self._plan, self._static = torch.no_grad()(plan), context.static
        self._history, self._num_actions = history, num_actions
        self._spec, self._device = context.spec, context.device
        self._made: dict[int, Plan] = {}

    def initial_carry(self, num_envs: int) -> Carry:
        """Return what was seen, the actions of the running plan and how many of them are left."""
        return {
            "observations": zeros(self._spec.observation, num_envs, self._history, device=self._device),
            "queue": zeros(self._spec.action, num_envs, self._num_actions, device=self._device),
            "left": torch.zeros(num_envs, dtype=torch.int64, device=self._device),
        }

    def __call__(self, obs: Observation, carry: Carry, is_first: Tensor) -> tuple[Actions, Carry]:
        """Return the next action of every environment, and the next carry."""
        seen = pushed(carry["observations"], obs, is_first)
        left, queue = carry["left"].masked_fill(is_first, 0), carry["queue"]
        is_due = left == 0
        if torch.compiler.is_compiling():  # an exported policy cannot branch: it plans at every call
            plans = tree_map(lambda plan: plan[:, : self._num_actions], self._plan(seen))
            queue = tree_where(is_due, plans, queue)
        elif len(rows := is_due.nonzero().flatten()):
            plans = tree_map(lambda plan: plan[: len(rows), : self._num_actions], self._planned(seen, rows, len(left)))
            queue = tree_map(lambda old, new: old.index_copy(0, rows, new), queue, plans)
        left = left.masked_fill(is_due, self._num_actions)
        done = self._num_actions - left
        actions = tree_map(lambda plan: _picked(plan, done), queue)
        return actions, {"observations": seen, "queue": queue, "left": left - 1}

    def _planned(self, seen: Tree, rows: Tensor, num_envs: int) -> Actions:
        """Return the plans of these rows; the first of them fills up the group."""
        size = min(num_envs, 1 << (len(rows) - 1).bit_length())
        group = torch.cat([rows, rows[:1].expand(size - len(rows))])
        if size not in self._made:
            self._made[size] = self._static(self._plan)
        return self._made[size](tree_map(lambda leaf: leaf.index_select(0, group), seen))


def _picked(plan: Tensor, steps: Tensor) -> Tensor:
    """Return the action [N, ...] at its own step [N] of each plan [N, num_actions, ...]."""
    return plan.take_along_dim(steps.view(-1, *[1] * (plan.ndim - 1)), 1).squeeze(1)


def zeros(space: Space, *lead: int, device: torch.device) -> Any:
    """Return what lies in a space, [*lead, ...], before there is anything."""

    def leaf_zeros(leaf: Leaf) -> Tensor:
        dtype = leaf.dtype if isinstance(leaf, Box) else torch.int64
        return torch.zeros(*lead, *_shape(leaf), dtype=dtype, device=device)

    leaves = {name: leaf_zeros(leaf) for name, leaf in leaves_of(space).items()}
    return leaves if isinstance(space, Mapping) else leaves[""]


def pushed(history: Tree, obs: Observation, is_first: Tensor) -> Tree:
    """Return the last observations [N, history, ...] with new ones; where an episode begins these are all of them."""

    def moved(past: Tensor, new: Tensor) -> Tensor:
        later = torch.cat([past[:, 1:], new[:, None]], 1)
        return torch.where(is_first.view(-1, *[1] * (past.ndim - 1)), new[:, None], later)

    return tree_map(moved, history, obs)


def _shape(leaf: Leaf) -> tuple[int, ...]:
    if isinstance(leaf, Box):
        return leaf.shape
    return (len(leaf.nvec),) if isinstance(leaf, MultiDiscrete) else ()
