"""Distributions of world models' actions against float64 NumPy, numerical integrals and written-out gradients."""

import math

import numpy as np
import pytest
import torch

from rl_lab.ops.world_distributions import (
    CLIP,
    NUM_MODE_SAMPLES,
    BoundedNormal,
    Joint,
    MultiOneHot,
    OneHot,
    TanhNormal,
    TruncatedNormal,
)

torch.set_num_threads(1)
CPU = torch.device("cpu")
GRID = np.linspace(-1.0, 1.0, 200_001)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def softmax(logits, unimix=0.0):
    exp = np.exp(logits - logits.max(-1, keepdims=True))
    return (1.0 - unimix) * exp / exp.sum(-1, keepdims=True) + unimix / logits.shape[-1]


def normal_cdf(x):
    return 0.5 * (1.0 + math.erf(x / math.sqrt(2.0)))


def normal_log_density(x, mean, std):
    return -0.5 * ((x - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2.0 * np.pi)


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("unimix", [0.0, 0.1])
def test_one_hots_have_the_probabilities_of_the_mixed_softmax(unimix):
    logits = torch.randn(6, 5, dtype=torch.float64)
    pi, probs = OneHot(logits, unimix), softmax(logits.numpy(), unimix)
    actions = torch.eye(5, dtype=torch.float64)[[0, 1, 2, 3, 4, 0]]
    expected = [np.log(probs[row, choice]) for row, choice in enumerate([0, 1, 2, 3, 4, 0])]
    np.testing.assert_allclose(pi.log_prob(actions), expected, rtol=1e-12)
    np.testing.assert_allclose(pi.entropy(), -(probs * np.log(probs)).sum(-1), rtol=1e-12)
    assert torch.equal(pi.mode(), torch.eye(5, dtype=torch.float64)[logits.argmax(-1)])


@pytest.mark.parametrize("unimix", [0.0, 0.25])
def test_the_gradient_goes_straight_through_to_the_probabilities(unimix):
    logits = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(4, 3, dtype=torch.float64)
    for draw in (OneHot(logits, unimix).sample, OneHot(logits, unimix).mode):
        (gradient,) = torch.autograd.grad((draw() * weights).sum(), logits)
        probs = softmax(logits.detach().numpy())
        inner = (probs * weights.numpy()).sum(-1, keepdims=True)
        np.testing.assert_allclose(gradient, (1.0 - unimix) * probs * (weights.numpy() - inner), rtol=1e-10)


def test_one_hot_samples_follow_the_probabilities_and_the_noise():
    probs = torch.tensor([0.1, 0.2, 0.7])
    samples = OneHot(probs.log().expand(40_000, 3)).sample()
    assert set(samples.unique().tolist()) == {0.0, 1.0}
    assert bool((samples.sum(-1) == 1.0).all())
    assert torch.allclose(samples.mean(0), probs, atol=4 * 0.5 / 200)  # four standard errors at the widest
    noise = OneHot.noise((50, 3), CPU)
    drawn = OneHot(probs.log().expand(50, 3)).sample(noise)
    assert torch.equal(drawn.argmax(-1), (probs.log() + noise).argmax(-1))


def test_log_probabilities_send_no_gradient_into_drawn_one_hots():
    logits = torch.randn(3, 4, requires_grad=True)
    actions, log_prob = OneHot(logits).draw()
    (gradient,) = torch.autograd.grad(log_prob.sum(), logits)
    torch.testing.assert_close(gradient, actions.detach() - logits.detach().softmax(-1))  # that of log softmax


def test_masked_choices_are_never_drawn_though_the_uniform_is_mixed_in():
    mask = torch.tensor([True, False, True, False])
    pi = OneHot(torch.tensor([0.0, 50.0, 0.0, 50.0]).expand(5000, 4), 0.2, mask)
    assert set(pi.sample().argmax(-1).unique().tolist()) == {0, 2}
    torch.testing.assert_close(pi.entropy(), torch.full((5000,), math.log(2.0)))
    plain = OneHot(torch.tensor([0.0, 50.0, math.log(3.0), 50.0]), 0.0, mask)
    torch.testing.assert_close(plain.log_probs.exp(), torch.tensor([0.25, 0.0, 0.75, 0.0]))


def test_several_choices_are_their_one_hots_side_by_side():
    nvec, logits = (3, 2), torch.randn(7, 5, requires_grad=True)
    pi, parts = MultiOneHot(logits, nvec, 0.1), [OneHot(part, 0.1) for part in logits.split(nvec, -1)]
    noise = MultiOneHot.noise((7, 5), CPU)
    drawn = [part.sample(own) for part, own in zip(parts, noise.split(nvec, -1), strict=True)]
    assert torch.equal(pi.sample(noise), torch.cat(drawn, -1))
    assert torch.equal(pi.mode(), torch.cat([part.mode() for part in parts], -1))
    expected = sum(part.log_prob(own) for part, own in zip(parts, drawn, strict=True))
    torch.testing.assert_close(pi.log_prob(torch.cat(drawn, -1)), expected)
    torch.testing.assert_close(pi.entropy(), sum(part.entropy() for part in parts))
    masked = MultiOneHot(logits, nvec, 0.1, torch.tensor([False, True, False, True, False]))
    assert torch.equal(masked.sample().detach(), torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0]).expand(7, 5))


