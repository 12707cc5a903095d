"""The newest pictures of a robot, for any number of people who look at their own pace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from threading import Condition

from torch import Tensor

from rl_lab.ops.png import encode_png


class Shot:
    """A picture that is made a PNG file when somebody looks, in the thread of who does.

    Args:
        pixels: [H, W, 3] uint8 in memory of its own.
    """

    def __init__(self, pixels: Tensor) -> None:
        self._pixels = pixels

    @cached_property
    def png(self) -> bytes:
        """Return the PNG file."""
        return encode_png(self._pixels)


class Billboard:
    """The newest pictures, for any number of streams."""

    def __init__(self) -> None:
        self._shots: dict[str, tuple[int, Shot]] = {}  # camera -> number of the picture
        self._count, self._is_open = 0, True
        self._changed = Condition()
        self._streams: Counter[str] = Counter()  # by who looks

    @property
    def num_streams(self) -> int:
        """Return how many look."""
        return self._streams.total()

    def num_streams_of(self, who: str) -> int:
        """Return how many of them are one's own."""
        return self._streams[who]

    @contextmanager
    def watched(self, who: str) -> Iterator[None]:
        """Count one more stream of somebody who looks."""
        with self._changed:
            self._streams[who] += 1
        try:
            yield
        finally:
            with self._changed:
                self._streams[who] -= 1
                self._streams += Counter()  # forgets who has none

    def show(self, pictures: Mapping[str, Tensor]) -> None:
        """Put up new pictures by camera."""
        with self._changed:
            self._count += 1
            self._shots |= {camera: (self._count, Shot(pixels)) for camera, pixels in pictures.items()}
            self._changed.notify_all()

    def close(self) -> None:
        """End all streams."""
        with self._changed:
            self._is_open = False
            self._changed.notify_all()

    def newer(self, than: int, wait_s: float) -> tuple[int, dict[str, Shot]] | None:
        """Return pictures newer than one's number, after waiting for some; None: there will be no more."""
        with self._changed:
            if self._is_open and self._count <= than:
                self._changed.wait(wait_s)
            if not self._is_open:
                return None
            return self._count, {name: shot for name, (number, shot) in self._shots.items() if number > than}
