"""Where the pixels of CarRacing's picture lie in the bitmaps of its track: the camera turns with the car."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from gymnasium.envs.box2d.car_racing import PLAYFIELD, WINDOW_H, WINDOW_W

from rl_lab.environments.racing.area import FULL_ZOOM, Array

NUM_TURNS = 1024  # directions of the car that are told apart at full zoom; half a pixel at the furthest corner
REACH = math.hypot(WINDOW_W / 2, WINDOW_H * 3 / 4)  # window pixels from the car to that corner
FRACTION = 16  # bits of a texel's coordinate behind the point

Grid = tuple[Array, Array]  # how far ahead and to the right of the car points are in the window, [H, 1] and [W]


class Camera:
    """Finds the texels that the pixels above the bar of indicators show.

    Args:
        size: Width and height of the observation.
        per_unit: Texels of the bitmap per unit of the world.
        stride: Texels in a row of the bitmap.
    """

    def __init__(self, size: int, per_unit: float, stride: int) -> None:
        self._per_unit, self._stride = per_unit, stride
        self._pixels, self._quarters = _grid(size), _grid(2 * size)
        self._offsets: dict[int, Array] = {}  # from the texel of the car, by turn
        self._farthest = PLAYFIELD - REACH / FULL_ZOOM - 1.0

    def sees_grass_only(self, x: float, y: float) -> bool:
        """Return whether the edge of the playfield is out of sight at full zoom."""
        return max(abs(x), abs(y)) < self._farthest

    def near_texels(self, x: float, y: float, angle: float) -> Array:
        """Return flat indices for the pixels at full zoom, from a table; needs `sees_grass_only`."""
        turn = round(angle * (NUM_TURNS / math.tau)) % NUM_TURNS
        offsets = self._offsets.get(turn)
        if offsets is None:
            rows, columns = _locate(self._pixels, 0.0, 0.0, turn * (math.tau / NUM_TURNS), self._per_unit / FULL_ZOOM)
            offsets = self._offsets[turn] = rows * self._stride + columns
        row, column = int((y + PLAYFIELD) * self._per_unit), int((x + PLAYFIELD) * self._per_unit)
        return offsets + (row * self._stride + column)

    def far_texels(self, level: int, x: float, y: float, angle: float, zoom: float, *, by_quarters: bool) -> Array:
        """Return flat indices for the pixels, or for quarters of them, into the bitmap that is halved `level` times.

        What is outside of the playfield is in the last row or the last column of the bitmap.
        """
        outside = (self._stride - 1) >> level
        per_unit = self._per_unit / (1 << level)
        shift = 0.0 if level else 0.5  # the means of level 0 are around the corners of raw texels
        column, row = ((position + PLAYFIELD) * per_unit - shift for position in (x, y))
        grid = self._quarters if by_quarters else self._pixels
        for indices in (located := _locate(grid, row, column, angle, per_unit / zoom)):
            unsigned = indices.view(np.uint32)  # so that the negative ones are large, too
            np.minimum(unsigned, np.uint32(outside), out=unsigned)
        rows, columns = located
        return rows * (outside + 1) + columns


@lru_cache
def camera_of(size: int, per_unit: float, stride: int) -> Camera:
    """Return the camera that all environments of a process share, because of its table."""
    return Camera(size, per_unit, stride)


def _grid(count: int) -> Grid:
    columns, rows = (np.arange(count) + 0.5) / count, (np.arange(count * 7 // 8) + 0.5) / count
    return (0.75 - rows)[:, None] * WINDOW_H, (columns - 0.5) * WINDOW_W


def _locate(grid: Grid, row: float, column: float, angle: float, scale: float) -> tuple[Array, Array]:
    """Return rows and columns of texels, rounded down, around a car; `scale` is texels per window pixel."""
    (ahead, right), one = grid, 1 << FRACTION
    cos, sin = math.cos(angle) * scale * one, math.sin(angle) * scale * one
    rows = (right * sin + row * one).astype(np.int32) + (ahead * cos).astype(np.int32)
    columns = (right * cos + column * one).astype(np.int32) + (ahead * -sin).astype(np.int32)
    rows >>= FRACTION
    columns >>= FRACTION
    return rows, columns