def test_bounded_normal():
    mean, std = numbers([0.2, -0.9], [0.0, 0.5]), numbers([0.1, 1.0], [0.7, 0.3])
    pi, actions = BoundedNormal(mean, std), numbers([1.4, 0.0], [-0.3, 0.5])
    expected = normal_log_density(actions.numpy(), mean.numpy(), std.numpy()).sum(-1)
    np.testing.assert_allclose(pi.log_prob(actions), expected, rtol=1e-12)
    np.testing.assert_allclose(pi.entropy(), (0.5 * np.log(2 * np.pi * np.e * std.numpy() ** 2)).sum(-1), rtol=1e-12)
    noise = torch.randn(2, 2, dtype=torch.float64)
    np.testing.assert_allclose(pi.sample(noise), mean.numpy() + std.numpy() * noise.numpy(), rtol=1e-12)
    assert pi.mode() is mean
    assert float(BoundedNormal(torch.zeros(4000), torch.ones(4000)).sample().abs().max()) > 2.0  # nothing clips


def test_numbers_and_choices_side_by_side():
    mean, std, logits = torch.randn(6, 2).double() / 3, torch.rand(6, 2).double() + 0.1, torch.randn(6, 3).double()
    pi = Joint(BoundedNormal(mean, std), OneHot(logits, 0.1))
    noise = pi.noise((6, 5), CPU).double()
    sample = pi.sample(noise)
    np.testing.assert_allclose(sample[:, :2], mean + std * noise[:, :2], rtol=1e-12)
    probs = softmax(logits.numpy(), 0.1)
    chosen = (np.log(probs) + noise[:, 2:].numpy()).argmax(-1)
    np.testing.assert_array_equal(sample[:, 2:], np.eye(3)[chosen])
    density = normal_log_density(sample[:, :2].numpy(), mean.numpy(), std.numpy()).sum(-1)
    np.testing.assert_allclose(pi.log_prob(sample), density + np.log(probs[np.arange(6), chosen]), rtol=1e-10)
    entropy = (0.5 * np.log(2 * np.pi * np.e * std.numpy() ** 2)).sum(-1) - (probs * np.log(probs)).sum(-1)
    np.testing.assert_allclose(pi.entropy(), entropy, rtol=1e-10)
    np.testing.assert_array_equal(pi.mode(), np.concatenate([mean, np.eye(3)[probs.argmax(-1)]], -1))
    many = Joint(BoundedNormal(torch.zeros(9000, 1), torch.ones(9000, 1)), OneHot(torch.zeros(9000, 2))).sample()
    assert float(many[:, 0].std()) == pytest.approx(1.0, abs=0.03)
    assert float(many[:, 1].mean()) == pytest.approx(0.5, abs=0.02)


