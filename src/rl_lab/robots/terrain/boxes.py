"""Ground as boxes: heights that are constant in each cell, covered by as few boxes as a greedy search finds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_lab.robots.terrain.tiles import Heights

TERRACE = 0.05  # m, the rise between neighbouring terraces of a slope
GRAIN = 0.02  # m, the rise between bumps
BUMP = 0.8  # m, the side of a bump


class Block(NamedTuple):
    """A box from below the ground up to `height`, over the cells [x0, x1) x [y0, y1)."""

    x0: int
    x1: int
    y0: int
    y1: int
    height: float


def terraced(kind: str, heights: Heights, resolution: float) -> Heights:
    """Return a tile's heights as terraces: slopes in small steps, bumps as square plates, the rest as it is."""
    if kind.startswith("slope"):
        return np.round(heights / TERRACE) * TERRACE
    if kind == "rough":
        stride = max(1, round(BUMP / resolution))
        plates = np.repeat(np.repeat(heights[::stride, ::stride], stride, 0), stride, 1)[: len(heights), : len(heights)]
        return np.round(plates / GRAIN) * GRAIN
    return heights


def cover(heights: Heights) -> list[Block]:
    """Return boxes whose highest one over each cell has the cell's height; lower ones may reach under higher ground."""
    levels = np.round(heights, 6)
    blocks = []
    for height in np.unique(levels):
        may, left = levels >= height, levels == height
        while left.any():
            x, y = (int(index) for index in np.argwhere(left)[0])
            block = grow(may, x, y, float(height))
            left[block.x0 : block.x1, block.y0 : block.y1] = False
            blocks.append(block)
    return blocks


def grow(may: NDArray[np.bool_], x: int, y: int, height: float) -> Block:
    """Return a large rectangle of allowed cells around one: along y first or along x first, whichever gives more."""
    found = []
    for axis in (0, 1):
        grid = may if axis == 0 else may.T
        row, column = (x, y) if axis == 0 else (y, x)
        start, end = run(grid[row, :], column)
        rows = np.asarray(grid[:, start:end].all(1))
        first, last = run(rows, row)
        found.append((first, last, start, end) if axis == 0 else (start, end, first, last))
    return Block(*max(found, key=lambda part: (part[1] - part[0]) * (part[3] - part[2])), height)


def run(line: NDArray[np.bool_], at: int) -> tuple[int, int]:
    """Return the ends [start, end) of the unbroken stretch of True around a place."""
    breaks = np.flatnonzero(~line)
    before, after = breaks[breaks < at], breaks[breaks > at]
    return int(before[-1]) + 1 if before.size else 0, int(after[0]) if after.size else len(line)
