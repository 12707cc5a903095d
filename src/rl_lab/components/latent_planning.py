"""Planning in a latent model: imagined rewards, and the value of where they end; a policy proposes (TD-MPC)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from rl_lab.components.latent_model import LatentModel, LatentState
from rl_lab.components.planners import Plan, Planner
from rl_lab.components.q_ensemble import QEnsemble, Reduction
from rl_lab.components.scan import Fuse
from rl_lab.components.task_embedding import TaskEmbedding, discount_by_length
from rl_lab.components.world_actors import WorldActor
from rl_lab.core import ConfigError, EnvSpec
from rl_lab.core.context import as_it_is


class LatentPlanning:
    """Lets a planner search in a model, for all environments at once.

    Args:
        model: What is imagined in.
        actor: Proposes sequences, and says what is done after their end.
        critic: Says what that is worth.
        planner: Who searches.
        discount: Per env step; None: states know that of their task.
        reduction: Of the critics' values.
        num_proposals: Sequences that the policy proposes.
        fuse: Makes kernels of a step and of the value.
    """

    def __init__(
        self,
        model: LatentModel,
        actor: WorldActor,
        critic: QEnsemble,
        planner: Planner,
        *,
        discount: float | None,
        reduction: Reduction,
        num_proposals: int,
        fuse: Fuse = as_it_is,
    ) -> None:
        self.model, self.actor, self.critic, self.planner = model, actor, critic, planner
        self.discount, self.reduction, self.num_proposals = discount, reduction, num_proposals
        self._go, self._value_behind = fuse(self._gone), fuse(self._last_value)

    def plan(
        self,
        state: LatentState,
        steps: int,
        *,
        mask: Tensor | None = None,
        min_std: Tensor | None = None,
        belief: Tensor | None = None,
        is_first: Tensor | None = None,
    ) -> Plan:
        """Return the best `steps` actions that were found from states [N, ...]; see `Planner.plan` for the others."""
        proposals = self._proposals(state, steps, mask) if self.num_proposals else None
        return self.planner.plan(
            partial(self.worth, state),
            len(state.z),
            self.model.action_code,
            state.z.device,
            belief=belief,
            is_first=is_first,
            proposals=proposals,
            mask=mask,
            horizon=steps,
            min_std=min_std,
        )

    def worth(self, state: LatentState, sequences: Tensor) -> Tensor:
        """Return the imagined rewards [N, K] of sequences [H, N, K, A] from states [N, ...], and the value behind."""
        count = sequences.shape[2]
        state = state.each(lambda leaf: leaf.repeat_interleave(count, 0))
        first, *others = sequences.flatten(1, 2).unbind()
        total, state, share = self._go(state, first)
        for action in others:
            reward, state, goes_on = self._go(state, action)
            total, share = total + share * reward, share * goes_on
        return (total + share * self._value_behind(state)).view(-1, count)

    def _gone(self, state: LatentState, action: Tensor) -> tuple[Tensor, LatentState, Tensor]:
        """Return the reward of an action, where it leads to, and the discount of what follows."""
        reward, after = self.model.step(state, action)
        return reward, after, state.discount(self.discount) * self.model.cont(after)

    def _last_value(self, state: LatentState) -> Tensor:
        """Return what states are worth if the policy goes on from there."""
        action = self.actor(self.model.features(state)).sample()
        return self.critic.value(self.model.joint(state, action), self.reduction)

    def _proposals(self, state: LatentState, steps: int, mask: Tensor | None) -> Tensor:
        """Return sequences [H, N, P, A] that the policy would do from states [N, ...]."""
        state = state.each(lambda leaf: leaf.repeat_interleave(self.num_proposals, 0))
        mask = None if mask is None else mask.repeat_interleave(self.num_proposals, 0)
        actions = [self.actor(self.model.features(state), mask).sample()]
        while len(actions) < steps:
            state = self.model.next(state, actions[-1])
            actions.append(self.actor(self.model.features(state)).sample())
        return torch.stack(actions).unflatten(1, (-1, self.num_proposals))


def discount_of(spec: EnvSpec, gamma: float | None = None, tasks: TaskEmbedding | None = None) -> float | None:
    """Return the discount of all tasks: that which was given, or by the length of episodes; None: each has its own."""
    has_own = tasks is not None and tasks.episode_steps is not None
    if gamma is not None and has_own:
        raise ConfigError(f"algorithm.gamma: {gamma} would be every task's, world_model.tasks.episode_steps say others")
    if gamma is not None or has_own:
        return gamma
    if spec.max_episode_steps is None:
        raise ConfigError(f"algorithm.gamma: episodes of {spec.id!r} have no limit that it could follow from (0 to 1)")
    return discount_by_length(spec.max_episode_steps)