def test_tanh_normal_is_a_density_over_the_actions():
    mean, std = 0.4, 0.8
    pi = TanhNormal(numbers(mean), numbers(std))
    inside = GRID[1:-1]
    latents = np.arctanh(inside)
    expected = normal_log_density(latents, mean, std) - np.log(1.0 - inside**2)
    found = TanhNormal(numbers(mean).expand(len(inside), 1), numbers(std).expand(len(inside), 1)).log_prob(
        torch.from_numpy(inside)[:, None]
    )
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-7)
    assert np.trapezoid(np.exp(expected), inside) == pytest.approx(1.0, abs=1e-6)
    assert pi.sample(numbers(0.3)).item() == pytest.approx(math.tanh(mean + 0.3 * std))
    many = TanhNormal(torch.full((20_000, 1), mean), torch.full((20_000, 1), std))
    entropy = -np.trapezoid(np.exp(expected) * expected, inside)
    assert float(many.entropy().mean()) == pytest.approx(entropy, abs=0.03)


def test_a_tanh_normal_draws_with_the_density_of_what_it_draws():
    pi = TanhNormal(torch.randn(50, 3), torch.full((50, 3), 0.5))
    actions, log_prob = pi.draw()
    torch.testing.assert_close(log_prob, pi.log_prob(actions), atol=1e-3, rtol=1e-3)
    saturated = TanhNormal(torch.full((10, 2), 20.0), torch.ones(10, 2))
    actions, log_prob = saturated.draw()
    assert bool(log_prob.isfinite().all())
    assert bool(saturated.log_prob(actions).isfinite().all())


def test_the_mode_of_a_tanh_normal_is_the_likeliest_of_its_samples():
    mean, std = torch.tensor([[0.5, -1.0], [0.0, 2.0]]), torch.tensor([[0.3, 0.5], [1.0, 0.2]])
    torch.manual_seed(5)
    mode = TanhNormal(mean, std).mode()
    torch.manual_seed(5)
    noise = torch.randn(NUM_MODE_SAMPLES, 2, 2).double().numpy()
    latents = mean.numpy() + std.numpy() * noise
    density = (normal_log_density(latents, mean.numpy(), std.numpy()) - np.log(1.0 - np.tanh(latents) ** 2)).sum(-1)
    for row in range(2):
        np.testing.assert_allclose(mode[row], np.tanh(latents[density[:, row].argmax(), row]), rtol=1e-5)


@pytest.mark.parametrize(("mean", "std"), [(0.0, 0.1), (0.3, 0.8), (-0.95, 0.2), (0.99, 2.1)])
def test_truncated_normal_against_integrals(mean, std):
    low, high = (-1.0 - mean) / std, (1.0 - mean) / std
    mass = normal_cdf(high) - normal_cdf(low)
    log_density = normal_log_density(GRID, mean, std) - math.log(mass)
    density = np.exp(log_density)
    assert np.trapezoid(density, GRID) == pytest.approx(1.0, abs=1e-6)
    columns = numbers(mean).expand(len(GRID), 1), numbers(std).expand(len(GRID), 1)
    np.testing.assert_allclose(TruncatedNormal(*columns).log_prob(torch.from_numpy(GRID)[:, None]), log_density)
    entropy = -np.trapezoid(density * log_density, GRID)
    assert float(TruncatedNormal(numbers(mean), numbers(std)).entropy()) == pytest.approx(entropy, abs=1e-6)
    single = TruncatedNormal(torch.tensor([mean]), torch.tensor([std])).entropy()
    assert float(single) == pytest.approx(entropy, abs=1e-5)  # and in float32


def truncated_quantile(mean, std, share):
    """Return where the distribution function of the truncated normal is `share`, by bisection."""
    below, above = normal_cdf((-1.0 - mean) / std), normal_cdf((1.0 - mean) / std)
    low, high = -1.0, 1.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        reached = (normal_cdf((middle - mean) / std) - below) / (above - below) >= share
        low, high = (low, middle) if reached else (middle, high)
    return low


