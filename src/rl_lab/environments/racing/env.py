"""Gymnasium's CarRacing with the two things exchanged that take its time: how it draws, and how it talks to Box2D."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.box2d.car_racing import PLAYFIELD, SCALE, ZOOM, CarRacing
from gymnasium.utils import EzPickle

from rl_lab.environments.hosting.foreign import config_error
from rl_lab.environments.racing.area import FULL_ZOOM, Array
from rl_lab.environments.racing.drive import STEP_S, Drive, TileListener
from rl_lab.environments.racing.indicators import Indicators
from rl_lab.environments.racing.map import TrackMap
from rl_lab.environments.racing.sprite import CarSprite

# Steering to the left, gas and brake: do nothing, steer right, steer left, gas, brake.
DISCRETE_CONTROLS = ((0.0, 0.0, 0.0), (-0.6, 0.0, 0.0), (0.6, 0.0, 0.0), (0.0, 0.2, 0.0), (0.0, 0.0, 0.8))
SIZES = range(32, 257, 8)  # the bar of indicators is an eighth of the picture


class FastCarRacing(CarRacing):
    """CarRacing-v3 observed through a bitmap of its track.

    Args:
        size: Width and height of the observation in pixels, a multiple of 8 from 32 to 256; CarRacing-v3 has 96.
        grayscale: Observe the luma of the picture, [size, size, 1], instead of its colours.
        lap_complete_percent: Share of the tiles that must be visited for a lap to count.
        domain_randomize: Draw the colours of road and grass anew for each episode.
        continuous: Steering, gas and brake as numbers; false: five discrete actions.
        render_mode: rgb_array, human, state_pixels or null; the first two are drawn as CarRacing-v3 draws them.
        verbose: Print how the generation of tracks goes.
    """

    car: Any  # Box2D has no types

    def __init__(
        self,
        *,
        size: int = 96,
        grayscale: bool = False,
        lap_complete_percent: float = 0.95,
        domain_randomize: bool = False,
        continuous: bool = True,
        render_mode: str | None = None,
        verbose: bool = False,
    ) -> None:
        if size not in SIZES:
            raise config_error(f"environment.env_kwargs.size is {size!r}: a multiple of 8 from 32 to 256 is needed")
        options: dict[str, Any] = {"lap_complete_percent": lap_complete_percent, "domain_randomize": domain_randomize}
        options |= {"continuous": continuous, "render_mode": render_mode, "verbose": verbose}
        super().__init__(**options)
        EzPickle.__init__(self, size=size, grayscale=grayscale, **options)
        self._map = TrackMap(size, is_gray=grayscale)
        self._sprite, self._indicators = _overlays(size, is_gray=grayscale)
        self._visited: set[int] = set()  # tiles that are shown so
        self._drive: Drive | None = None
        self._listener: TileListener | None = None
        self._planes = (1 if grayscale else 3, size, size)
        self.observation_space = gymnasium.spaces.Box(0, 255, (*self._planes[1:], self._planes[0]), np.uint8)

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Apply the controls for a fiftieth of a second; None, which only `reset` may give, leaves them alone."""
        if self.render_mode is not None:
            result: tuple[Array, float, bool, bool, dict[str, Any]] = super().step(action)  # which leaves skid marks
            return result
        if self._drive is None:
            self._drive = Drive(self.car)
            self._listener = TileListener(self)  # the world does not keep it alive
            self.world.contactListener = self._listener
        if action is not None:
            self._drive.control(*self._controls(action))
        self._drive.push()
        self.world.Step(STEP_S, 6 * 30, 2 * 30)
        self.t += STEP_S
        self.state = self._picture()
        return (self.state, 0.0, False, False, {}) if action is None else self._outcome()

    def _controls(self, action: Any) -> tuple[float, float, float]:
        """Return steering to the left, gas and brake."""
        if self.continuous:
            steering, gas, brake = action.tolist()
            return -steering, gas, brake
        if not self.action_space.contains(action):
            raise gymnasium.error.InvalidAction(f"{action!r} is not an action of {self.action_space}")
        return DISCRETE_CONTROLS[int(action)]

    def _outcome(self) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Return what a step with an action led to; tiles have been counted while they were touched."""
        self.reward -= 0.1
        reward, self.prev_reward = self.reward - self.prev_reward, self.reward
        x, y = self.car.hull.position
        if abs(x) > PLAYFIELD or abs(y) > PLAYFIELD:
            return self.state, -100.0, True, False, {"lap_finished": False}
        if self.new_lap or self.tile_visited_count == len(self.track):
            return self.state, reward, True, False, {"lap_finished": True}
        return self.state, reward, False, False, {}

    def _create_track(self) -> bool:
        is_closed: bool = super()._create_track()
        if is_closed:
            self._map.bake(self.road_poly, self.bg_color, self.grass_color)
            # Borders have tuples for colours, tiles an array of their own, which the contact listener changes.
            tiles = [corners for corners, color in self.road_poly if isinstance(color, np.ndarray)]
            self._map.prepare_visits(tiles, self.road_color)
            self._visited = set()
            self._drive = None  # there will be a new car
        return is_closed

    def _render(self, mode: str) -> Any:
        return self._picture() if mode == "state_pixels" else super()._render(mode)

    def _picture(self) -> Array:
        """Return what CarRacing-v3 would draw: the track below, the car and the indicators on top of it."""
        if self.tile_visited_count != len(self._visited):
            self._show_visited()
        hull = self.car.hull
        x, y = hull.position
        zoom = FULL_ZOOM if self.t >= 1.0 else SCALE * (0.1 * (1.0 - self.t) + ZOOM * self.t)
        packed = self._map.sample(x, y, hull.angle, zoom)  # [H, W], a byte per channel
        planes = np.zeros(self._planes, np.uint8)  # [C, H, W] in memory, as networks want it
        planes[0, : len(packed)] = packed
        for channel in range(1, len(planes)):
            planes[channel, : len(packed)] = packed >> (8 * channel)
        picture = planes.transpose(1, 2, 0)
        self._sprite.draw(picture, self.car, zoom)
        self._indicators.draw(picture, self.car, self.reward)
        return picture

    def _show_visited(self) -> None:
        """Show tiles in the plain colour of the road once a wheel has touched them, as CarRacing does."""
        for wheel in self.car.wheels:
            for tile in wheel.tiles:
                if tile.idx not in self._visited:
                    self._visited.add(tile.idx)
                    self._map.visit(tile.idx)


@lru_cache
def _overlays(size: int, *, is_gray: bool) -> tuple[CarSprite, Indicators]:
    """Return the parts that all environments of a process share, because they keep what they once drew."""
    return CarSprite(size, is_gray=is_gray), Indicators(size, is_gray=is_gray)
