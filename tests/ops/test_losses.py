import math

import pytest
import torch

from rl_lab.ops.losses import (
    approximate_kl,
    clip_fraction,
    clipped_policy_loss,
    explained_variance,
    normalized,
    value_loss,
)


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective"),
    [(1.0, 2.0, 2.0), (1.5, 2.0, 2.4), (0.5, 2.0, 1.0), (1.5, -2.0, -3.0), (0.5, -2.0, -1.6), (1.1, 0.0, 0.0)],
)
def test_clipped_policy_loss(ratio, advantage, objective):
    loss, _ = clipped_policy_loss(torch.tensor([ratio]).log(), torch.tensor([advantage]), 0.2)
    assert float(loss) == pytest.approx(-objective)


def test_clipped_policy_loss_is_the_papers_also_in_its_gradient():
    torch.manual_seed(0)
    log_ratio, advantages = torch.randn(500).mul(0.3).requires_grad_(), torch.randn(500)
    ratio = log_ratio.exp()
    paper = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
    ours, gradient = clipped_policy_loss(log_ratio.detach(), advantages, 0.2)
    torch.testing.assert_close(ours, paper.detach())
    torch.testing.assert_close(gradient, torch.autograd.grad(paper, log_ratio)[0])


def test_value_loss():
    values, targets, old = torch.tensor([2.0, 0.0]), torch.tensor([3.0, 0.5]), torch.tensor([1.0, 0.0])
    assert float(value_loss(values, targets, old, None)[0]) == pytest.approx((1.0 + 0.25) / 2)
    # The first value moved by 1 and is held at 1.5, where its error is 1.5: the worse of the two counts.
    assert float(value_loss(values, targets, old, 0.5)[0]) == pytest.approx((2.25 + 0.25) / 2)


@pytest.mark.parametrize("clip_range", [None, 0.3])
def test_the_gradient_of_the_value_loss_is_autograds(clip_range):
    torch.manual_seed(1)
    values, targets, old = torch.randn(500, requires_grad=True), torch.randn(500), torch.randn(500)
    errors = (values - targets).square()
    if clip_range is not None:
        errors = torch.max(errors, (old + (values - old).clamp(-clip_range, clip_range) - targets).square())
    loss, gradient = value_loss(values.detach(), targets, old, clip_range)
    torch.testing.assert_close(loss, errors.mean().detach())
    torch.testing.assert_close(gradient, torch.autograd.grad(errors.mean(), values)[0])


def test_diagnostics():
    log_ratio = torch.tensor([math.log(1.5), math.log(1.1), math.log(0.7), 0.0])
    kl = (0.5 - math.log(1.5) + 0.1 - math.log(1.1) - 0.3 - math.log(0.7)) / 4
    assert float(approximate_kl(log_ratio)) == pytest.approx(kl, rel=1e-5)
    assert float(clip_fraction(log_ratio, 0.2)) == 0.5
    targets = torch.tensor([1.0, 2.0, 3.0, 6.0])
    assert float(explained_variance(targets, targets)) == 1.0
    assert float(explained_variance(torch.zeros(4), targets)) == pytest.approx(0.0)
    x = normalized(torch.tensor([1.0, 3.0]))
    torch.testing.assert_close(x, torch.tensor([-1.0, 1.0]))
