"""Returns and advantages of time-major sequences [T, ...], without a Python loop over time.

`terminated[t]` says that step t ended the task (nothing follows), `truncated[t]` that the episode was only cut;
`next_values[t]` is the value of what step t led to, before any auto-reset. A function of a bootstrapped value therefore
uses `next_values` at a truncation and nothing at a termination, and no trace crosses either.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class VTrace(NamedTuple):
    """Targets for the value function and advantages for the policy gradient."""

    targets: Tensor
    advantages: Tensor


def linear_recurrence(a: Tensor, b: Tensor) -> Tensor:
    """Return y with `y_t = b_t + a_t y_{t+1}` and `y_T = 0`, in log2(T) doublings.

    After a doubling, (a_t, b_t) stand for twice as many steps: `b_t += a_t b_{t+s}` and `a_t *= a_{t+s}`.
    """
    shift, length = 1, b.shape[0]
    while shift < length:
        b = torch.cat([torch.addcmul(b[:-shift], a[:-shift], b[shift:]), b[-shift:]])
        a = torch.cat([a[:-shift] * a[shift:], a[-shift:]])
        shift *= 2
    return b


def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float,
    lam: float,
) -> Tensor:
    """Return generalised advantages (Schulman et al., 2016): `A_t = d_t + gamma lam (1 - done_t) A_{t+1}`.

    `d_t = r_t + gamma (1 - terminated_t) v'_t - v_t`, where `v'_t = next_values[t]`.
    """
    goes_on, is_alive = _factors(rewards, terminated, truncated)
    deltas = rewards + gamma * next_values * is_alive - values
    return linear_recurrence(gamma * lam * goes_on, deltas)


def discounted_returns(
    rewards: Tensor, next_values: Tensor, terminated: Tensor, truncated: Tensor, *, gamma: float
) -> Tensor:
    """Return `G_t = r_t + gamma G_{t+1}`, with `v'_t` for `G_{t+1}` where the sequence or the episode was cut."""
    return td_lambda(rewards, next_values, terminated, truncated, gamma=gamma, lam=1.0)


def td_lambda(
    rewards: Tensor, next_values: Tensor, terminated: Tensor, truncated: Tensor, *, gamma: float, lam: float
) -> Tensor:
    """Return lambda-returns `G_t = r_t + gamma ((1 - lam) v'_t + lam G_{t+1})`.

    At the last step and at a truncation `v'_t` stands for the whole bracket, at a termination nothing does.
    """
    goes_on, is_alive = _factors(rewards, terminated, truncated)
    trace = lam * goes_on
    trace[-1] = 0.0
    return linear_recurrence(gamma * trace, rewards + gamma * is_alive * (1 - trace) * next_values)


def lambda_returns(rewards: Tensor, next_values: Tensor, discounts: Tensor, *, lam: float) -> Tensor:
    """Return `G_t = r_t + d_t ((1 - lam) v'_t + lam G_{t+1})`, a discount per step, and `v'_t` alone at the last."""
    traces = torch.cat([lam * discounts[:-1], torch.zeros_like(discounts[-1:])])
    return linear_recurrence(traces, rewards + (discounts - traces) * next_values)


def discounted_n_step_returns(rewards: Tensor, next_values: Tensor, discounts: Tensor, *, n: int) -> Tensor:
    """Return `G_t = r_t + d_t (r_{t+1} + ... + d_{t+n-1} v'_{t+n-1})`, a discount per step, cut short where T ends."""
    returns = last = rewards + discounts * next_values
    for _ in range(min(n, len(rewards)) - 1):  # each turn looks one step further ahead
        returns = torch.cat([rewards[:-1] + discounts[:-1] * returns[1:], last[-1:]])
    return returns


def vtrace(
    log_ratios: Tensor,
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float,
    lam: float = 1.0,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
) -> VTrace:
    """Return V-trace targets `v_t + e_t` and advantages (Espeholt et al., 2018).

    `e_t = rho_t d_t + gamma lam c_t (1 - done_t) e_{t+1}`, `d_t` the temporal difference as in `gae`, `rho` and `c` the
    clipped ratios of target to behaviour policy; `A_t = rho_t (r_t + gamma (v'_t + (1 - done_t) e_{t+1}) - v_t)`.
    """
    ratios = log_ratios.exp()
    rho, c = ratios.clamp(max=clip_rho), ratios.clamp(max=clip_c)
    goes_on, is_alive = _factors(rewards, terminated, truncated)
    deltas = rewards + gamma * next_values * is_alive - values
    errors = linear_recurrence(gamma * lam * goes_on * c, rho * deltas)
    next_errors = torch.cat([errors[1:], torch.zeros_like(errors[:1])]) * goes_on
    return VTrace(values + errors, rho * (deltas + gamma * next_errors))


def _factors(like: Tensor, terminated: Tensor, truncated: Tensor) -> tuple[Tensor, Tensor]:
    """Return 1 where the trace goes on, and 1 where something may be bootstrapped; else 0."""
    return (~(terminated | truncated)).to(like.dtype), (~terminated).to(like.dtype)
