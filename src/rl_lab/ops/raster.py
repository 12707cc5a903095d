"""Drawing by tensor operations: heat maps with contour lines and dots, as [H, W, 3] uint8."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

COLOURS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))  # viridis, low to high
DOT_COLOUR = (255, 80, 60)
LINE_SHADE = 0.6  # of the colour below a contour line
GAP = 4  # white pixels between two panels


def unit_grid(size: int) -> Tensor:
    """Return the points [size * size, 2] of the square [-1, 1]^2, row by row from the upper left corner."""
    line = torch.linspace(-1.0, 1.0, size)
    y, x = torch.meshgrid(-line, line, indexing="ij")
    return torch.stack([x, y], -1).flatten(0, 1)


def heat_map(values: Tensor, num_levels: int = 12) -> Tensor:
    """Return values [H, W] as colours, the lowest dark and the highest bright, with lines between the levels."""
    low, high = values.amin(), values.amax()
    share = (values - low) / (high - low).clamp_min(1e-12)
    pixels = _coloured(share)
    level = (share * num_levels).floor().clamp_max(num_levels - 1)
    is_line = torch.zeros_like(level, dtype=torch.bool)
    is_line[:, :-1] |= level.diff(dim=1) != 0
    is_line[:-1] |= level.diff(dim=0) != 0
    return torch.where(is_line.unsqueeze(-1), pixels * LINE_SHADE, pixels).round().to(torch.uint8)


def with_dots(pixels: Tensor, points: Tensor, radius: float = 1.5) -> Tensor:
    """Return pixels [S, S, 3] with a dot at each of the points [K, 2] of [-1, 1]^2, y upwards."""
    size = len(pixels)
    grid = unit_grid(size).to(points).view(1, size, size, 2)
    reach = radius * 2.0 / (size - 1)
    is_dot = ((grid - points.view(-1, 1, 1, 2)).square().sum(-1) <= reach**2).any(0)
    return torch.where(is_dot.unsqueeze(-1), torch.tensor(DOT_COLOUR, dtype=torch.uint8, device=pixels.device), pixels)


def side_by_side(panels: list[Tensor]) -> Tensor:
    """Return panels [H, W, 3] as one picture, with white between them."""
    spaced = [F.pad(panel, (0, 0, 0, GAP), value=255) for panel in panels[:-1]]
    return torch.cat([*spaced, panels[-1]], 1)


def _coloured(share: Tensor) -> Tensor:
    """Return the colours [H, W, 3] of shares in [0, 1], interpolated between those of `COLOURS`."""
    table = torch.tensor(COLOURS, dtype=torch.float32, device=share.device)
    place = share * (len(COLOURS) - 1)
    below = place.floor().clamp(0, len(COLOURS) - 2).long()
    return torch.lerp(table[below], table[below + 1], (place - below).unsqueeze(-1))
