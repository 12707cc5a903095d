"""Which episodes are worth keeping."""

from __future__ import annotations

import math
from collections import deque

from rl_lab.core import ConfigError, LabError, State, Trajectory

WINDOW = 100  # episodes that a share is counted over


class EpisodeFilter:
    """Accepts by return, by rank among the last episodes, or by success; all that are given must hold."""

    def __init__(self, min_return: float | None, top_share: float | None, require_info: str | None) -> None:
        if top_share is not None and not 0 < top_share <= 1:
            raise ConfigError(f"top_share of an episode buffer must lie in (0, 1], got {top_share}")
        self._min_return, self._top_share, self._require_info = min_return, top_share, require_info
        self._returns: deque[float] = deque(maxlen=WINDOW)
        self._seen, self._accepted = 0, 0

    def accepts(self, episode: Trajectory) -> bool:
        """Return whether to keep it, and remember its return."""
        total = float(episode["rewards"].double().sum())
        self._returns.append(total)
        is_wanted = self._is_high(total) and self._is_success(episode)
        self._seen, self._accepted = self._seen + 1, self._accepted + is_wanted
        return is_wanted

    def statistics(self) -> dict[str, float]:
        """Return how many were accepted and refused, and the mean return of the last ones."""
        mean = sum(self._returns) / len(self._returns) if self._returns else 0.0
        return {
            "accepted": float(self._accepted),
            "refused": float(self._seen - self._accepted),
            "mean_return": mean,
        }

    def get_state(self) -> State:
        """Return what it remembers."""
        return {"returns": list(self._returns), "seen": self._seen, "accepted": self._accepted}

    def set_state(self, state: State) -> None:
        """Go on from `state`."""
        self._returns = deque(state["returns"], maxlen=WINDOW)
        self._seen, self._accepted = state["seen"], state["accepted"]

    def _is_high(self, total: float) -> bool:
        if self._min_return is not None and total < self._min_return:
            return False
        if self._top_share is None:
            return True
        rank = sum(other > total for other in self._returns)  # 0: the best
        return rank < math.ceil(self._top_share * len(self._returns))

    def _is_success(self, episode: Trajectory) -> bool:
        if self._require_info is None:
            return True
        infos = episode.get("infos", {})
        if self._require_info not in infos:
            name = self._require_info
            raise LabError(
                f"require_info={name!r} of an episode buffer is not reported: add it to environment.info_keys"
            )
        return bool(infos[self._require_info][-1] > 0)
