"""What a planner draws sequences of actions from: normals for numbers, categorical distributions for choices."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rl_lab.components.model_actions import ModelActions, one_hots
from rl_lab.ops.distributions import gumbel_perturbed, masked_logits

Spread = Callable[[Tensor], Tensor]  # variance of elites -> standard deviation of the next round
MIN_CHANCE = 1e-3  # added to that of every choice: one that no elite took can come back


def open_centre(actions: ModelActions, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Return zeros for numbers and equal chances for choices, [*shape, A]."""
    chances = [torch.full((size,), 1.0 / size, device=device) for size in actions.nvec]
    return torch.cat([torch.zeros(actions.num_numbers, device=device), *chances]).expand(*shape, actions.dim)


def reopened(actions: ModelActions, centre: Tensor) -> Tensor:
    """Return where to go on from a `centre` [..., A]: certain choices would end the search before it began."""
    numbers, chances = actions.split(centre)
    _, equal = actions.split(open_centre(actions, centre.shape[:-1], centre.device))
    return torch.cat([numbers, 0.5 * (chances + equal)], -1)


class NumberSearch:
    """Normals around a sequence of numbers.

    Args:
        centre: Means [H, N, A].
        std: Standard deviations [H, N, A].
        spread: Makes those of the next round.
    """

    def __init__(self, centre: Tensor, std: Tensor, spread: Spread) -> None:
        self.centre, self.std, self._spread = centre, std, spread

    def draw(self, count: int) -> Tensor:
        """Return sequences [H, N, count, A]."""
        steps, num_envs, dim = self.centre.shape
        noise = torch.randn(steps, num_envs, count, dim, device=self.centre.device)
        return torch.addcmul(self.centre.unsqueeze(2), self.std.unsqueeze(2), noise).clamp(-1.0, 1.0)

    def refitted(self, elites: Tensor, weights: Tensor, momentum: float = 0.0) -> NumberSearch:
        """Return the search with mean and spread of elites [H, N, E, A], weighted by [N, E].

        Of the mean so far the share `momentum` stays.
        """
        shares = weights.unsqueeze(-1)
        mean = (shares * elites).sum(2)
        variance = (shares * (elites - mean.unsqueeze(2)).square()).sum(2)
        return NumberSearch(_kept(self.centre, mean, momentum), self._spread(variance), self._spread)

    def mode(self) -> Tensor:
        """Return the means."""
        return self.centre


class ChoiceSearch:
    """Independent categorical distributions over the choices of a sequence.

    Args:
        centre: Chances [H, N, choices].
        nvec: Sizes of the choices.
        mask: False where the first action may not be, [N, choices].
    """

    def __init__(self, centre: Tensor, nvec: tuple[int, ...], mask: Tensor | None) -> None:
        self.centre, self._nvec, self._mask = centre, nvec, mask
        logits = (centre + MIN_CHANCE).log()
        self._logits = logits if mask is None else torch.cat([masked_logits(logits[:1], mask), logits[1:]])

    def draw(self, count: int) -> Tensor:
        """Return sequences of one-hots [H, N, count, choices]."""
        return one_hots(gumbel_perturbed(self._logits.unsqueeze(2).repeat(1, 1, count, 1)), self._nvec)

    @property
    def std(self) -> Tensor:
        """Return no numbers, [H, N, 0]: choices have no standard deviation."""
        return self.centre[..., :0]

    def refitted(self, elites: Tensor, weights: Tensor, momentum: float = 0.0) -> ChoiceSearch:
        """Return the search with the frequencies of elites [H, N, E, choices], weighted by [N, E].

        Of the chances so far the share `momentum` stays.
        """
        chances = (weights.unsqueeze(-1) * elites).sum(2)
        return ChoiceSearch(_kept(self.centre, chances, momentum), self._nvec, self._mask)

    def mode(self) -> Tensor:
        """Return the likeliest choices as one-hots."""
        return one_hots(self._logits, self._nvec)


class MixedSearch:
    """Numbers and choices side by side: drawn apart, judged together.

    Args:
        numbers: Of the first numbers of an action.
        choices: Of the one-hots behind them.
    """

    def __init__(self, numbers: NumberSearch, choices: ChoiceSearch) -> None:
        self._numbers, self._choices = numbers, choices
        self.centre, self.std = torch.cat([numbers.centre, choices.centre], -1), numbers.std

    def draw(self, count: int) -> Tensor:
        """Return sequences [H, N, count, A]."""
        return torch.cat([self._numbers.draw(count), self._choices.draw(count)], -1)

    def refitted(self, elites: Tensor, weights: Tensor, momentum: float = 0.0) -> MixedSearch:
        """Return both searches fitted to their part of elites [H, N, E, A], weighted by [N, E]."""
        split = self._numbers.centre.shape[-1]
        numbers = self._numbers.refitted(elites[..., :split], weights, momentum)
        return MixedSearch(numbers, self._choices.refitted(elites[..., split:], weights, momentum))

    def mode(self) -> Tensor:
        """Return the means, and the likeliest choices as one-hots."""
        return torch.cat([self._numbers.mode(), self._choices.mode()], -1)


def _kept(before: Tensor, now: Tensor, momentum: float) -> Tensor:
    """Return `now` with a share of what was `before`."""
    return now if momentum == 0.0 else torch.lerp(now, before, momentum)


Search = NumberSearch | ChoiceSearch | MixedSearch