@pytest.mark.parametrize(("mean", "std"), [(0.3, 0.8), (-0.9, 0.3), (0.0, 2.1)])
def test_truncated_samples_and_their_gradients_are_those_of_the_quantile(mean, std):
    shares = [0.02, 0.37, 0.5, 0.93]
    rows = len(shares)
    means = torch.full((rows, 1), mean, dtype=torch.float64, requires_grad=True)
    stds = torch.full((rows, 1), std, dtype=torch.float64, requires_grad=True)
    sample = TruncatedNormal(means, stds).sample(torch.tensor(shares, dtype=torch.float64)[:, None])
    by_mean, by_std = torch.autograd.grad(sample.sum(), (means, stds))
    sample = sample.detach()
    step = 1e-5
    for row, share in enumerate(shares):
        assert sample[row].item() == pytest.approx(truncated_quantile(mean, std, share), abs=1e-9)
        slopes = [
            (truncated_quantile(mean + step, std, share) - truncated_quantile(mean - step, std, share)) / (2 * step),
            (truncated_quantile(mean, std + step, share) - truncated_quantile(mean, std - step, share)) / (2 * step),
        ]
        assert by_mean[row].item() == pytest.approx(slopes[0], abs=1e-6)
        assert by_std[row].item() == pytest.approx(slopes[1], abs=1e-6)


def test_truncated_samples_are_clipped_and_keep_their_gradient():
    mean = torch.full((2, 1), 0.9, requires_grad=True)
    pi = TruncatedNormal(mean, torch.full((2, 1), 0.1))
    sample = pi.sample(torch.tensor([[0.0], [1.0]]))  # the ends of the distribution
    (gradient,) = torch.autograd.grad(sample.sum(), mean)
    assert bool(gradient.isfinite().all())
    sample = sample.detach()
    assert sample.flatten().tolist() == pytest.approx([0.9 - 0.1 * 5.5, 1.0 - CLIP], abs=0.1)
    assert float(sample[1]) == pytest.approx(1.0 - CLIP, abs=1e-7)
    many = TruncatedNormal(torch.full((20_000,), 0.97), torch.full((20_000,), 0.15)).sample()
    assert float(many.max()) <= 1.0
    assert float(many.min()) >= -1.0
    assert pi.mode() is mean


def test_noise_drawn_beforehand_is_what_samples_would_draw():
    mean, std = torch.zeros(4, 2), torch.ones(4, 2)
    for pi in (TanhNormal(mean, std), TruncatedNormal(mean, std), BoundedNormal(mean, std), OneHot(mean)):
        torch.manual_seed(3)
        expected = pi.sample()
        torch.manual_seed(3)
        assert torch.equal(pi.sample(pi.noise((4, 2), CPU)), expected)


def test_means_over_one_hots_are_exact_and_so_are_their_gradients():
    logits = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    mask = torch.ones(2, 3, 4, dtype=torch.bool)
    mask[1, 2, 0] = False
    worth = torch.randn(2, 3, 4, dtype=torch.float64)

    def values(actions, log_probs):
        assert actions.shape == (4, 2, 3, 4)
        return (actions * worth).sum(-1), log_probs

    found, minus_entropy = OneHot(logits, mask=mask).expect(values)
    masked = np.where(mask.numpy(), logits.detach().numpy(), -np.inf)
    probs = softmax(masked)
    np.testing.assert_allclose(found.detach(), (probs * worth.numpy()).sum(-1), rtol=1e-9)
    logs = np.log(np.where(probs > 0, probs, 1.0))
    np.testing.assert_allclose(minus_entropy.detach(), (probs * logs).sum(-1), rtol=1e-9)
    found.sum().backward()
    mean = (probs * worth.numpy()).sum(-1, keepdims=True)
    np.testing.assert_allclose(logits.grad, probs * (worth.numpy() - mean), atol=1e-9)
