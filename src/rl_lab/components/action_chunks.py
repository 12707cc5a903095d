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
    Workflow,
    WorkflowContext,
    leaves_of,
    tree_leaves,
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


def reject_long_horizons(spec: EnvSpec, *, observations: int, actions: int) -> None:
    """Raise when a chunk, or what it depends on, is longer than any episode."""
    limit = spec.max_episode_steps
    for key, count in (("observation", observations), ("prediction", actions)):
        if limit is not None and count > limit:
            raise ConfigError(
                f"algorithm.{key}_horizon: {count} steps are longer than any episode of {spec.id!r} ({limit} steps)"
            )


class RecedingHorizon:
    """Does the first `num_actions` actions of a plan; where they are done, or an episode begins, it makes the next one.

    Each environment plans when it is its turn, whatever the others do. Those whose turn it is plan together, in groups
    whose sizes are powers of two: a plan is then a static function of few shapes.

    Args:
        plan: Makes plans, in the environment's terms.
        history: Observations that it reads.
        num_actions: Actions of a plan that are done.
        context: Of the workflow.
        least_actions: Where a call asks for variety, each plan does so many actions or more, up to `num_actions`, all
            numbers alike; None: always `num_actions`.
    """

    def __init__(
        self, plan: Plan, *, history: int, num_actions: int, context: WorkflowContext, least_actions: int | None = None
    ) -> None:
        self._plan, self._static = torch.no_grad()(plan), context.static
        self._history, self._num_actions = history, num_actions
        self._least_actions = num_actions if least_actions is None else least_actions
        self._spec, self._device = context.spec, context.device
        self._made: dict[int, Plan] = {}

    def initial_carry(self, num_envs: int) -> Carry:
        """Return what was seen, the actions of the running plan and how many of them are left."""
        return {
            "observations": zeros(self._spec.observation, num_envs, self._history, device=self._device),
            "queue": zeros(self._spec.action, num_envs, self._num_actions, device=self._device),
            "left": torch.zeros(num_envs, dtype=torch.int64, device=self._device),
        }

    def __call__(
        self, obs: Observation, carry: Carry, is_first: Tensor, *, varied: bool = False
    ) -> tuple[Actions, Carry]:
        """Return the next action of every environment, and the next carry; `varied` plans are not done equally far."""
        seen = pushed(carry["observations"], obs, is_first)
        left, queue = carry["left"].masked_fill(is_first, 0), carry["queue"]
        is_due = left == 0
        if torch.compiler.is_compiling():  # an exported policy cannot branch: it plans at every call
            plans = tree_map(lambda plan: plan[:, : self._num_actions], self._plan(seen))
            counts = self._counts(len(left), varied)  # after the plan: draws come in the same order as below
            if self._varies(varied):
                plans = tree_map(lambda plan: _at_the_end(plan, counts), plans)
            queue, left = tree_where(is_due, plans, queue), torch.where(is_due, counts, left)
        elif len(rows := is_due.nonzero().flatten()):
            plans = tree_map(lambda plan: plan[: len(rows), : self._num_actions], self._planned(seen, rows, len(left)))
            counts = self._counts(len(rows), varied)
            queue = tree_map(lambda old, new: old.index_copy(0, rows, _at_the_end(new, counts)), queue, plans)
            left = left.index_copy(0, rows, counts)
        done = self._num_actions - left
        actions = tree_map(lambda plan: _picked(plan, done), queue)
        return actions, {"observations": seen, "queue": queue, "left": left - 1}

    def interrupted(self, carry: Carry, taken: Actions) -> Carry:
        """Return the carry when `taken` was done: where that is not what the plan said, the plan is over."""
        said = tree_map(lambda plan: _picked(plan, self._num_actions - 1 - carry["left"]), carry["queue"])
        return {**carry, "left": carry["left"].masked_fill(differs(said, taken), 0)}

    def _counts(self, num_plans: int, varied: bool) -> Tensor:
        """Return how many actions [n] of each new plan are done."""
        if self._varies(varied):  # a uniform draw, which an exported policy takes from outside
            choices = self._num_actions - self._least_actions + 1
            drawn = (torch.rand(num_plans, device=self._device) * choices).long()
            return self._least_actions + drawn.clamp(max=choices - 1)
        return torch.full((num_plans,), self._num_actions, device=self._device)

    def _varies(self, varied: bool) -> bool:
        return varied and self._least_actions < self._num_actions

    def _planned(self, seen: Tree, rows: Tensor, num_envs: int) -> Actions:
        """Return the plans of these rows; the first of them fills up the group."""
        size = min(num_envs, 1 << (len(rows) - 1).bit_length())
        group = torch.cat([rows, rows[:1].expand(size - len(rows))])
        if size not in self._made:
            self._made[size] = self._static(self._plan)
        return self._made[size](tree_map(lambda leaf: leaf.index_select(0, group), seen))


class ChunkWorkflow(Workflow):
    """What workflows that execute by receding horizon have in common; `initialize` sets `_horizon`."""

    _horizon: RecedingHorizon

    def initial_carry(self, num_envs: int) -> Carry:
        """Return an empty queue of actions, and no observations."""
        return self._horizon.initial_carry(num_envs)

    def took(self, carry: Carry, actions: Actions) -> Carry:
        """Give up a chunk that somebody else has interrupted: what is drawn next begins where the correction ended."""
        return self._horizon.interrupted(carry, actions)


def differs(said: Actions, taken: Actions) -> Tensor:
    """Return where [N] something else was done than what was said."""
    leaves = tree_map(lambda ours, theirs: (ours != theirs).reshape(len(ours), -1).any(1), said, taken)
    return torch.stack([leaf for _, leaf in tree_leaves(leaves)]).any(0)


def _at_the_end(plan: Tensor, counts: Tensor) -> Tensor:
    """Return queues [n, num_actions, ...] that end with the first `counts` [n] actions of plans."""
    length = plan.shape[1]
    steps = (torch.arange(length, device=plan.device) - (length - counts)[:, None]).clamp(min=0)
    return plan.take_along_dim(steps.view(*steps.shape, *[1] * (plan.ndim - 2)), 1)


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
