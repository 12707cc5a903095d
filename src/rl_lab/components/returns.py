"""Return computers: what rewards and values of a stretch of time, `[T, ...]`, are worth at each of its steps.

All take the rewards of steps, the values of where they led to and the discounts that go with these: 0 where an episode
ended, else the discount times how likely it goes on. What lies behind the last step is its value.
"""

from __future__ import annotations

from typing import Literal, Protocol

from torch import Tensor

from rl_lab.core import ConfigError, unknown_name
from rl_lab.core.ranges import Count, UnitInterval
from rl_lab.ops.returns import discounted_n_step_returns, lambda_returns

ReturnKind = Literal["lambda", "n_step", "monte_carlo"]
KINDS = ("lambda", "n_step", "monte_carlo")


class ReturnComputer(Protocol):
    """Computes returns."""

    def __call__(self, rewards: Tensor, values: Tensor, continues: Tensor) -> Tensor:
        """Return the returns [T, ...] of rewards, values of what follows and discounts, [T, ...] each."""


class MonteCarloReturn:
    """All rewards to the end, `G_t = r_t + d_t G_{t+1}`: no bias of the values, all of the rewards' variance."""

    def __call__(self, rewards: Tensor, values: Tensor, continues: Tensor) -> Tensor:
        """Return the returns [T, ...]."""
        return lambda_returns(rewards, values, continues, lam=1.0)


class NStepReturn:
    """The rewards of `n` steps, and the value of what follows.

    Args:
        n: Steps.
    """

    def __init__(self, n: Count = 5) -> None:
        self.n = n

    def __call__(self, rewards: Tensor, values: Tensor, continues: Tensor) -> Tensor:
        """Return the returns [T, ...]."""
        return discounted_n_step_returns(rewards, values, continues, n=self.n)


class LambdaReturn:
    """The mean of all n-step returns, weighted by `(1 - lam) lam^(n-1)` (TD-lambda).

    Args:
        lam: Share of longer returns.
    """

    def __init__(self, lam: UnitInterval = 0.95) -> None:
        self.lam = lam

    def __call__(self, rewards: Tensor, values: Tensor, continues: Tensor) -> Tensor:
        """Return the returns [T, ...]."""
        return lambda_returns(rewards, values, continues, lam=self.lam)


def return_computer(kind: str, *, lam: float, n: int) -> ReturnComputer:
    """Return the computer of this kind."""
    if kind not in KINDS:
        raise ConfigError(unknown_name("returns", kind, KINDS))
    if kind == "monte_carlo":
        return MonteCarloReturn()
    return NStepReturn(n) if kind == "n_step" else LambdaReturn(lam)
