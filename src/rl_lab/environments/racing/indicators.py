"""The bar at the lower edge of CarRacing's picture: score, speed, rotation of the wheels, steering and gyroscope.

Indicators are drawn when a value is first shown and kept. They lie side by side on black, so that a bar is their sum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pygame
from gymnasium.envs.box2d.car_racing import WINDOW_H, WINDOW_W

from rl_lab.environments.racing.area import Area, Array, shown

UNIT_W, UNIT_H = WINDOW_W // 40, WINDOW_H // 40
TOP, BASE = WINDOW_H - 5 * UNIT_H, WINDOW_H - UNIT_H  # of the bar, and of what stands in it
WHITE = (255, 255, 255)
FONT_SIZE, SCORE_X, SCORE_Y = 42, 60, WINDOW_H - 5 * UNIT_H // 2
SPEED, FRONT_LEFT, FRONT_RIGHT, REAR_LEFT, REAR_RIGHT, STEERING, GYROSCOPE = (
    5,
    7,
    8,
    9,
    10,
    20,
    30,
)  # units from the left
COLORS = {SPEED: WHITE, FRONT_LEFT: (0, 0, 255), FRONT_RIGHT: (0, 0, 255), REAR_LEFT: (51, 0, 255)}
COLORS |= {REAR_RIGHT: (51, 0, 255), STEERING: (0, 255, 0), GYROSCOPE: (255, 0, 0)}
MIN_SHOWN = 1e-4  # a smaller value has no indicator
HIDDEN = -1
LEFTMOST = 400  # that a gyroscope shows; further left are others' places

Part = tuple[tuple[slice, slice], Array]
Box = tuple[int, int, int, int]  # left, top, right and bottom, all of them inside


class Indicators:
    """Draws the bar into observations of one size."""

    def __init__(self, size: int, *, is_gray: bool) -> None:
        self._size, self._is_gray = size, is_gray
        self._scores: dict[str, Part] = {}
        self._parts: dict[tuple[int, ...], Part] = {}

    def draw(self, picture: Array, car: Any, reward: float) -> None:
        """Draw the bar on a picture whose lowest eighth is black."""
        score = f"{reward:04.0f}"
        if score not in self._scores:
            self._scores[score] = self._make_score(score)
        pixels, values = self._scores[score]
        picture[pixels] = values
        hull = car.hull
        first, second, third, fourth = (_height(wheel.omega, 0.01) for wheel in car.wheels)
        ends = (
            (SPEED, _height(hull.linearVelocity.length, 0.02)),
            (FRONT_LEFT, first, second),
            (REAR_LEFT, third, fourth),
            (STEERING, _width(STEERING, car.wheels[0].joint.angle, -10.0)),
            (GYROSCOPE, _width(GYROSCOPE, hull.angularVelocity, -0.8)),
        )
        for key in ends:
            part = self._parts.get(key)
            if part is None:
                part = self._parts[key] = self._make_part(*key)
            picture[part[0]] += part[1]

    def _make_part(self, place: int, *ends: int) -> Part:
        """Return the indicators at neighbouring places."""
        boxes = [_box(place + index, end) for index, end in enumerate(ends)]
        area = self._area(min(box[0] for box in boxes), max(box[2] for box in boxes))
        image, surface = area.blank()
        for index, (left, top, right, bottom) in enumerate(boxes):
            if ends[index] != HIDDEN:
                rectangle = (left - area.left, top - area.top, right - left + 1, bottom - top + 1)
                surface.fill((*shown(np.array(COLORS[place + index])).tolist(), 255), rectangle)
        return area.pixels, area.shrink(image)[0].astype(np.uint8)

    def _make_score(self, text: str) -> Part:
        area = self._area(0, SPEED * UNIT_W - 1)
        image, surface = area.blank()
        pygame.font.init()
        font = pygame.font.Font(pygame.font.get_default_font(), FONT_SIZE)
        written = font.render(text, True, shown(np.array(WHITE)).tolist(), (0, 0, 0))
        surface.blit(written, written.get_rect(center=(SCORE_X - area.left, SCORE_Y - area.top)))
        return area.pixels, area.shrink(image)[0].astype(np.uint8)

    def _area(self, left: int, right: int) -> Area:
        return Area(self._size, left, TOP, right + 1, WINDOW_H, is_gray=self._is_gray)


def _height(value: float, gain: float) -> int:
    """Return the row that an upright indicator reaches to."""
    return int(BASE - UNIT_H * gain * value) if abs(value) > MIN_SHOWN else HIDDEN


def _width(place: int, value: float, gain: float) -> int:
    """Return the column that a level indicator reaches to."""
    return int(UNIT_W * (place + gain * value)) if abs(value) > MIN_SHOWN else HIDDEN


def _box(place: int, end: int) -> Box:
    """Return the box between an indicator's base and its end, which is kept on the bar."""
    left = place * UNIT_W
    if place in (STEERING, GYROSCOPE):
        end = min(max(end, LEFTMOST), WINDOW_W - 1)
        return min(left, end), WINDOW_H - 4 * UNIT_H, max(left, end), WINDOW_H - 2 * UNIT_H
    end = min(max(end, TOP), WINDOW_H - 1)
    # The column that wheels share is left to the next one: a sum must not count it twice.
    right = left + UNIT_W - (place in (FRONT_LEFT, FRONT_RIGHT, REAR_LEFT))
    return left, min(end, BASE), right, max(end, BASE)
