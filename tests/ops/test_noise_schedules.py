"""Noise schedules against the formulas of their papers, written another way in float64."""

import numpy as np
import pytest

from rl_lab.ops.noise_schedules import reverse_steps, squared_cosine


@pytest.mark.parametrize("num_steps", [1, 10, 100])
def test_what_is_kept_is_the_product_of_what_each_step_keeps(num_steps):
    times = np.arange(num_steps + 1) / num_steps
    curve = np.cos((times + 0.008) / 1.008 * np.pi / 2) ** 2
    betas = np.minimum(1 - curve[1:] / curve[:-1], 0.999)
    assert squared_cosine(num_steps) == pytest.approx(np.cumprod(1 - betas), rel=1e-12)
    assert betas[-1] == 0.999  # the last step would else lose all


def test_numbers_worked_out_by_hand():
    kept = squared_cosine(2)  # half way: cos^2(0.508 / 1.008 pi / 2) / cos^2(0.008 / 1.008 pi / 2)
    assert kept[0] == pytest.approx(0.4938433, abs=1e-6)
    assert kept[1] == pytest.approx(kept[0] * 0.001)


@pytest.mark.parametrize("eta", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("count", [1, 7, 16, 100])
def test_every_step_back_leads_from_one_marginal_to_the_next(count, eta):
    """x = sqrt(a) x0 + sqrt(1 - a) noise must become x' with the a' of where it leads, whatever eta is."""
    kept = squared_cosine(100)
    steps = reverse_steps(kept, count, eta)
    assert len(steps) == count
    assert steps[0].step == 99
    then = [kept[step.step] for step in steps[1:]] + [1.0]
    assert all(a < b for a, b in zip([kept[step.step] for step in steps], then, strict=True))
    for step, wanted in zip(steps, then, strict=True):
        now = kept[step.step]
        assert step.of_sample + step.of_noisy * np.sqrt(now) == pytest.approx(np.sqrt(wanted))
        assert step.of_noisy**2 * (1 - now) + step.of_noise**2 == pytest.approx(1 - wanted, abs=1e-12)
    assert steps[-1][1:] == (1.0, 0.0, 0.0)  # the last one is what the network sees, and nothing else


def test_eta_1_is_the_posterior_of_ddpm_with_its_small_variance():
    kept = np.array(squared_cosine(100))
    before = np.concatenate([[1.0], kept[:-1]])
    betas = 1 - kept / before
    for step in reverse_steps(kept.tolist(), 100, 1.0):
        t = step.step
        assert step.of_sample == pytest.approx(np.sqrt(before[t]) * betas[t] / (1 - kept[t]))
        assert step.of_noisy == pytest.approx(np.sqrt(1 - betas[t]) * (1 - before[t]) / (1 - kept[t]), abs=1e-12)
        assert step.of_noise**2 == pytest.approx(betas[t] * (1 - before[t]) / (1 - kept[t]), abs=1e-12)


def test_ddim_draws_nothing():
    assert not any(step.of_noise for step in reverse_steps(squared_cosine(50), 10, 0.0))
