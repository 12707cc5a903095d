"""A reliability diagram as a picture: how often it came against how likely it was said to be."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_lab.core import Picture
from rl_lab.ops.calibration import Reliability

SIDE = 200  # pixels
WHITE, GREY, BLUE, RED = (255, 255, 255), (160, 160, 160), (70, 110, 190), (200, 60, 60)


def reliability_picture(table: Reliability) -> Picture:
    """Draw a bar for each bin that has something, as high as it came, and a red line where it was said."""
    pixels = torch.tensor(WHITE, dtype=torch.uint8).repeat(SIDE, SIDE, 1)
    edges = torch.linspace(0, SIDE, len(table.said) + 1).round().int().tolist()
    for index, (said, came, share) in enumerate(zip(*(x.tolist() for x in table), strict=True)):
        if share > 0.0:
            columns = slice(edges[index] + 1, edges[index + 1] - 1)
            _fill(pixels, columns, 0.0, came, BLUE)
            _fill(pixels, columns, said - 0.01, said + 0.01, RED)
    diagonal = torch.arange(SIDE)
    pixels[SIDE - 1 - diagonal, diagonal] = torch.tensor(GREY, dtype=torch.uint8)
    return Picture(pixels)


def _fill(pixels: Tensor, columns: slice, low: float, high: float, colour: tuple[int, int, int]) -> None:
    """Paint from one height to another, each in [0, 1]."""
    top, bottom = (round(SIDE * (1.0 - min(1.0, max(0.0, height)))) for height in (high, low))
    pixels[top:bottom, columns] = torch.tensor(colour, dtype=torch.uint8)
