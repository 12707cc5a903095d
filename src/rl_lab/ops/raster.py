"""Drawing by tensor operations: heat maps with contour lines and dots, curves, panels; as [..., H, W, 3] uint8."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

COLOURS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))  # viridis, low to high
DOT_COLOUR = (255, 80, 60)
LINE_SHADE = 0.6  # of the colour below a contour line
GAP = 4  # white pixels between two panels
FRAME = 2  # pixels of a coloured frame
MARK_SHADE = 200  # of a vertical line
Colour = tuple[int, int, int]


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
    """Return panels [..., H, W, 3] as one picture, with white between them."""
    spaced = [F.pad(panel, (0, 0, 0, GAP), value=255) for panel in panels[:-1]]
    return torch.cat([*spaced, panels[-1]], -2)


def above_each_other(panels: list[Tensor]) -> Tensor:
    """Return panels [..., H, W, 3] as one picture, the first on top, with white between them."""
    return side_by_side([panel.transpose(-3, -2) for panel in panels]).transpose(-3, -2)


def framed(pixels: Tensor, colour: Colour) -> Tensor:
    """Return pixels [..., H, W, 3] within a frame."""
    *lead, height, width, _ = pixels.shape
    shape = (*lead, height + 2 * FRAME, width + 2 * FRAME, 3)
    frame = torch.tensor(colour, dtype=torch.uint8, device=pixels.device).expand(shape).clone()
    frame[..., FRAME:-FRAME, FRAME:-FRAME, :] = pixels
    return frame


def curves(lines: Tensor, colours: Sequence[Colour], *, height: int, width: int, mark: float) -> Tensor:
    """Return lines [L, T >= 2] over time as a picture, later ones on top, with a vertical line at the time `mark`.

    The lowest and the highest number are at its edges; what is not a number is not drawn.
    """
    is_number = lines.isfinite()
    low, high = lines[is_number].aminmax() if is_number.any() else (lines.new_zeros(()), lines.new_ones(()))
    rows = (height - 1) * (high - lines) / (high - low).clamp_min(1e-12)  # [L, T]
    pixels = torch.full((height, width, 3), 255, dtype=torch.uint8, device=lines.device)
    pixels[:, round(mark / (lines.shape[1] - 1) * (width - 1))] = MARK_SHADE
    place = torch.linspace(0.0, lines.shape[1] - 1, width + 1, device=lines.device)  # the edges of pixels
    below = place.floor().clamp_max(lines.shape[1] - 2).long()
    edges = torch.lerp(rows[:, below], rows[:, below + 1], place - below)  # [L, width + 1]
    upper, lower = torch.minimum(edges[:, :-1], edges[:, 1:]), torch.maximum(edges[:, :-1], edges[:, 1:])
    across = torch.arange(height, device=lines.device).unsqueeze(-1)
    for index, colour in enumerate(colours):
        is_line = (across >= upper[index] - 0.5) & (across <= lower[index] + 0.5)  # [height, width]
        pixels[is_line] = torch.tensor(colour, dtype=torch.uint8, device=lines.device)
    return pixels


def _coloured(share: Tensor) -> Tensor:
    """Return the colours [H, W, 3] of shares in [0, 1], interpolated between those of `COLOURS`."""
    table = torch.tensor(COLOURS, dtype=torch.float32, device=share.device)
    place = share * (len(COLOURS) - 1)
    below = place.floor().clamp(0, len(COLOURS) - 2).long()
    return torch.lerp(table[below], table[below + 1], (place - below).unsqueeze(-1))
