"""Planners: they search for the actions that a model likes best, and take functions, not workflows.

Both draw sequences of actions, keep the best of them (elites) and search again around those. CEM (Rubinstein, 1997; as
in PlaNet, Hafner et al., 2019) gives every elite the same weight, MPPI (Williams et al., 2015; as in TD-MPC2, Hansen et
al., 2024) a weight by its worth. All environments are planned for at once, and nothing waits for the device.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from rl_lab.components.model_actions import ModelActions
from rl_lab.components.searches import ChoiceSearch, MixedSearch, NumberSearch, Search, open_centre, reopened
from rl_lab.core import ConfigError, EnvSpec
from rl_lab.core.ranges import Count, Natural, NonNegative, Positive, UnitInterval
from rl_lab.ops.distributions import gumbel_perturbed

Rollout = Callable[[Tensor], Tensor]  # sequences of actions [H, N, K, A] -> what each is worth, [N, K]
WORST = -1e30  # what a sequence is worth whose worth is not a number; finite, so that differences are numbers
WIDE = 20  # numbers of an action for which TD-MPC2 plans more rounds; tdmpc2/tdmpc2.py
MIN_VARIANCE = 1e-6  # of a refitted normal of CEM; planet/control/planning.py


class Plan(NamedTuple):
    """What a search has found."""

    actions: Tensor  # [H, N, A]: what to do now and later
    belief: Tensor  # [N, H, A]: where the search ended; with `warm_start` the next one begins there
    std: Tensor  # [H, N, numbers]: standard deviations of numbers at the end of the search


class Planner(nn.Module):
    """Searches for sequences of actions, for N environments at once.

    Args:
        horizon: Steps ahead, H.
        num_candidates: Sequences drawn per round, K.
        num_elites: Best of them, around which the next round searches.
        num_iterations: Rounds.
        warm_start: Whether a search begins where that of the step before ended.
        initial_std: Standard deviation of the first round's numbers.
    """

    momentum = 0.0  # share of a round's centre that the next one keeps
    min_std = 0.0  # smallest standard deviation of a round
    wide_iterations = 0  # further rounds for wide actions

    def __init__(
        self,
        horizon: int,
        num_candidates: int,
        num_elites: int,
        num_iterations: int,
        warm_start: bool,
        initial_std: float,
    ) -> None:
        super().__init__()
        if num_elites > num_candidates:
            raise ConfigError(f"num_elites: {num_elites} of only {num_candidates} candidates (num_candidates)")
        self.horizon, self.num_candidates = horizon, num_candidates
        self.num_elites, self.num_iterations = num_elites, num_iterations
        self.warm_start, self.initial_std = warm_start, initial_std

    def initial_belief(self, num_envs: int, actions: ModelActions, device: torch.device) -> Tensor | None:
        """Return what an episode begins with, [N, H, A]; None when every search begins anew."""
        return open_centre(actions, (num_envs, self.horizon), device).clone() if self.warm_start else None

    def reject_horizon(self, spec: EnvSpec) -> None:
        """Raise when plans would be longer than any episode."""
        limit = spec.max_episode_steps
        if limit is not None and self.horizon > limit:
            raise ConfigError(
                f"components.planner.horizon: {self.horizon} env steps ahead are more than an episode of {spec.id!r} "
                f"has ({limit})"
            )

    def num_rounds(self, actions: ModelActions) -> int:
        """Return how many rounds a search for such actions has."""
        return self.num_iterations + (self.wide_iterations if actions.dim >= WIDE else 0)

    def plan(
        self,
        rollout: Rollout,
        num_envs: int,
        actions: ModelActions,
        device: torch.device,
        *,
        belief: Tensor | None = None,
        is_first: Tensor | None = None,
        proposals: Tensor | None = None,
        mask: Tensor | None = None,
        horizon: int | None = None,
        min_std: Tensor | None = None,
    ) -> Plan:
        """Return the best that was found.

        `belief` is that of the plan before, forgotten where `is_first` [N]; `proposals` [H, N, P, A] take part in every
        round beside the drawn sequences; `mask` [N, choices] is False where the first choice may not be. Plans may be
        shorter than usual, H = `horizon`, and the spread of every round no smaller than `min_std`.
        """
        whole = open_centre(actions, (self.horizon, num_envs), device)
        steps = self.horizon if horizon is None else horizon
        centre = whole
        if belief is not None and self.warm_start:
            centre = self._warm(whole, belief, is_first, actions)
        search = self._search(centre[:steps], actions, mask, min_std)
        for _ in range(self.num_rounds(actions)):
            candidates = search.draw(self.num_candidates)
            if proposals is not None:
                candidates = torch.cat([proposals, candidates], 2)
            best = torch.nan_to_num(rollout(candidates), nan=WORST, neginf=WORST).topk(self.num_elites, -1)  # [N, E]
            elites, weights = _rows(candidates, best.indices), self._weights(best.values)
            search = search.refitted(elites, weights, self.momentum)
        belief = torch.cat([search.centre, whole[steps:]]).transpose(0, 1).contiguous()
        return Plan(self._chosen(search, elites, weights), belief, search.std)

    def _warm(self, centre: Tensor, belief: Tensor, is_first: Tensor | None, actions: ModelActions) -> Tensor:
        """Return where the search before ended, moved on by a step; `centre` where an episode begins."""
        moved = reopened(actions, torch.cat([belief.transpose(0, 1)[1:], centre[-1:]]))
        return moved if is_first is None else torch.where(is_first.unsqueeze(-1), centre, moved)

    def _search(self, centre: Tensor, actions: ModelActions, mask: Tensor | None, min_std: Tensor | None) -> Search:
        means, chances = actions.split(centre)
        spread = self._spread if min_std is None else partial(self._wide_spread, min_std)
        numbers = NumberSearch(means, torch.full_like(means, self.initial_std), spread)
        if not actions.nvec:
            return numbers
        choices = ChoiceSearch(chances, actions.nvec, mask)
        return MixedSearch(numbers, choices) if actions.num_numbers else choices

    def _chosen(self, search: Search, elites: Tensor, weights: Tensor) -> Tensor:
        """Return the actions [H, N, A] that a search stands for."""
        return search.mode()

    def _wide_spread(self, least: Tensor, variance: Tensor) -> Tensor:
        """Return the standard deviation of the next round, `least` or more."""
        return torch.maximum(self._spread(variance), least)

    @abstractmethod
    def _weights(self, worth: Tensor) -> Tensor:
        """Return the weights [N, E] of elites, the best first; they sum to 1."""

    @abstractmethod
    def _spread(self, variance: Tensor) -> Tensor:
        """Return the standard deviation of the next round for a variance of elites."""


class CEM(Planner):
    """The cross-entropy method: every round is fitted to the elites of the one before.

    Args:
        horizon: Steps ahead.
        num_candidates: Sequences drawn per round.
        num_elites: Best of them, to which the next round is fitted.
        num_iterations: Rounds.
        warm_start: Whether a search begins where that of the step before ended (PlaNet: no).
        initial_std: Standard deviation of the first round, actions being in [-1, 1].
    """

    def __init__(
        self,
        horizon: Count = 12,
        num_candidates: Count = 1000,
        num_elites: Count = 100,
        num_iterations: Count = 10,
        *,
        warm_start: bool = False,
        initial_std: Positive = 1.0,
    ) -> None:
        super().__init__(horizon, num_candidates, num_elites, num_iterations, warm_start, initial_std)

    def _weights(self, worth: Tensor) -> Tensor:
        return torch.full_like(worth, 1.0 / self.num_elites)

    def _spread(self, variance: Tensor) -> Tensor:
        return (variance + MIN_VARIANCE).sqrt()


class MPPI(Planner):
    """Model predictive path integral control: elites weigh by `exp(temperature (worth - best worth))`.

    Args:
        horizon: Steps ahead.
        num_candidates: Sequences drawn per round; proposals come on top.
        num_elites: Best of them, to which the next round is fitted.
        num_iterations: Rounds.
        wide_iterations: Further rounds where an action is 20 numbers or more (TD-MPC2: 2).
        temperature: How much a better elite outweighs others, per unit of worth; 0: not at all.
        min_std: Smallest standard deviation of a round, actions being in [-1, 1].
        max_std: Largest one, and that of the first round.
        momentum: Share of a round's centre that the next one keeps (TD-MPC: 0.1).
        warm_start: Whether a search begins where that of the step before ended.
        execute: mean: do what the search ended at; elite: one of the last elites, drawn by weight (TD-MPC2).
    """

    def __init__(
        self,
        horizon: Count = 3,
        num_candidates: Count = 512,
        num_elites: Count = 64,
        num_iterations: Count = 6,
        *,
        wide_iterations: Natural = 0,
        temperature: NonNegative = 0.5,
        min_std: NonNegative = 0.05,
        max_std: Positive = 2.0,
        momentum: UnitInterval = 0.0,
        warm_start: bool = True,
        execute: Literal["mean", "elite"] = "mean",
    ) -> None:
        if min_std > max_std:
            raise ConfigError(f"min_std: {min_std} is more than max_std={max_std}")
        super().__init__(horizon, num_candidates, num_elites, num_iterations, warm_start, max_std)
        self.temperature, self.min_std, self.max_std = temperature, min_std, max_std
        self.momentum, self.execute, self.wide_iterations = momentum, execute, wide_iterations

    def _weights(self, worth: Tensor) -> Tensor:
        return (self.temperature * (worth - worth[:, :1])).softmax(-1)

    def _spread(self, variance: Tensor) -> Tensor:
        return variance.sqrt().clamp(self.min_std, self.max_std)

    def _chosen(self, search: Search, elites: Tensor, weights: Tensor) -> Tensor:
        if self.execute == "mean":
            return search.mode()
        return _rows(elites, gumbel_perturbed(weights.log()).argmax(-1, keepdim=True)).squeeze(2)


def _rows(sequences: Tensor, index: Tensor) -> Tensor:
    """Return the sequences [H, N, E, A] of `sequences` [H, N, K, A] that `index` [N, E] names."""
    steps, _, _, dim = sequences.shape
    return sequences.gather(2, index[None, :, :, None].expand(steps, -1, -1, dim))
