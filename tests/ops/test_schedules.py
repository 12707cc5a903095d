import pytest
import torch

from rl_lab.ops.schedules import kl_adaptive_rate, linear_decay


@pytest.mark.parametrize(
    ("kl", "rate", "expected"),
    [
        (0.0201, 1e-3, 1e-3 / 1.5),  # above twice the desired KL: down
        (0.0199, 1e-3, 1e-3),  # within the band: same
        (0.0051, 1e-3, 1e-3),
        (0.0049, 1e-3, 1.5e-3),  # below half of it: up
        (0.0, 1e-3, 1e-3),  # no information: same
        (1.0, 1.1e-5, 1e-5),  # bounds
        (0.001, 9e-3, 1e-2),
    ],
)
def test_kl_adaptive_rate(kl, rate, expected):
    adapted = kl_adaptive_rate(torch.tensor(rate), torch.tensor(kl), desired_kl=0.01, lowest=1e-5, highest=1e-2)
    assert float(adapted) == pytest.approx(expected, rel=1e-5)


def test_linear_decay():
    assert [linear_decay(4e-4, p) for p in (0.0, 0.25, 1.0, 1.5)] == pytest.approx([4e-4, 3e-4, 0.0, 0.0])
