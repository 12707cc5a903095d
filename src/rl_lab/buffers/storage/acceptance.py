"""Which trajectories are learned from, and which of their steps: the rules of Hi-ORS (arXiv 2510.26406).

A trajectory has a score R. In round i it is accepted where R >= m_i; thresholds never fall, so that what was refused
once stays refused, and what a later round refuses is forgotten.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

import torch
from torch import Tensor

from rl_lab.buffers.storage.episode_filter import WINDOW, EpisodeFilter
from rl_lab.core import ConfigError, EnvSpec, LabError, State, Trajectory, Tree, tree_map, unknown_name
from rl_lab.core.ranges import Count, NonNegative, UnitInterval

Label = Literal["verdict", "reward"]
FINAL = "final_observations"  # of an episode: one row, however many steps there are


@dataclass(frozen=True)
class Acceptance:
    """What makes a trajectory worth learning from.

    Args:
        thresholds: m_1 <= m_2 <= ..., one for each round; the last one stays.
        episodes_per_round: Episodes, accepted or not, until the next threshold.
        label: What R is made of: verdict (the operator's word, 1 for a success and else 0, at the last step) or reward.
        discount: gamma: R is the sum of gamma^t times the label at step t, so that a late success is worth less.
        min_steps: Shorter episodes are refused, whatever they score.
        no_op_std: Steps after which nothing moves more than this (standard deviation of the most lively number) are
            left out; null: all stay. The last step always stays.
        no_op_steps: How many steps are looked at, from each one on.
        no_op_numbers: How many numbers of `state`, or of an observation that is one row, tell whether the robot moves;
            null: all.
    """

    thresholds: Sequence[float] = (1.0,)
    episodes_per_round: Count = 100
    label: Label = "verdict"
    discount: UnitInterval = 1.0
    min_steps: Count = 1
    no_op_std: NonNegative | None = None
    no_op_steps: Count = 5
    no_op_numbers: Count | None = None

    def __post_init__(self) -> None:
        given = list(self.thresholds)
        if self.label not in get_args(Label):
            raise ConfigError(unknown_name("acceptance.label", self.label, get_args(Label)))
        if not given or not all(math.isfinite(each) for each in given):
            raise ConfigError(f"acceptance.thresholds: needs one number or more, not {given}")
        if fall := next(((low, high) for low, high in pairwise(given) if high < low), None):
            raise ConfigError(f"acceptance.thresholds: must not fall, but {fall[1]:g} comes after {fall[0]:g}")
        if self.label == "verdict" and given[-1] > 1.0:
            raise ConfigError(f"acceptance.thresholds: a verdict is worth at most 1, {given[-1]:g} is never reached")

    def reject_misfit(self, spec: EnvSpec | None) -> None:
        """Raise when no episode of an environment can be long enough."""
        limit = None if spec is None else spec.max_episode_steps
        if spec is not None and limit is not None and self.min_steps > limit:
            text = f"{self.min_steps} steps are longer than any episode of {spec.id!r} ({limit} steps)"
            raise ConfigError(f"acceptance.min_steps: {text}")

    def threshold(self, episodes: int) -> float:
        """Return m_i once so many episodes were seen."""
        return float(self.thresholds[min(episodes // self.episodes_per_round, len(self.thresholds) - 1)])

    def score(self, episode: Trajectory) -> float:
        """Return R of an episode, time-major [T, ...]."""
        if self.label == "reward":
            return discounted_sum(episode["rewards"], self.discount)
        if self.label not in episode.get("infos", {}):
            raise LabError("acceptance.label: nobody gives a verdict: name an operator (training.operator), or reward")
        verdicts = episode["infos"][self.label]
        return discounted_sum((verdicts > 0).double(), self.discount)

    def condensed(self, episode: Trajectory) -> Trajectory:
        """Return the episode without the steps in which nothing happens."""
        if self.no_op_std is None:
            return episode
        robot = self._robot(episode["observations"]), self._robot(episode[FINAL])
        is_kept = moving_steps(torch.cat(robot), self.no_op_steps, self.no_op_std)
        kept = {key: tree_map(lambda leaf: leaf[is_kept], value) for key, value in episode.items() if key != FINAL}
        return {**kept, FINAL: episode[FINAL]}

    def _robot(self, obs: Tree) -> Tensor:
        """Return the numbers [T, D] that tell whether the robot moves."""
        if not isinstance(obs, Tensor) and "state" not in obs:
            raise ConfigError(f"acceptance.no_op_std: the robot's numbers must be called state, not {sorted(obs)}")
        numbers = (obs if isinstance(obs, Tensor) else obs["state"]).flatten(1).double()
        return numbers[:, : self.no_op_numbers]


def discounted_sum(values: Tensor, discount: float) -> float:
    """Return the sum of `discount^t values[t]`."""
    steps = torch.arange(len(values), dtype=torch.float64, device=values.device)
    return float((values.double() * discount**steps).sum())


def moving_steps(states: Tensor, window: int, least_std: float) -> Tensor:
    """Return which of T steps lead somewhere, [T], given the T + 1 states [T + 1, D] that they lie between.

    A step does when some number of the `window + 1` states from it on has a larger standard deviation than `least_std`;
    after the end the last state is repeated. The last step always does.
    """
    padded = torch.cat([states, states[-1:].expand(window, -1)])
    spread = padded.unfold(0, window + 1, 1).std(-1, correction=0)  # [T + 1, D]
    moves = (spread > least_std).any(-1)[:-1]
    moves[-1] = True
    return moves


class Judge(EpisodeFilter):
    """Accepts by a rule, and counts the rounds and what was refused for which reason."""

    def __init__(self, rule: Acceptance) -> None:
        super().__init__(None, None, None)
        self.rule = rule
        self._scores: deque[float] = deque(maxlen=WINDOW)
        self._short = 0

    @property
    def threshold(self) -> float:
        """Return what the next episode has to reach."""
        return self.rule.threshold(self._seen)

    def accepts(self, episode: Trajectory) -> bool:
        """Return whether to learn from it, and count it."""
        score, is_short = self.rule.score(episode), len(episode["rewards"]) < self.rule.min_steps
        is_wanted = score >= self.threshold and not is_short
        self._scores.append(score)
        self._seen, self._accepted, self._short = self._seen + 1, self._accepted + is_wanted, self._short + is_short
        return is_wanted

    def statistics(self) -> dict[str, float]:
        """Return what was accepted and refused, the mean score of the last ones, and what has to be reached."""
        return {
            "accepted": float(self._accepted),
            "refused": float(self._seen - self._accepted),
            "short": float(self._short),
            "mean_score": sum(self._scores) / len(self._scores) if self._scores else 0.0,
            "threshold": self.threshold,
        }

    def get_state(self) -> State:
        """Return what it remembers."""
        counts = {"seen": self._seen, "accepted": self._accepted, "short": self._short}
        return {**counts, "scores": list(self._scores)}

    def set_state(self, state: State) -> None:
        """Go on from `state`."""
        self._seen, self._accepted, self._short = state["seen"], state["accepted"], state["short"]
        self._scores = deque(state["scores"], maxlen=WINDOW)
