"""Square pieces of ground: heights in m on a grid of points, level at the edge and around the centre.

Each function takes the difficulty in [0, 1], the number of cells per side, the metres per cell and a generator, and
returns heights [cells, cells] of the cells' lower left corners.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Heights = NDArray[np.float64]
Tile = Callable[[float, int, float, np.random.Generator], Heights]

PLATFORM = 1.0  # m from the centre to the edge of the level square where robots start
EDGE = 0.5  # m of level ground along the edges, so that neighbours meet
VERTICAL = 0.005  # m, the grain of random heights


def from_centre(cells: int, resolution: float) -> Heights:
    """Return the distance to the centre in m, by the larger of |x| and |y|."""
    axis = np.abs(np.arange(cells) - cells / 2) * resolution
    return np.maximum(axis[:, None], axis[None, :])


def flat(difficulty: float, cells: int, resolution: float, rng: np.random.Generator) -> Heights:
    """Return level ground."""
    return np.zeros((cells, cells))


def rough(difficulty: float, cells: int, resolution: float, rng: np.random.Generator) -> Heights:
    """Return uniform bumps of +-2 to +-8 cm on points 0.2 m apart, linear between them."""
    stride = max(1, round(0.2 / resolution))
    coarse = -(-cells // stride) + 1
    amplitude = 0.02 + 0.06 * difficulty
    grain = np.round(rng.uniform(-amplitude, amplitude, (coarse, coarse)) / VERTICAL) * VERTICAL
    at, knots = np.arange(cells) / stride, np.arange(coarse)
    rows = np.stack([np.interp(at, knots, line) for line in grain])
    return np.stack([np.interp(at, knots, line) for line in rows.T], axis=1)


def slope_up(difficulty: float, cells: int, resolution: float, rng: np.random.Generator) -> Heights:
    """Return a pyramid that rises by up to 40 % towards a platform."""
    distance = from_centre(cells, resolution)
    half = cells / 2 * resolution
    return 0.4 * difficulty * (half - EDGE - np.clip(distance, PLATFORM, half - EDGE))


def slope_down(difficulty: float, cells: int, resolution: float, rng: np.random.Generator) -> Heights:
    """Return a pit that falls by up to 40 % towards a platform."""
    return -slope_up(difficulty, cells, resolution, rng)


def stairs_up(difficulty: float, cells: int, resolution: float, rng: np.random.Generator) -> Heights:
    """Return a pyramid of steps 5 to 23 cm high and about 0.3 m deep."""
    rise, depth = 0.05 + 0.18 * difficulty, max(1, round(0.3 / resolution)) * resolution
    distance = from_centre(cells, resolution)
    half = cells / 2 * resolution
    climbed = half - EDGE - np.clip(distance, PLATFORM, half - EDGE)
    return rise * np.floor(climbed / depth + 1e-9)


def stairs_down(difficulty: float, cells: int, resolution: float, rng: np.random.Generator) -> Heights:
    """Return a pit of steps 5 to 23 cm high and about 0.3 m deep."""
    return -stairs_up(difficulty, cells, resolution, rng)


def stepping_stones(difficulty: float, cells: int, resolution: float, rng: np.random.Generator) -> Heights:
    """Return square stones, 1.0 to 0.4 m wide with gaps of 0.1 to 0.4 m between them, over a floor 0.5 m below."""
    stone = max(1, round((1.0 - 0.6 * difficulty) / resolution))
    gap = max(1, round((0.1 + 0.3 * difficulty) / resolution))
    is_stone = np.arange(cells) % (stone + gap) < stone
    heights = np.where(is_stone[:, None] & is_stone[None, :], 0.0, -0.5)
    distance = from_centre(cells, resolution)
    is_solid = (distance <= PLATFORM) | (distance >= cells / 2 * resolution - EDGE)
    return np.where(is_solid, 0.0, heights)


def gaps(difficulty: float, cells: int, resolution: float, rng: np.random.Generator) -> Heights:
    """Return a platform inside a ditch 0.1 to 0.8 m wide and 0.5 m deep."""
    width = 0.1 + 0.7 * difficulty
    distance = from_centre(cells, resolution)
    return np.where((distance > PLATFORM) & (distance <= PLATFORM + width + 1e-9), -0.5, 0.0)


TILES: dict[str, Tile] = {
    "flat": flat,
    "rough": rough,
    "slope_up": slope_up,
    "slope_down": slope_down,
    "stairs_up": stairs_up,
    "stairs_down": stairs_down,
    "stepping_stones": stepping_stones,
    "gaps": gaps,
}
