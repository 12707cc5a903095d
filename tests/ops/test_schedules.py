import pytest
import torch

from rl_lab.ops.schedules import cosine_decay, kl_adaptive_rate, linear_decay, warm_cosine


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


def test_warm_cosine_rises_linearly_and_falls_by_half_a_cosine():
    assert [warm_cosine(0.8, 0.0, share) for share in (0.25, 1.0, 9.0)] == pytest.approx([0.2, 0.8, 0.8])
    falls = [warm_cosine(0.8, progress, 2.0) for progress in (1 / 3, 0.5, 2 / 3, 1.0)]
    assert falls == pytest.approx([0.6, 0.4, 0.2, 0.0])  # cos 60, 90, 120 and 180 degrees
    assert warm_cosine(0.8, 0.5, 0.5) == pytest.approx(0.2)


def test_cosine_decay_rises_falls_and_stays():
    rate = lambda update: cosine_decay(1.0, 0.1, update, warmup=4, decay=10)  # noqa: E731
    assert [rate(update) for update in range(4)] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert [rate(update) for update in (4, 6, 7, 8, 10, 11, 500)] == pytest.approx(
        [1.0, 0.1 + 0.9 * 0.75, 0.55, 0.1 + 0.9 * 0.25, 0.1, 0.1, 0.1]
    )
    assert cosine_decay(2.0, 2.0, 7, warmup=0, decay=1) == 2.0  # no fall
