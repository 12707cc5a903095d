"""Returns, lengths and last infos of the episodes that ended, summed in an order no chunking of the steps changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_lab.core.metrics import Mean


class EpisodeStatistics:
    """Follows `num_envs` running episodes step by step, on the host; it looks closer only where one of them ends."""

    def __init__(self, num_envs: int) -> None:
        self._returns, self._lengths = torch.zeros(num_envs), torch.zeros(num_envs)
        self._sums = torch.zeros(3, dtype=torch.float64)  # return, length, episodes since the last drain
        self._infos: dict[str, Tensor] = {}  # sums since the last drain
        self._ended = torch.zeros((), dtype=torch.int64)  # episodes in all
        self._has_news = False  # whether an episode ended since the last drain
        self._running = self._views()

    def _views(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return returns and lengths to be added to in place, as arrays, which cost a quarter of tensors."""
        return self._returns.numpy(), self._lengths.numpy()

    def add(self, rewards: Tensor, done: Tensor, infos: Mapping[str, Tensor] | None = None) -> None:
        """Take a chunk of vector steps, [T, N] each, wherever they are."""
        infos = infos or {}
        for key in infos:
            self._infos.setdefault(key, torch.zeros((), dtype=torch.float64))
        sums = None if rewards.is_cpu else _sums_of_ended(infos, done)
        rewards, done = rewards.cpu(), done.cpu()
        returns, lengths = self._running
        looks = np.logical_or.reduce(done.numpy(), axis=1).tolist()
        seen = -1  # steps up to here are in the lengths
        for step, (reward, look) in enumerate(zip(rewards.numpy(force=True), looks, strict=True)):
            returns += reward
            if look:
                lengths += step - seen
                self._close(done[step])
                for index, (key, values) in enumerate(infos.items()):
                    self._infos[key] += _sum_of_ended(values[step], done[step]) if sums is None else sums[index, step]
                seen = step
        lengths += len(looks) - 1 - seen

    def _close(self, done: Tensor) -> None:
        """Sum up the episodes that end with this step and begin new ones."""
        self._has_news = True
        chosen = done.numpy()
        ended = int(np.count_nonzero(chosen))
        sums = self._sums.numpy()
        for index, running in enumerate(self._running):
            sums[index] += running[chosen].sum(dtype=np.float64)
            running[chosen] = 0.0
        sums[2] += ended
        self._ended += ended

    def drain(self) -> dict[str, Mean]:
        """Return the mean return, length and last value of each info since the last call."""
        if not self._has_news:
            return {name: Mean(0.0, 0.0) for name in ("return", "length", *(f"info/{key}" for key in self._infos))}
        self._has_news = False
        sums, self._sums = self._sums, torch.zeros_like(self._sums)
        infos, self._infos = self._infos, {key: torch.zeros_like(total) for key, total in self._infos.items()}
        means = {"return": Mean(sums[0], sums[2]), "length": Mean(sums[1], sums[2])}
        return means | {f"info/{key}": Mean(total, sums[2]) for key, total in infos.items()}

    @property
    def count(self) -> int:
        """Return how many episodes have ended in all."""
        return int(self._ended)

    def get_state(self) -> dict[str, Any]:
        """Return the running episodes and the sums."""
        running = {"returns": self._returns, "lengths": self._lengths}
        return {**running, "sums": self._sums, "infos": dict(self._infos), "ended": self._ended}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Follow the episodes of `state`."""
        self._returns, self._lengths = state["returns"].cpu(), state["lengths"].cpu()
        self._sums, self._ended = state["sums"].cpu(), state["ended"].cpu()
        self._infos = {key: total.cpu() for key, total in state["infos"].items()}
        self._has_news = bool(self._sums[2])
        self._running = self._views()


def _sum_of_ended(values: Tensor, done: Tensor) -> Tensor:
    return torch.where(done, values, 0.0).sum(-1, dtype=torch.float64)


def _sums_of_ended(infos: Mapping[str, Tensor], done: Tensor) -> Tensor:
    """Return the sums [K, T] over the worlds whose episode ended, made on their device and fetched with one wait."""
    sums = [_sum_of_ended(values, done) for values in infos.values()]
    return torch.stack(sums).cpu() if sums else torch.zeros(0)
