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
    loss = clipped_policy_loss(torch.tensor([ratio]), torch.tensor([advantage]), 0.2)
    assert float(loss) == pytest.approx(-objective)


def test_clipped_policy_loss_is_the_papers_also_in_its_gradient():
    torch.manual_seed(0)
    ratio, advantages = (torch.rand(500) + 0.5).requires_grad_(), torch.randn(500)
    paper = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
    ours = clipped_policy_loss(ratio, advantages, 0.2)
    torch.testing.assert_close(ours, paper)
    torch.testing.assert_close(torch.autograd.grad(ours, ratio), torch.autograd.grad(paper, ratio))


def test_value_loss():
    values, targets, old = torch.tensor([2.0, 0.0]), torch.tensor([3.0, 0.5]), torch.tensor([1.0, 0.0])
    assert float(value_loss(values, targets, old, None)) == pytest.approx((1.0 + 0.25) / 2)
    # The first value moved by 1 and is held at 1.5, where its error is 1.5: the worse of the two counts.
    assert float(value_loss(values, targets, old, 0.5)) == pytest.approx((2.25 + 0.25) / 2)


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
