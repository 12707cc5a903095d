"""What a robot sees, checked before anybody acts on it or learns from it. Knows no torch.

Another size or kind of picture, a number that is missing or not finite: an error in one line that names it. A camera
that shows the same picture again and again while the robot moves is frozen, and a wall clock that jumps is told: there
one line is logged, and whoever steps the robot asks `is_blind`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import numpy as np

from rl_lab.core.errors import EnvironmentFault
from rl_lab.human.cell.driver import Array, Driver

_JUMP_S = 1.0  # between two looks, of the wall clock beside the monotonic one
_DROPPED_S = 60.0  # between two lines on dropped frames of a camera: a slow one drops some all the time
logger = logging.getLogger(__name__)


class Senses:
    """Looks at a robot through its driver.

    Args:
        driver: Of the robot.
        names: Arrays of numbers that are looked at.
        cameras: Those that are looked at.
        size: Height and width of their pictures.
        max_same: Looks with the same picture, the robot moving, after which a camera is frozen; None: never.
    """

    def __init__(
        self, driver: Driver, names: Sequence[str], cameras: Sequence[str], size: tuple[int, int], max_same: int | None
    ) -> None:
        self._driver, self._names, self._cameras, self._size = driver, tuple(names), tuple(cameras), size
        self._max_same = max_same
        self._state: Array | None = None  # at the last look
        self._pictures: dict[str, Array] = {}
        self._num_same = dict.fromkeys(cameras, 0)
        self._num_dropped = dict.fromkeys(cameras, 0)  # not told yet
        self._told_at: dict[str, float] = {}  # of dropped frames, monotonic
        self._offset_s = _clock_offset_s()

    @property
    def is_blind(self) -> bool:
        """Return whether a camera is frozen."""
        return self._max_same is not None and any(count >= self._max_same for count in self._num_same.values())

    def look(self) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return numbers and pictures by name."""
        self._watch_clock()
        shown = self._driver.observe()
        numbers = {name: self._numbers(name, shown) for name in self._names}
        pictures = {camera: self._picture(camera) for camera in self._cameras}
        if self._max_same is not None and pictures:
            self._watch_cameras(self._numbers("state", shown), pictures, self._max_same)
        return numbers, pictures

    def _numbers(self, name: str, shown: dict[str, Array]) -> Array:
        entries = self._driver.layout.numbers[name]
        if name not in shown:
            raise EnvironmentFault(f"the robot shows no {name!r}, only {', '.join(shown) or 'nothing'}")
        values = np.asarray(shown[name])
        if values.shape != (len(entries),) or values.dtype.kind not in "fiub":
            text = f"{values.dtype} of shape {values.shape}, not {len(entries)} numbers"
            raise EnvironmentFault(f"the robot's {name!r} is {text}")
        values = values.astype(np.float32, copy=False)
        if not np.isfinite(values).all():
            entry = entries[int(np.flatnonzero(~np.isfinite(values))[0])]
            raise EnvironmentFault(f"the robot's {name!r} is not finite: {entry}")
        return values

    def _picture(self, camera: str) -> Array:
        picture, wanted = np.asarray(self._driver.draw(camera, *self._size)), (*self._size, 3)
        if picture.shape != wanted or picture.dtype != np.uint8:
            found = f"{picture.dtype} of shape {picture.shape}"
            raise EnvironmentFault(f"camera {camera!r} shows {found}, not uint8 of shape {wanted}")
        return picture

    def _watch_cameras(self, state: Array, pictures: dict[str, Array], max_same: int) -> None:
        """Count how often a picture was the same although the robot had moved; a real camera is never so still."""
        has_moved = self._state is not None and not np.array_equal(state, self._state)
        for camera, picture in pictures.items():
            is_same = camera in self._pictures and np.array_equal(picture, self._pictures[camera])
            before = self._num_same[camera]
            self._num_same[camera] = count = before + has_moved if is_same else 0
            if count > before and count == max_same:
                text = "camera %s: %d times the picture before, while the robot moved: the robot holds until it changes"
                logger.warning(text, camera, count)
            elif count > before == 0:
                self._tell_dropped(camera)
            elif before >= max_same and count == 0:
                logger.warning("camera %s: it changes again", camera)
        self._state = state.copy()
        self._pictures = {camera: picture.copy() for camera, picture in pictures.items()}

    def _tell_dropped(self, camera: str) -> None:
        """Tell of the first dropped frame at once, and then how many there were, at a limited rate."""
        self._num_dropped[camera] += 1
        now = time.monotonic()
        if now - self._told_at.get(camera, -np.inf) >= _DROPPED_S:
            text = "camera %s: the picture before, while the robot moved: frames dropped since this was last told: %d"
            logger.warning(text, camera, self._num_dropped[camera])
            self._num_dropped[camera], self._told_at[camera] = 0, now

    def _watch_clock(self) -> None:
        """Tell of a jump. Control goes by the monotonic clock; what is recorded has the time that the clock shows."""
        jump_s, self._offset_s = _clock_offset_s() - self._offset_s, _clock_offset_s()
        if abs(jump_s) > _JUMP_S:
            logger.warning("the wall clock jumped by %+.1f s: so do the times of steps; control goes on", jump_s)


def _clock_offset_s() -> float:
    return time.time() - time.monotonic()
