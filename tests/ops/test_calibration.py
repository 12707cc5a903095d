"""The reliability table and its error, by hand."""

import pytest
import torch

from rl_lab.components.reliability_picture import reliability_picture
from rl_lab.ops.calibration import reliability


def test_the_table_by_hand():
    chances = torch.tensor([0.1, 0.3, 0.9, 1.0, 0.7])
    outcomes = torch.tensor([0.0, 1.0, 1.0, 1.0, 0.0])
    weights = torch.tensor([1.0, 1.0, 2.0, 1.0, 3.0])
    table = reliability(chances, outcomes, weights, 2)
    # below 0.5: 0.1 and 0.3, of which the second came; from 0.5 on: 0.9 twice, 1.0, 0.7 three times, which never came
    torch.testing.assert_close(table.said, torch.tensor([0.2, (1.8 + 1.0 + 2.1) / 6]))
    torch.testing.assert_close(table.came, torch.tensor([0.5, 0.5]))
    torch.testing.assert_close(table.share, torch.tensor([0.25, 0.75]))
    assert float(table.error) == pytest.approx(0.25 * 0.3 + 0.75 * (4.9 / 6 - 0.5))


def test_chances_that_are_drawn_from_are_calibrated_and_boasts_are_not():
    torch.manual_seed(0)
    chances = torch.rand(200_000)
    outcomes = (torch.rand(200_000) < chances).float()
    weights = torch.ones(200_000)
    assert float(reliability(chances, outcomes, weights, 10).error) < 0.01
    boasts = (chances > 0.5).float()  # sure of what is only likely: wrong in a quarter of all
    assert float(reliability(boasts, outcomes, weights, 10).error) == pytest.approx(0.25, abs=0.01)
    empty = reliability(torch.tensor([0.95]), torch.tensor([1.0]), torch.ones(1), 10)
    assert empty.said[:9].tolist() == empty.share[:9].tolist() == [0.0] * 9


def test_the_picture_has_a_bar_as_high_as_it_came():
    table = reliability(torch.tensor([0.2, 0.2, 0.8, 0.8]), torch.tensor([0.0, 1.0, 1.0, 1.0]), torch.ones(4), 2)
    pixels = reliability_picture(table).pixels
    blue = (pixels == torch.tensor([70, 110, 190], dtype=torch.uint8)).all(-1)
    assert pixels.shape == (200, 200, 3)
    assert 90 <= int(blue[:, 50].sum()) <= 100  # half of 200, without the lines across it
    assert 185 <= int(blue[:, 150].sum()) <= 200
