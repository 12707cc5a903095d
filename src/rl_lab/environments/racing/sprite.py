"""The car in CarRacing's picture. The camera turns with it, so that it stays where it is; only its wheels move.

Hull and wheels are drawn when they are first needed and kept as layers, which are added up for a picture.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pygame
from gymnasium.envs.box2d import car_dynamics
from gymnasium.envs.box2d.car_racing import WINDOW_H, WINDOW_W

from rl_lab.environments.racing.area import FULL_ZOOM, Area, Array, shown

WINDOW = (470, 555, 530, 645)  # left, top, right and bottom of what a car can cover
HULL = (car_dynamics.HULL_POLY1, car_dynamics.HULL_POLY2, car_dynamics.HULL_POLY3, car_dynamics.HULL_POLY4)
HULL_COLOR = (204, 0, 0)
ANGLES_PER_RAD = 20.0  # that a front wheel is drawn at, finer than a pixel shows
NUM_PHASES = 8  # of a wheel's turn
PHASES_PER_RAD = NUM_PHASES / math.tau
MARK_LENGTH = 1.2  # rad, of the white mark on a wheel


class CarSprite:
    """Draws the car into observations of one size."""

    def __init__(self, size: int, *, is_gray: bool) -> None:
        self._area = Area(size, *WINDOW, is_gray=is_gray)
        self._far: dict[float, Array] = {}
        self._rear: dict[tuple[int, int], Array] = {}  # with the hull
        self._front: dict[tuple[int, int, int, int], Array] = {}

    def draw(self, picture: Array, car: Any, zoom: float) -> None:
        """Draw the car on a picture of the track."""
        layer = self._near_layer(car.wheels) if zoom == FULL_ZOOM else self._far_layer(zoom)
        pixels = picture[self._area.pixels]
        pixels[:] = pixels * layer[..., -1:] + layer[..., :-1]

    def _near_layer(self, wheels: Sequence[Any]) -> Array:
        first, second, third, fourth = (int(wheel.phase * PHASES_PER_RAD) % NUM_PHASES for wheel in wheels)
        left, right = (round(wheel.joint.angle * ANGLES_PER_RAD) for wheel in wheels[:2])
        rear = self._rear.get((third, fourth))
        if rear is None:
            rear = self._hull(FULL_ZOOM) + self._wheel(2, 0, third, FULL_ZOOM) + self._wheel(3, 0, fourth, FULL_ZOOM)
            self._rear[third, fourth] = rear
        front = self._front.get((left, right, first, second))
        if front is None:
            front = self._wheel(0, left, first, FULL_ZOOM) + self._wheel(1, right, second, FULL_ZOOM)
            self._front[left, right, first, second] = front
        return rear + front

    def _far_layer(self, zoom: float) -> Array:
        """Return the whole car with its wheels straight."""
        if zoom not in self._far:
            self._far[zoom] = self._hull(zoom) + sum(self._wheel(index, 0, 0, zoom) for index in range(4))
        return self._far[zoom]

    def _hull(self, zoom: float) -> Array:
        """Return the colour to add and the share of the track to keep, [rows, columns, channels + 1]."""
        image, surface = self._area.blank()
        self._fill_hull(surface, _opaque(HULL_COLOR), zoom)
        layer = self._layer(image)
        layer[..., :-1] += 0.5  # so that truncation rounds
        layer[..., -1] += 1.0
        return layer

    def _wheel(self, index: int, angle: int, phase: int, zoom: float) -> Array:
        """Return what a wheel adds to the layer of the hull, which hides a part of it."""
        image, surface = self._area.blank()
        turn, (x, y) = angle / ANGLES_PER_RAD, car_dynamics.WHEELPOS[index]
        cos, sin = math.cos(turn), math.sin(turn)
        for low, high, color in _stripes((phase + 0.5) / PHASES_PER_RAD):
            corners = [(-1.0, low), (1.0, low), (1.0, high), (-1.0, high)]
            scaled = [(side * car_dynamics.WHEEL_W, end * car_dynamics.WHEEL_R) for side, end in corners]
            turned = [(x + a * cos - b * sin, y + a * sin + b * cos) for a, b in scaled]
            self._fill(surface, _opaque(color), turned, zoom)
        self._fill_hull(surface, (0, 0, 0, 0), zoom)
        return self._layer(image)

    def _fill_hull(self, surface: pygame.Surface, color: tuple[int, ...], zoom: float) -> None:
        for polygon in HULL:
            self._fill(surface, color, polygon, zoom)

    def _fill(
        self, surface: pygame.Surface, color: tuple[int, ...], polygon: Sequence[tuple[float, float]], zoom: float
    ) -> None:
        """Fill a polygon in the car's own coordinates, on a window that will be turned upside down."""
        left, bottom = self._area.left, WINDOW_H - self._area.top - self._area.height
        scale = zoom * car_dynamics.SIZE
        points = [(WINDOW_W / 2 + x * scale - left, WINDOW_H / 4 + y * scale - bottom) for x, y in polygon]
        pygame.draw.polygon(surface, color, points)

    def _layer(self, image: Array) -> Array:
        """Return colours and the negative of opacity."""
        colors, opacity = self._area.shrink(image[::-1])
        return np.concatenate([colors, -opacity], axis=-1).astype(np.float32)


def _opaque(color: tuple[int, int, int]) -> tuple[int, ...]:
    return (*shown(np.array(color)).tolist(), 255)


def _stripes(phase: float) -> list[tuple[float, float, tuple[int, int, int]]]:
    """Return the stripes that are seen of a wheel from above, in radii from its middle: the tyre, and a white mark.

    The mark is a part of the circumference and is seen while it is on the upper half; over the edge it is cut off.
    """
    stripes = [(-1.0, 1.0, car_dynamics.WHEEL_COLOR)]
    ends = (phase, phase + MARK_LENGTH)
    if any(math.sin(end) <= 0.0 for end in ends):
        low, high = (math.cos(end) if math.sin(end) <= 0.0 else math.copysign(1.0, math.cos(end)) for end in ends)
        stripes.append((low, high, car_dynamics.WHEEL_WHITE))
    return stripes
