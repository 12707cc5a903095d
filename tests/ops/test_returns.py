"""Every return against a naive loop that follows the definition step by step."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_lab.ops.returns import discounted_returns, gae, linear_recurrence, td_lambda, vtrace

GAMMA, LAM = 0.9, 0.8


def sequence(seed, length, num_envs=3):
    rng = torch.Generator().manual_seed(seed)
    shape = (length, num_envs)
    ends = torch.rand(shape, generator=rng)
    return {
        "rewards": torch.randn(shape, generator=rng, dtype=torch.float64),
        "next_values": torch.randn(shape, generator=rng, dtype=torch.float64),
        "terminated": ends < 0.15,
        "truncated": ends > 0.85,
    }


cases = given(seed=st.integers(0, 10_000), length=st.integers(1, 37))


@cases
@settings(max_examples=15, deadline=None)
def test_linear_recurrence(seed, length):
    a, b = (torch.randn(length, 2, generator=torch.Generator().manual_seed(seed + i)).double() for i in range(2))
    y, expected = torch.zeros(2, dtype=torch.float64), []
    for t in reversed(range(length)):
        y = b[t] + a[t] * y
        expected.insert(0, y)
    torch.testing.assert_close(linear_recurrence(a, b), torch.stack(expected))


@cases
@settings(max_examples=15, deadline=None)
def test_gae(seed, length):
    s = sequence(seed, length)
    values = torch.randn(length, 3, dtype=torch.float64)
    expected = torch.zeros_like(values)
    for n in range(3):
        advantage = 0.0
        for t in reversed(range(length)):
            bootstrap = 0.0 if s["terminated"][t, n] else float(s["next_values"][t, n])
            delta = float(s["rewards"][t, n]) + GAMMA * bootstrap - float(values[t, n])
            ended = bool(s["terminated"][t, n] or s["truncated"][t, n])
            advantage = delta + (0.0 if ended else GAMMA * LAM * advantage)
            expected[t, n] = advantage
    result = gae(s["rewards"], values, s["next_values"], s["terminated"], s["truncated"], gamma=GAMMA, lam=LAM)
    torch.testing.assert_close(result, expected)


def test_gae_by_hand():
    # Three steps, the second one cut by a time limit: d = 1 + 0.5 * v' - v; A_1 takes no trace from A_2.
    rewards, values, next_values = torch.ones(3, 1), torch.zeros(3, 1), torch.tensor([[2.0], [4.0], [8.0]])
    terminated, truncated = torch.tensor([[False], [False], [True]]), torch.tensor([[False], [True], [False]])
    result = gae(rewards, values, next_values, terminated, truncated, gamma=0.5, lam=1.0)
    assert result.flatten().tolist() == [2.0 + 0.5 * 3.0, 3.0, 1.0]


@cases
@settings(max_examples=15, deadline=None)
def test_td_lambda_and_discounted_returns(seed, length):
    s = sequence(seed, length)
    for lam, result in (
        (LAM, td_lambda(**s, gamma=GAMMA, lam=LAM)),
        (1.0, discounted_returns(**s, gamma=GAMMA)),
    ):
        expected = torch.zeros_like(result)
        for n in range(3):
            for t in reversed(range(length)):
                value = float(s["next_values"][t, n])
                if s["terminated"][t, n]:
                    ahead = 0.0
                elif s["truncated"][t, n] or t == length - 1:
                    ahead = value
                else:
                    ahead = (1 - lam) * value + lam * float(expected[t + 1, n])
                expected[t, n] = float(s["rewards"][t, n]) + GAMMA * ahead
        torch.testing.assert_close(result, expected)


@cases
@settings(max_examples=15, deadline=None)
def test_vtrace(seed, length):
    s = sequence(seed, length, num_envs=1)
    generator = torch.Generator().manual_seed(seed)
    log_ratios, values = (torch.randn(length, 1, generator=generator).double() for _ in range(2))
    result = vtrace(log_ratios, values=values, **s, gamma=GAMMA, lam=LAM, clip_rho=1.2, clip_c=0.9)
    error, targets, advantages = 0.0, [], []
    for t in reversed(range(length)):
        ratio = float(log_ratios[t].exp())
        goes_on = not bool(s["terminated"][t] or s["truncated"][t])
        bootstrap = 0.0 if s["terminated"][t] else float(s["next_values"][t])
        reward, value = float(s["rewards"][t]), float(values[t])
        next_error = error if goes_on else 0.0
        advantages.insert(0, min(ratio, 1.2) * (reward + GAMMA * (bootstrap + next_error) - value))
        error = min(ratio, 1.2) * (reward + GAMMA * bootstrap - value) + GAMMA * LAM * min(ratio, 0.9) * next_error
        targets.insert(0, value + error)
    torch.testing.assert_close(result.targets.flatten(), torch.tensor(targets, dtype=torch.float64))
    torch.testing.assert_close(result.advantages.flatten(), torch.tensor(advantages, dtype=torch.float64))


def test_vtrace_on_policy_is_a_lambda_return():
    s = sequence(7, 20)
    values = torch.randn(20, 3).double()
    s["next_values"][:-1] = values[1:]
    result = vtrace(torch.zeros(20, 3).double(), values=values, **s, gamma=GAMMA)
    torch.testing.assert_close(result.targets, discounted_returns(**s, gamma=GAMMA))
