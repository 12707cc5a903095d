"""Where each world's robot starts on the terrain: harder tiles for those that walk far, easier ones for the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rl_lab.robots.managers.terms import check_keys, flag, not_negative, positive, whole
from rl_lab.robots.terrain.terrain import Terrain

TERRAIN_KEYS = (
    *("tiles", "num_levels", "num_columns", "tile_size", "resolution", "border", "difficulty", "friction", "seed"),
    "shape",
)
OWN = {"first_levels": 5, "curriculum": True, "scan": None}
SCAN = {"length": 1.6, "width": 1.0, "spacing": 0.1}  # m; 17 x 11 points


class TerrainCurriculum:
    """Levels and columns of all worlds on a terrain; without one, a plane where nothing changes.

    An episode that went farther than half a tile ends a level higher, one that went less than half of what was
    commanded a level lower. Whoever has done the last level gets a random one.
    """

    def __init__(self, config: Mapping[str, Any] | None, num_envs: int, device: torch.device) -> None:
        path, config = "environment.terrain", config or {}
        check_keys(path, config, (*TERRAIN_KEYS, *OWN))
        options = {**OWN, **config}
        settings = {key: config[key] for key in TERRAIN_KEYS if key in config}
        self.terrain = Terrain(**settings) if config else None
        self.scan = _scan_points(f"{path}.scan", options["scan"], device)
        self.height = None if self.terrain is None else self.terrain.height
        self._moves, self._device = flag(f"{path}.curriculum", options["curriculum"]), device
        self._first = whole(f"{path}.first_levels", options["first_levels"])
        self.levels = torch.zeros(num_envs, dtype=torch.int64, device=device)
        count = 1 if self.terrain is None else self.terrain.num_columns
        self._columns = torch.arange(num_envs, device=device) * count // num_envs
        self._places = torch.zeros(1, 1, 3, device=device)
        if self.terrain is not None:
            self._places = self.terrain.origins.to(device)

    def origins(self) -> Tensor:
        """Return where each world's robot starts, [N, 3]."""
        return self._places[self.levels, self._columns]

    def begin(self, generator: torch.Generator) -> Tensor:
        """Draw levels among the first ones, and columns too where worlds are fewer; return where to start."""
        highest, columns = min(self._first, len(self._places)), self._places.shape[1]
        self.levels = torch.randint(highest, self.levels.shape, generator=generator, device=self._device)
        if len(self.levels) < columns:  # a film of one robot shows all kinds of ground, one after another
            self._columns = torch.randint(columns, self.levels.shape, generator=generator, device=self._device)
        return self.origins()

    def end_episodes(self, walked: Tensor, wanted: Tensor, ended: Tensor, generator: torch.Generator) -> Tensor:
        """Move the worlds whose episodes end by how far they `walked` of the `wanted` metres; return where to start."""
        if self.terrain is None or not self._moves:
            return self.origins()
        up = walked > self.terrain.tile_size / 2.0
        down = (walked < wanted / 2.0) & ~up
        levels = (self.levels + up.long() - down.long()).clamp_min(0)
        count = len(self._places)
        anywhere = torch.randint(count, levels.shape, generator=generator, device=self._device)
        levels = torch.where(levels >= count, anywhere, levels)
        self.levels = torch.where(ended, levels, self.levels)
        return self.origins()

    def is_outside(self, position: Tensor) -> Tensor:
        """Return which robots [N, 3] have left the ground that there is."""
        if self.terrain is None:
            return torch.zeros(len(position), dtype=torch.bool, device=position.device)
        x, y = self.terrain.half_size
        return (position[:, 0].abs() > x - 1.0) | (position[:, 1].abs() > y - 1.0)

    def infos(self) -> dict[str, Tensor]:
        """Return the levels, to be logged."""
        return {} if self.terrain is None else {"terrain_level": self.levels.float()}

    def get_state(self) -> dict[str, Tensor]:
        """Return levels and columns."""
        return {"levels": self.levels.clone(), "columns": self._columns.clone()}

    def set_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on with these levels and columns; an early checkpoint has no columns, for they never changed."""
        self.levels = state["levels"].to(self._device, copy=True)
        self._columns = state.get("columns", self._columns).to(self._device, copy=True)


def _scan_points(path: str, config: Mapping[str, Any] | None, device: torch.device) -> Tensor:
    """Return a grid of points around the base, [P, 2], x slowest; none without a scan."""
    if config is None:
        return torch.zeros(0, 2, device=device)
    check_keys(path, config, tuple(SCAN))
    options = {key: not_negative(f"{path}.{key}", config.get(key, default)) for key, default in SCAN.items()}
    positive(f"{path}.spacing", options["spacing"])
    counts = [round(options[side] / options["spacing"]) for side in ("length", "width")]
    x, y = ((torch.arange(count + 1, device=device) - count / 2.0) * options["spacing"] for count in counts)
    return torch.cartesian_prod(x, y)
