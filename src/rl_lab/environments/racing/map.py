"""A race track as bitmaps that are drawn once, and the camera that samples them.

The world is cut into squares as large as a patch of grass. Only those with road in them are drawn; all others repeat
one pattern. A texel is the mean of an area as large as a pixel of the observation, and the next one is half a pixel
away: the nearest texel is already an anti-aliased pixel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pygame
from gymnasium.envs.box2d.car_racing import GRASS_DIM, PLAYFIELD, WINDOW_H, WINDOW_W

from rl_lab.environments.racing.area import FULL_ZOOM, Array, shown, to_luma
from rl_lab.environments.racing.camera import camera_of

NUM_SQUARES = 40  # along a side of the playfield
LEVELS = (0, 2, 3, 4)  # halvings of the resolution; the later ones are for the camera's fall in the first second
OUTLINE = 0.3  # texels by which pygame fills more than a polygon, beyond what it does in CarRacing's large window
BATCH = 16  # squares that fit into a processor's cache
EVEN_BYTES: dict[int, Any] = {1: np.uint8(0xFE), 4: np.uint32(0xFEFEFEFE)}  # by size of a texel
EDGE = 1.5  # texels at the side of the road that are mixed with grass
SMALLEST_WIDTH = 1e-9  # texels; what is narrower has nothing to move

Corners = Sequence[Sequence[float]]
Color = Sequence[float] | Array


class TrackMap:
    """The bitmaps of one track, of colours packed into 32 bits or of luma.

    Level 0 holds overlapping means of 2 x 2 raw texels; level n > 1 holds means of 2^n x 2^n raw texels side by side.
    """

    def __init__(self, size: int, *, is_gray: bool) -> None:
        self._is_gray = is_gray
        pixel = math.sqrt(WINDOW_W * WINDOW_H) / size / FULL_ZOOM  # world units, between width and height
        self._side = 8 * max(1, round(2 * GRASS_DIM / pixel / 8))  # of a square, in texels
        self._per_unit = self._side / GRASS_DIM
        self._levels: dict[int, Array] = {}
        for level in LEVELS:
            count = ((NUM_SQUARES * self._side) >> level) + 1  # the last row and column stay black: all that is outside
            self._levels[level] = np.zeros((count, count), np.uint8 if is_gray else np.uint32)
        self._surface = _surface_of(self._levels[0])
        self._camera = camera_of(size, self._per_unit, len(self._levels[0]))
        self._tiles: list[Corners] = []
        self._visited_color: Sequence[int] = ()

    def bake(self, polygons: Sequence[tuple[Corners, Color]], background: Color, grass: Color) -> None:
        """Draw polygons, the later ones on top, on the field with its patches of grass."""
        raw_grass = self._lay_grass(*self._paint([background, grass]))
        corners = self._inset([corners for corners, _ in polygons], OUTLINE)
        colors = self._paint([color for _, color in polygons])
        rows, columns = _squares_with(corners // self._side)
        self._split(0, NUM_SQUARES)[rows, :, columns, :] = raw_grass[rows % 2, columns % 2]
        for points, color in zip(corners.tolist(), colors, strict=True):
            pygame.draw.polygon(self._surface, color, points)
        raw = np.empty((len(rows), self._side + 1, self._side + 1), self._levels[0].dtype)
        for image, row, column in zip(raw, (rows * self._side).tolist(), (columns * self._side).tolist(), strict=True):
            image[:] = self._levels[0][row : row + self._side + 1, column : column + self._side + 1]
        for first in range(0, len(raw), BATCH):
            part = slice(first, first + BATCH)
            for level, images in _pyramid(raw[part]).items():
                self._split(level, NUM_SQUARES)[rows[part], :, columns[part], :] = images
        self._levels[4][:-1, :-1] = _halve(self._levels[3][:-1, :-1])

    def prepare_visits(self, tiles: Sequence[Corners], color: Color) -> None:
        """Take note of the tiles of the road, and of their colour after a visit."""
        self._tiles = self._inset(tiles, EDGE).tolist()
        (self._visited_color,) = self._paint([color])

    def visit(self, tile: int) -> None:
        """Show a tile of the road in the colour of those that have been visited, all but the texels at its edges."""
        pygame.draw.polygon(self._surface, self._visited_color, self._tiles[tile])

    def sample(self, x: float, y: float, angle: float, zoom: float) -> Array:
        """Return the pixels above the bar of indicators for a car in that pose."""
        if zoom == FULL_ZOOM and self._camera.sees_grass_only(x, y):
            # Wrapping is cheaper than the check that there is nothing to wrap.
            return self._levels[0].ravel().take(self._camera.near_texels(x, y, angle), mode="wrap")
        shrink = FULL_ZOOM / zoom  # how much wider a pixel is than after the first second
        halvings = min(round(math.log2(shrink)), LEVELS[-1])
        level = halvings if halvings in LEVELS else 0  # quarters of a pixel twice as wide are as large as its texels
        texels = self._camera.far_texels(level, x, y, angle, zoom, by_quarters=halvings > 0)
        pixels: Array = self._levels[level].ravel().take(texels, mode="wrap")
        return _halve(pixels) if halvings > 0 else pixels

    def _lay_grass(self, background: Sequence[int], grass: Sequence[int]) -> Array:
        """Cover the field, and return raw texels of squares in even and odd rows and columns."""
        side = self._side
        raw = np.zeros((2 * side + 1, 2 * side + 1), self._levels[0].dtype)  # four squares, and the texel after them
        surface = _surface_of(raw)
        surface.fill(background)
        for left in (0, 2 * side):
            for top in (0, 2 * side):
                surface.fill(grass, (left, top, side, side))
        for level, images in _pyramid(raw[None]).items():
            self._split(level, NUM_SQUARES // 2)[:] = images[0][:, None, :]
        return raw[:-1, :-1].reshape(2, side, 2, side).swapaxes(1, 2)

    def _inset(self, polygons: Sequence[Corners], inset: float) -> Array:
        """Return corners in texels, [K, 4, 2], moved towards their neighbour across the road."""
        corners = (np.array(polygons) + PLAYFIELD) * self._per_unit
        across = corners[:, [1, 0, 3, 2]] - corners
        widths = np.linalg.norm(across, axis=2, keepdims=True)  # 0 of a border between tiles of one direction
        return corners + across * (inset / np.maximum(widths, SMALLEST_WIDTH))

    def _paint(self, colors: Sequence[Color]) -> list[list[int]]:
        """Return the colours to draw with."""
        seen = shown(np.array(colors))
        painted: list[list[int]] = (to_luma(seen).repeat(3, axis=1) if self._is_gray else seen).astype(int).tolist()
        return painted

    def _split(self, level: int, parts: int) -> Array:
        """Return a view of a level, [rows of squares, rows of texels, columns of squares, columns of texels]."""
        inside = self._levels[level][:-1, :-1]
        side = len(inside) // parts
        return inside.reshape(parts, side, parts, side)


def _squares_with(corners: Array) -> tuple[Array, Array]:
    """Return rows and columns of the squares that polygons, which are smaller, have corners in or between."""
    has_road = np.zeros((NUM_SQUARES, NUM_SQUARES), bool)
    low, high = corners.min(axis=1).astype(int), corners.max(axis=1).astype(int)
    for rows in (low[:, 1], high[:, 1]):
        for columns in (low[:, 0], high[:, 0]):
            has_road[rows, columns] = True
    found_rows, found_columns = has_road.nonzero()
    return found_rows, found_columns


def _surface_of(bitmap: Array) -> pygame.Surface:
    """Return a surface that shares the memory of packed colours or of luma, [H, W]."""
    if bitmap.dtype == np.uint32:
        return pygame.image.frombuffer(bitmap.data, bitmap.shape[::-1], "RGBX")
    surface = pygame.image.frombuffer(bitmap.data, bitmap.shape[::-1], "P")
    surface.set_palette([(level, level, level) for level in range(256)])
    return surface


def _pyramid(raw: Array) -> dict[int, Array]:
    """Return the levels of squares of raw texels with a texel of the next ones, [K, side + 1, side + 1]."""
    between_rows = _mean(raw[:, :-1], raw[:, 1:])
    overlapping = _mean(between_rows[..., :-1], between_rows[..., 1:])
    quarter = _halve(overlapping[:, ::2, ::2])  # every second one of them is a mean of texels of its own
    return {0: overlapping, 2: quarter, 3: _halve(quarter)}


def _mean(a: Array, b: Array) -> Array:
    """Return the mean of each byte, rounded down, without unpacking."""
    half: Array = a ^ b
    half &= EVEN_BYTES[half.dtype.itemsize]
    half >>= 1
    half += a & b
    return half


def _halve(bitmap: Array) -> Array:
    """Return means of 2 x 2, [..., H, W] to [..., H / 2, W / 2]."""
    between_rows = _mean(bitmap[..., ::2, :], bitmap[..., 1::2, :])
    return _mean(between_rows[..., ::2], between_rows[..., 1::2])
