"""Candidates of an evolution strategy, and which environment tries which of them. All of it is arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rl_lab.ops.cma_es import SearchState, search_candidates, start_search, updated_search


class Population(nn.Module):
    """CMA-ES over parameter vectors, which it makes more and more of return; it begins around zero.

    Args:
        dim: Parameters of a candidate.
        size: Candidates of a generation.
        sigma: First standard deviation of every parameter.
    """

    candidates: Tensor
    mean: Tensor
    sigma: Tensor
    generation: Tensor

    def __init__(self, dim: int, size: int, sigma: float) -> None:
        super().__init__()
        for name, leaf in start_search(torch.zeros(dim, dtype=torch.float64), sigma)._asdict().items():
            self.register_buffer(name, leaf)
        self.register_buffer("candidates", torch.zeros(size, dim))
        self._draw()

    @property
    def favourite(self) -> Tensor:
        """Return the mean of the distribution [dim]: the best guess."""
        return self.mean.float()

    def learn(self, returns: Tensor) -> None:
        """Move towards the candidates with the largest of returns [size], and draw the next generation."""
        state = SearchState(*(self.get_buffer(name) for name in SearchState._fields))
        for name, leaf in updated_search(state, self.candidates, -returns)._asdict().items():
            self.get_buffer(name).copy_(leaf)
        self._draw()

    def _draw(self) -> None:
        state = SearchState(*(self.get_buffer(name) for name in SearchState._fields))
        noise = torch.randn(self.candidates.shape, dtype=self.mean.dtype, device=self.mean.device)
        self.candidates.copy_(search_candidates(state, noise))


class Trials:
    """Hands out trials, an episode with a candidate each, to environments whose episode begins, and keeps the returns.

    Trial t is of candidate `t % num_candidates`. An environment for which no trial is left has the number `count`. No
    function waits for the device.

    Args:
        num_candidates: Candidates of a generation.
        num_rollouts: Trials of each.
        num_envs: Environments.
        device: Of all arrays.
    """

    def __init__(self, num_candidates: int, num_rollouts: int, num_envs: int, device: torch.device) -> None:
        self.num_candidates, self.num_rollouts = num_candidates, num_rollouts
        self.count = num_candidates * num_rollouts
        self.current = torch.full((num_envs,), self.count, device=device)  # trial of each environment
        self._running = torch.zeros(num_envs, device=device)  # return of each running episode
        self._returns = torch.zeros(self.count + 1, device=device)  # the last place is that of no trial
        self._is_done = torch.zeros(self.count + 1, dtype=torch.bool, device=device)
        self._is_given = torch.zeros(self.count + 1, dtype=torch.bool, device=device)

    def assign(self, is_first: Tensor) -> Tensor:
        """Give the next trials to environments whose episode begins; return the trial of each [N]."""
        free = (~self._is_given[:-1]).cumsum(0)
        found = torch.searchsorted(free, is_first.cumsum(0))  # the place of the first free one, of the second, ...
        self.current.copy_(torch.where(is_first, found, self.current))
        self._is_given.index_fill_(0, self.current, True)
        return self.current.clone()

    def abandon(self) -> None:
        """Forget what is being tried: others act now."""
        self.current.fill_(self.count)
        self._running.zero_()
        self._is_given.copy_(self._is_done)

    def credit(self, rewards: Tensor, ended: Tensor, trials: Tensor) -> None:
        """Take vector steps [T, N]: rewards, where episodes ended, and which trials they were."""
        for reward, end, trial in zip(rewards, ended, trials, strict=True):
            self._running += reward
            place = trial.masked_fill(~end, self.count)
            self._returns.index_copy_(0, place, self._running)
            self._is_done.index_fill_(0, place, True)
            self._running *= ~end
        self._returns[-1:].zero_()  # to assign a number would copy it from the host
        self._is_done[-1:].zero_()
        self._is_given.copy_(self._is_done)
        self._is_given.index_fill_(0, self.current, True)  # those that got lost can be given again

    @property
    def is_complete(self) -> Tensor:
        """Return whether all trials are done, [] bool."""
        return self._is_done[:-1].all()

    def mean_returns(self) -> Tensor:
        """Return the mean return of each candidate [num_candidates]."""
        return self._returns[:-1].view(self.num_rollouts, self.num_candidates).mean(0)

    def restart(self) -> None:
        """Begin anew with other candidates; what is still running is nobody's trial."""
        for table in (self._returns, self._is_done, self._is_given):
            table.zero_()
        self.current.fill_(self.count)

    def get_state(self) -> dict[str, Any]:
        """Return the trials of environments, running returns, and which trials are given and done."""
        return {
            "current": self.current,
            "running": self._running,
            "returns": self._returns,
            "is_done": self._is_done,
            "is_given": self._is_given,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`, in place: static functions hold on to the arrays."""
        for name, held in self.get_state().items():
            held.copy_(state[name])
