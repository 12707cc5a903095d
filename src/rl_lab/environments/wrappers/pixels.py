"""Wrappers of pictures, uint8 [H, W, C] or [H, W], and of the last few observations together."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rl_lab.environments.exact.adapter import LayerState
from rl_lab.environments.hosting.foreign import config_error
from rl_lab.environments.wrappers.base import check_number
from rl_lab.environments.wrappers.entries import EntryWrapper

# Red, green and blue in the luma of ITU-R BT.601, in 1 / 2^15. Sums stay below 2^24: float32 holds them exactly.
LUMA = np.array([9798, 19235, 3735], np.float32)
MOST_CHANNELS = 4  # that OpenCV scales at once


class FrameStack(EntryWrapper):
    """Shows the last few observations side by side, the newest last; at first all are the first one.

    Pictures are joined along their channels, [H, W] pictures become channels, other arrays are joined along their last
    axis.

    Args:
        frames: How many.
        keys: Which entries of a dict observation; null: all arrays but action_mask.
    """

    name, needs = "frame_stack", "an array (Box)"

    def __init__(self, env: gymnasium.Env[Any, Any], *, frames: int, keys: Sequence[str] | None = None) -> None:
        self._count: int = check_number(self.name, frames, low=1, is_count=True)
        self._frames: dict[str, deque[NDArray[Any]]] = {}
        self._is_picture: dict[str, bool] = {}  # without channels
        super().__init__(env, keys)

    def fits(self, space: spaces.Box) -> bool:
        """Return whether there is an axis to join along."""
        return len(space.shape) > 0

    def change_space(self, key: str, space: spaces.Box) -> spaces.Box:
        """Return the space of the joined frames."""
        self._frames[key] = deque(maxlen=self._count)
        self._is_picture[key] = space.dtype == np.uint8 and len(space.shape) == 2
        low, high = (self._join(key, [bound] * self._count) for bound in (space.low, space.high))
        return spaces.Box(low, high, dtype=space.dtype)

    def change(self, key: str, value: NDArray[Any], *, is_first: bool) -> NDArray[Any]:
        """Return the joined frames."""
        self._frames[key].extend([value.copy()] * (self._count if is_first else 1))
        return self._join(key, list(self._frames[key]))

    def _join(self, key: str, frames: list[NDArray[Any]]) -> NDArray[Any]:
        return np.stack(frames, axis=-1) if self._is_picture[key] else np.concatenate(frames, axis=-1)

    def get_state(self) -> LayerState:
        """Return the frames of each entry, [frames, ...]."""
        return {key: np.stack(list(frames)) for key, frames in self._frames.items()}

    def set_state(self, state: LayerState) -> None:
        """Hold these frames."""
        for key, frames in self._frames.items():
            frames.extend(np.array(state[key]))


class Grayscale(EntryWrapper):
    """Turns colours into their luma, as OpenCV does.

    Args:
        keep_channel: Whether the result is [H, W, 1] instead of [H, W].
        keys: Which entries of a dict observation; null: all colour pictures.
    """

    name, needs = "grayscale", "a picture, uint8 [H, W, 3]"

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        *,
        keep_channel: bool = False,
        keys: Sequence[str] | None = None,
    ) -> None:
        self._keep_channel = keep_channel
        super().__init__(env, keys)

    def fits(self, space: spaces.Box) -> bool:
        """Return whether it is a colour picture."""
        return space.dtype == np.uint8 and len(space.shape) == 3 and space.shape[2] == 3

    def change_space(self, key: str, space: spaces.Box) -> spaces.Box:
        """Return the space of the grey picture."""
        height, width, _ = space.shape
        return spaces.Box(0, 255, (height, width, 1) if self._keep_channel else (height, width), np.uint8)

    def change(self, key: str, value: NDArray[Any], *, is_first: bool) -> NDArray[Any]:
        """Return the grey picture."""
        sums = value.reshape(-1, 3).astype(np.float32) @ LUMA + 16384
        gray = (sums.astype(np.uint32) >> 15).astype(np.uint8).reshape(value.shape[:2])
        return gray[..., None] if self._keep_channel else gray


class Resize(EntryWrapper):
    """Scales pictures by the mean over areas (OpenCV's INTER_AREA).

    Args:
        size: Height and width, one number for a square or [height, width].
        keys: Which entries of a dict observation; null: all pictures.
    """

    name, needs = "resize", "a picture, uint8 [H, W, C] or [H, W]"

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        *,
        size: int | Sequence[int],
        keys: Sequence[str] | None = None,
    ) -> None:
        pair = [size, size] if isinstance(size, int) else size
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise config_error(f"environment.wrappers.resize must be a number or [height, width], not {size!r}")
        self._height, self._width = (check_number(self.name, side, low=1, is_count=True) for side in pair)
        try:
            import cv2
        except ImportError as error:
            needed = "needs OpenCV: pip install 'rl-lab[atari]'"
            raise config_error(f"environment.wrappers.resize {needed} ({error})") from error
        self._scale, self._mode = cv2.resize, cv2.INTER_AREA
        super().__init__(env, keys)

    def fits(self, space: spaces.Box) -> bool:
        """Return whether it is a picture."""
        return space.dtype == np.uint8 and len(space.shape) in (2, 3)

    def change_space(self, key: str, space: spaces.Box) -> spaces.Box:
        """Return the space of the scaled picture."""
        return spaces.Box(0, 255, (self._height, self._width, *space.shape[2:]), np.uint8)

    def change(self, key: str, value: NDArray[Any], *, is_first: bool) -> NDArray[Any]:
        """Return the scaled picture."""
        if value.ndim == 3 and value.shape[2] > MOST_CHANNELS:
            parts = range(0, value.shape[2], MOST_CHANNELS)
            return np.concatenate([self._scaled(value[..., first : first + MOST_CHANNELS]) for first in parts], axis=-1)
        return self._scaled(value)

    def _scaled(self, picture: NDArray[Any]) -> NDArray[Any]:
        scaled = self._scale(np.ascontiguousarray(picture), (self._width, self._height), interpolation=self._mode)
        return np.asarray(scaled).reshape(self._height, self._width, *picture.shape[2:])  # OpenCV drops a lone channel
