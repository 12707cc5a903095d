"""From a part of CarRacing's window to the pixels of an observation that show it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pygame
from gymnasium.envs.box2d.car_racing import SCALE, WINDOW_H, WINDOW_W, ZOOM
from numpy.typing import NDArray

Array = NDArray[Any]
FULL_ZOOM = ZOOM * SCALE  # window pixels per unit of the world, after the first second
DIMMING = 2  # what pygame's smoothscale, which makes CarRacing's observations, takes off every colour
LUMA = np.array([0.299, 0.587, 0.114])  # ITU-R BT.601


class Area:
    """A part of the window and of the observation, drawn at the size of the one and shown at the size of the other.

    Args:
        size: Width and height of the observation.
        left: Edges in the window, as the others; widened to whole pixels of the observation.
        top: From the upper edge of the window.
        right: From the left edge of the window.
        bottom: From the upper edge of the window.
        is_gray: Show luma instead of colours.
    """

    def __init__(self, size: int, left: float, top: float, right: float, bottom: float, *, is_gray: bool) -> None:
        self._is_gray = is_gray
        columns, self._column_weights, (self.left, self.width) = _shrinking(size, WINDOW_W, left, right)
        rows, self._row_weights, (self.top, self.height) = _shrinking(size, WINDOW_H, top, bottom)
        self.pixels = rows, columns  # index of the observation

    def blank(self) -> tuple[Array, pygame.Surface]:
        """Return a transparent picture of the part of the window, [H, W, 4], and a surface to draw on it."""
        image = np.zeros((self.height, self.width, 4), np.uint8)
        return image, pygame.image.frombuffer(image.data, (self.width, self.height), "RGBA")

    def shrink(self, image: Array) -> tuple[Array, Array]:
        """Return mean colours of the pixels, black where transparent, and opacity, [H, W, 1 or 3] and [H, W, 1]."""
        flat = self._row_weights @ image.reshape(self.height, -1)
        # Rounded, so that the last bits of a product, which differ between processors, do not show.
        mean = (self._column_weights @ flat.reshape(-1, self.width, 4)).round(6)
        return to_luma(mean[..., :3]) if self._is_gray else mean[..., :3], mean[..., 3:] / 255.0


def shown(colors: Array) -> Array:
    """Return whole colours as they come out in an observation of CarRacing."""
    return np.maximum(colors.astype(int) - DIMMING, 0)


def to_luma(colors: Array) -> Array:
    """Return the brightness of colours, [..., 3] to [..., 1]."""
    return (colors @ LUMA)[..., None]


def _shrinking(size: int, window: int, low: float, high: float) -> tuple[slice, Array, tuple[int, int]]:
    """Return the pixels that show an interval, their weights on it, and its start and length in the window."""
    first, last = math.floor(low * size / window), math.ceil(high * size / window)
    start, end = math.floor(first * window / size), math.ceil(last * window / size)
    edges = np.arange(first, last + 1) * (window / size)
    points = np.arange(start, end)
    overlap = np.minimum(edges[1:, None], points + 1) - np.maximum(edges[:-1, None], points)
    return slice(first, last), overlap.clip(0.0) * (size / window), (start, end - start)
