"""Exploration noise: its size, its memory, its episodes; and how long a run may act at random."""

from types import SimpleNamespace

import pytest
import torch

from rl_lab.components.exploration import ActionNoise, reject_long_warm_up
from rl_lab.core import ConfigError

torch.set_num_threads(1)
NEVER = torch.zeros(4000, dtype=torch.bool)


def walk(noise, steps, num_envs=4000):
    """Return what the noise adds to actions of 0 in each of `steps` steps, [steps, num_envs, 2]."""
    torch.manual_seed(0)
    carry, rows = noise.initial_carry(num_envs, torch.device("cpu")), []
    for _ in range(steps):
        row, carry = noise(torch.zeros(num_envs, 2), carry, NEVER[:num_envs])
        rows.append(row)
    return torch.stack(rows)


def test_gaussian_noise_is_independent_and_of_the_size_that_was_asked_for():
    rows = walk(ActionNoise("gaussian", 0.1, 2), 5)
    assert float(rows.std()) == pytest.approx(0.1, rel=0.02)
    assert abs(float((rows[1:] * rows[:-1]).mean())) < 0.0003  # 5 standard errors of 32_000 products
    assert ActionNoise("gaussian", 0.1, 2).initial_carry(3, torch.device("cpu")) is None


def test_noisy_actions_stay_within_their_bounds():
    noisy, _ = ActionNoise("gaussian", 2.0, 2)(torch.full((4000, 2), 0.9), None, NEVER)
    assert float(noisy.max()) == 1.0
    assert float(noisy.min()) == -1.0


def test_stationary_variance_of_ornstein_uhlenbeck():
    # A draw of k steps ago has shrunk to (1 - pull)^k of itself: the variance is the sum of all these squares.
    std, shrunk, variance = 0.05, 1.0, 0.0
    for _ in range(200):
        variance += (std * shrunk) ** 2
        shrunk -= 0.15 * shrunk
    rows = walk(ActionNoise("ou", std, 2), 80)
    assert float(rows[0].var()) == pytest.approx(std**2, rel=0.05)
    assert float(rows[-1].var()) == pytest.approx(variance, rel=0.05)
    correlation = (rows[-1] * rows[-2]).mean() / rows[-2].square().mean()
    assert float(correlation) == pytest.approx(0.85, abs=0.02)


def test_ornstein_uhlenbeck_equals_a_naive_loop():
    noise, std = ActionNoise("ou", 0.2, 2), 0.2
    rows = walk(noise, 6, num_envs=3)
    torch.manual_seed(0)
    level = [[0.0, 0.0] for _ in range(3)]
    for row in rows:
        draws = torch.randn(3, 2).tolist()
        for i in range(3):
            for k in range(2):
                level[i][k] += 0.15 * (0.0 - level[i][k]) + std * draws[i][k]
        torch.testing.assert_close(row, torch.tensor(level))


def test_a_new_episode_begins_at_rest():
    noise, held = ActionNoise("ou", 0.1, 1), torch.full((3, 1), 0.5)
    is_first = torch.tensor([False, True, False])
    torch.manual_seed(3)
    _, carry = noise(torch.zeros(3, 1), held, is_first)
    torch.manual_seed(3)
    draws = 0.1 * torch.randn(3, 1)
    torch.testing.assert_close(carry, torch.tensor([[0.425], [0.0], [0.425]]) + draws)
    assert torch.equal(held, torch.full((3, 1), 0.5))  # what a checkpoint may be holding stays as it is


def test_an_unknown_kind_lists_the_choices():
    with pytest.raises(ConfigError, match=r"algorithm\.noise 'uo' \(choices: gaussian, ou\)"):
        ActionNoise("uo", 0.1, 2)


def test_a_run_may_not_act_at_random_to_its_end():
    reject_long_warm_up(SimpleNamespace(config={}), 100)
    reject_long_warm_up(SimpleNamespace(config={"training": {"total_timesteps": 101}}), 100)
    with pytest.raises(ConfigError, match=r"algorithm\.random_steps: 100 env steps .* training\.total_timesteps=100"):
        reject_long_warm_up(SimpleNamespace(config={"training": {"total_timesteps": 100}}), 100)
