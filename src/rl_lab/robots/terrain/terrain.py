"""A field of tiles: difficulty grows along x in levels, the kind of ground changes along y in columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import mujoco
import numpy as np
import torch
from torch import Tensor

from rl_lab.core import ConfigError, unknown_name
from rl_lab.core.free_memory import free_host_memory
from rl_lab.robots.managers.terms import not_negative, number, numbers, positive, whole
from rl_lab.robots.terrain.boxes import Block, cover, terraced
from rl_lab.robots.terrain.tiles import PLATFORM, TILES

BASE = 1.0  # m of ground below the lowest point
BYTES_PER_POINT = 64  # spec, compiled model, a copy per device, and what compiling takes
MIXED = {"flat": 0.1, "rough": 0.2, "slope_up": 0.1, "slope_down": 0.1, "stairs_up": 0.25, "stairs_down": 0.25}


class Terrain:
    """Tiles of ground: one height field, or boxes.

    Args:
        tiles: Kinds of ground and the share of columns each gets; see `robots.terrain.tiles`.
        num_levels: Levels of difficulty, along x.
        num_columns: Tiles beside each other in a level, along y.
        tile_size: Length of a tile's side in m.
        resolution: Metres between neighbouring height points.
        border: Metres of level ground around all tiles.
        difficulty: Difficulty of the first and of the last level, in [0, 1].
        friction: Sliding friction of the ground; a foot with a higher priority keeps its own.
        seed: Of the random heights.
        shape: `field` is one height field of triangles. `boxes` are terraces: the warp backend computes contacts with
            boxes exactly, with a height field not always (see docs/robots.md), but each box costs time there.
    """

    def __init__(
        self,
        tiles: Mapping[str, float] | None = None,
        num_levels: int = 10,
        num_columns: int = 20,
        tile_size: float = 8.0,
        resolution: float = 0.1,
        border: float = 5.0,
        difficulty: tuple[float, float] = (0.0, 1.0),
        friction: float = 1.0,
        seed: int = 0,
        shape: Literal["field", "boxes"] = "field",
    ) -> None:
        shares = shares_of(MIXED if tiles is None else tiles)
        check_settings(shares, num_levels, num_columns, tile_size, resolution)
        not_negative("terrain.border", border)
        not_negative("terrain.friction", friction)
        whole("terrain.seed", seed, least=0)
        first, last = difficulty_of(difficulty)
        if shape not in ("field", "boxes"):
            raise ConfigError(unknown_name("shape of terrain", shape, ("field", "boxes")))
        self.num_levels, self.num_columns, self.tile_size, self.resolution = (
            num_levels,
            num_columns,
            tile_size,
            resolution,
        )
        self.friction, self.kinds = friction, columns_of(shares, num_columns)
        self._has_boxes, self.blocks = shape == "boxes", list[Block]()
        cells, edge = round(tile_size / resolution), round(border / resolution)
        points = (num_levels * cells + 2 * edge + 1, num_columns * cells + 2 * edge + 1)
        check_memory(points)
        self.heights = np.zeros(points, np.float32)  # [X, Y] in m at the corners of cells; of boxes, all over the cell
        levels = np.linspace(first, last, num_levels)
        rng = np.random.default_rng(seed)
        for level in range(num_levels):
            for column, kind in enumerate(self.kinds):
                x, y = edge + level * cells, edge + column * cells
                ground = TILES[kind](float(levels[level]), cells, resolution, rng)
                if self._has_boxes:
                    ground = terraced(kind, ground, resolution)
                    self.blocks += [Block(x + a, x + b, y + c, y + d, h) for a, b, c, d, h in cover(ground)]
                self.heights[x : x + cells, y : y + cells] = ground
        if self._has_boxes and edge:
            self.blocks += cover_border(points[0] - 1, points[1] - 1, edge)
        self.half_size = ((points[0] - 1) * resolution / 2, (points[1] - 1) * resolution / 2)  # m from the centre
        self.origins = self._origins(cells, edge)  # [L, C, 3] where a robot of that tile starts, on the ground
        self._on: dict[torch.device, Tensor] = {}

    def _origins(self, cells: int, edge: int) -> Tensor:
        origins = torch.zeros(self.num_levels, self.num_columns, 3)
        reach = min(cells // 2, round(PLATFORM / 2 / self.resolution))
        for level in range(self.num_levels):
            for column in range(self.num_columns):
                x, y = edge + level * cells + cells // 2, edge + column * cells + cells // 2
                origins[level, column, 0] = x * self.resolution - self.half_size[0]
                origins[level, column, 1] = y * self.resolution - self.half_size[1]
                around = self.heights[x - reach : x + reach + 1, y - reach : y + reach + 1]
                origins[level, column, 2] = float(around.max())
        return origins

    def height(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the ground's height at world points, as MuJoCo's triangles have it; outside, that of the edge."""
        grid = self._grid(x.device)
        column = ((x + self.half_size[0]) / self.resolution).clamp(0, grid.shape[0] - 1)
        row = ((y + self.half_size[1]) / self.resolution).clamp(0, grid.shape[1] - 1)
        i = column.floor().clamp(max=grid.shape[0] - 2)
        j = row.floor().clamp(max=grid.shape[1] - 2)
        u, v = column - i, row - j
        if self._has_boxes:
            return grid[i.long(), j.long()]
        flat, first = grid.flatten(), i.long() * grid.shape[1] + j.long()
        low, right = flat[first], flat[first + grid.shape[1]]
        up, far = flat[first + 1], flat[first + grid.shape[1] + 1]
        # each cell is split along the diagonal from its lower left to its upper right corner
        below = low + u * (right - low) + v * (far - right)
        above = low + v * (up - low) + u * (far - up)
        return torch.where(u >= v, below, above)

    def _grid(self, device: torch.device) -> Tensor:
        if device not in self._on:
            self._on[device] = torch.as_tensor(self.heights, device=device)
        return self._on[device]

    def add_to(self, spec: mujoco.MjSpec) -> None:
        """Add the ground to a scene, in the geom group of terrain."""
        spec.worldbody.add_light(type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL, pos=[0, 0, 5], dir=[0.2, 0.3, -1])
        if self._has_boxes:
            self._add_boxes(spec)
        else:
            self._add_field(spec)

    def _geom(self) -> dict[str, Any]:
        return {"friction": [self.friction, 0.005, 0.0001], "contype": 1, "conaffinity": 1, "group": 0}

    def _add_boxes(self, spec: mujoco.MjSpec) -> None:
        bottom = float(self.heights.min()) - BASE
        for index, (x0, x1, y0, y1, top) in enumerate(self.blocks):
            centre = [
                (x0 + x1) / 2 * self.resolution - self.half_size[0],
                (y0 + y1) / 2 * self.resolution - self.half_size[1],
            ]
            sides = [(x1 - x0) / 2 * self.resolution, (y1 - y0) / 2 * self.resolution]
            shade = 0.35 + 0.05 * (index % 4)
            spec.worldbody.add_geom(
                name=f"terrain{index}",
                type=mujoco.mjtGeom.mjGEOM_BOX,
                pos=[*centre, (top + bottom) / 2],
                size=[*sides, (top - bottom) / 2],
                rgba=[shade, shade, shade - 0.05, 1],
                **self._geom(),
            )

    def _add_field(self, spec: mujoco.MjSpec) -> None:
        low, high = float(self.heights.min()), float(self.heights.max())
        extent = max(high - low, 1e-3)
        data = ((self.heights.T - low) / extent).astype(np.float32)  # rows are y, columns x
        spec.add_hfield(
            name="terrain",
            nrow=data.shape[0],
            ncol=data.shape[1],
            size=[*self.half_size, extent, BASE],
            userdata=data.flatten(),
        )
        spec.worldbody.add_geom(
            name="terrain",
            type=mujoco.mjtGeom.mjGEOM_HFIELD,
            hfieldname="terrain",
            pos=[0, 0, low],
            rgba=[0.45, 0.45, 0.4, 1],
            **self._geom(),
        )


