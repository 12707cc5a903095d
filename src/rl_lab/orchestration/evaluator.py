"""Plays whole episodes in environments of its own, on random streams of its own: training does not notice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from rl_lab.core.environment import Step, VectorEnv
from rl_lab.core.ranks import ALONE, Ranks
from rl_lab.core.seeding import RngStreams, isolated_rng
from rl_lab.core.workflow import Workflow
from rl_lab.orchestration.blame import Blame


class Evaluator:
    """Plays `num_episodes` episodes of each agent, each copy a share fixed beforehand: short ones do not crowd in.

    A `rival` that never learns plays as many at the first evaluation; `return_gain` is how much more is returned since.
    """

    def __init__(
        self,
        env: VectorEnv,
        num_episodes: int,
        rng: RngStreams,
        *,
        explore: bool = False,
        num_seeds: int = 1,
        ranks: Ranks = ALONE,
        rival: Workflow | None = None,
    ) -> None:
        self.env, self._ranks = env, ranks
        self.num_episodes, self._num_seeds = num_episodes, num_seeds
        self._rng = rng
        self._explore = explore
        self._rival = rival
        self._rival_return: float | None = None  # known once it has played
        self._evaluations = 0
        self.best: float | None = None

    def evaluate(
        self, workflow: Workflow, *, step: int, should_stop: Callable[[], bool] = lambda: False
    ) -> dict[str, float] | None:
        """Return mean, spread and extremes of the returns, and the mean length; a new best is remembered.

        Asked to stop on the way it returns None, and the next call is the same evaluation again. The first rank plays
        for all, which have the same weights; the others return nothing, once it has played.
        """
        with workflow.whole():
            played = self._all_played(workflow, step, should_stop) if self._ranks.is_first else None
            has_played = self._ranks.first(played is not None)
        if not has_played:
            return None
        self._evaluations += 1
        return {} if played is None else self._summary(played)

    def _all_played(self, workflow: Workflow, step: int, should_stop: Callable[[], bool]) -> dict[str, Tensor] | None:
        if self._rival is not None and self._rival_return is None:
            rivals = self._played(self._rival, self._rng.seed("evaluate", "rival"), step, should_stop)
            if rivals is None:
                return None
            self._rival_return = float(rivals["return"].mean())
        return self._played(workflow, self._rng.seed("evaluate", self._evaluations), step, should_stop)

    def _played(
        self, workflow: Workflow, seed: int, step: int, should_stop: Callable[[], bool]
    ) -> dict[str, Tensor] | None:
        was_training = workflow.training
        workflow.eval()
        with isolated_rng(seed), torch.inference_mode():
            played = self._play(workflow, seed, step, should_stop)
        workflow.train(was_training)
        return played

    def _summary(self, played: dict[str, Tensor]) -> dict[str, float]:
        """Return what is told of episodes, and remember the best."""
        returns, agents = played["return"], played.pop("agent")
        mean = float(returns.mean())
        self.best = mean if self.best is None else max(self.best, mean)
        return {
            "return": mean,
            "return_std": float(returns.std(correction=0)),
            "return_min": float(returns.min()),
            "return_max": float(returns.max()),
            **({} if self._rival_return is None else {"return_gain": mean - self._rival_return}),
            "episodes": float(len(returns)),
            **{name: float(values.mean()) for name, values in played.items() if name != "return"},
            **self._of_each(returns, agents),
        }

    def _of_each(self, returns: Tensor, agents: Tensor) -> dict[str, float]:
        """Return the mean return of every agent, where there are several."""
        numbers = range(self._num_seeds if self._num_seeds > 1 else 0)
        return {f"return/seed_{number}": float(returns[agents == number].mean()) for number in numbers}

    def _play(
        self, workflow: Workflow, seed: int, step: int, should_stop: Callable[[], bool]
    ) -> dict[str, Tensor] | None:
        """Return the return, the length and the last infos of every episode, [num_episodes] each."""
        count, device = self.env.num_envs, self.env.device
        own = count // self._num_seeds  # copies of one agent
        quota = [self.num_episodes // own + (index < self.num_episodes % own) for index in range(own)]
        left = torch.tensor(quota * self._num_seeds).to(device)
        agents = torch.arange(count, device=device) // own
        obs, carry = self.env.reset(seed), workflow.initial_carry(count)
        is_first = torch.ones(count, dtype=torch.bool, device=device)
        totals = torch.zeros(count, dtype=torch.float64, device=device)
        lengths = torch.zeros_like(totals)
        finished: list[dict[str, Tensor]] = []
        while int(left.max()) > 0:
            if should_stop():
                return None
            actions, _, carry = workflow.act(obs, carry, is_first=is_first, explore=self._explore, step=step)
            with Blame(self.env):
                played: Step = self.env.step(actions)
            obs = played.observations
            totals += played.rewards
            lengths += 1
            is_first = played.terminated | played.truncated
            counted = is_first & (left > 0)
            infos = {f"info/{key}": values for key, values in played.infos.items()}
            row = {"return": totals, "length": lengths, **infos, "agent": agents}
            finished.append({name: values[counted] for name, values in row.items()})
            left -= counted.to(left.dtype)
            totals *= ~is_first
            lengths *= ~is_first
        return {name: torch.cat([row[name] for row in finished]).double().cpu() for name in finished[0]}

    def get_state(self) -> dict[str, Any]:
        """Return how often it has evaluated, which seeds the next time, the best mean return and the rival's."""
        rival = {} if self._rival_return is None else {"rival_return": self._rival_return}
        return {"evaluations": self._evaluations, "best": self.best, **rival}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on with the next evaluation."""
        self._evaluations, self.best = state["evaluations"], state["best"]
        self._rival_return = state.get("rival_return")