def cover_border(width: int, depth: int, edge: int) -> list[Block]:
    """Return the four boxes of level ground around all tiles."""
    ends = ((0, width, 0, edge), (0, width, depth - edge, depth), (0, edge, edge, depth - edge))
    return [Block(*part, 0.0) for part in (*ends, (width - edge, width, edge, depth - edge))]


def columns_of(shares: Mapping[str, float], num_columns: int) -> tuple[str, ...]:
    """Return the kind of each column: as many as its share, in the order given."""
    ends = np.cumsum(list(shares.values())) / sum(shares.values())
    return tuple(list(shares)[int(np.searchsorted(ends, (c + 0.5) / num_columns))] for c in range(num_columns))


def check_settings(shares: Mapping[str, float], levels: int, columns: int, tile_size: float, resolution: float) -> None:
    """Raise ConfigError for a setting that makes no ground."""
    for kind in shares:
        if kind not in TILES:
            raise ConfigError(unknown_name("kind of terrain tile", kind, TILES))
    if not shares or min(shares.values()) < 0 or sum(shares.values()) <= 0:
        raise ConfigError(f"terrain.tiles: shares must be 0 or more and not all 0, got {dict(shares)}")
    whole("terrain.num_levels", levels)
    whole("terrain.num_columns", columns)
    positive("terrain.tile_size", tile_size)
    positive("terrain.resolution", resolution)
    if not 0 < resolution <= tile_size / 8 or abs(tile_size / resolution - round(tile_size / resolution)) > 1e-6:
        raise ConfigError(f"terrain: tile_size {tile_size} must be a multiple of resolution {resolution}, at least 8")


def shares_of(tiles: Any) -> dict[str, float]:
    """Return the share of each kind of ground."""
    if not isinstance(tiles, Mapping):
        raise ConfigError(f"terrain.tiles: must be a dict of kinds and their shares, not {tiles!r}")
    return {str(kind): number(f"terrain.tiles.{kind}", share) for kind, share in tiles.items()}


def difficulty_of(ends: Any) -> tuple[float, float]:
    """Return the difficulty of the first and of the last level, which may be the easier one."""
    values = numbers("terrain.difficulty", ends)
    if len(values) != 2 or not all(0.0 <= value <= 1.0 for value in values):
        raise ConfigError(
            f"terrain.difficulty: must be two numbers in [0, 1], of the first and last level, not {ends!r}"
        )
    return values[0], values[1]


def check_memory(shape: tuple[int, int]) -> None:
    """Raise ConfigError where the height field would not fit into the memory that is free."""
    needed = shape[0] * shape[1] * BYTES_PER_POINT
    free = free_host_memory()
    if free is not None and needed > free:
        raise ConfigError(
            f"terrain: {shape[0]} x {shape[1]} height points need about {needed / 2**30:.1f} GB, {free / 2**30:.1f} GB "
            f"are free: lower num_levels, num_columns or tile_size, or raise resolution"
        )
