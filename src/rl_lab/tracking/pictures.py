"""Pictures of a run, as `media/<group>/<name>_<env step>.png`: the same run writes the same bytes, resumed or not."""

from __future__ import annotations

from pathlib import Path

from rl_lab.core.metrics import Metrics, Numbers, Picture
from rl_lab.ops.png import encode_png
from rl_lab.tracking.atomic import replace_file


class Pictures:
    """Takes pictures out of metrics and holds them until it is known at which env step they were made.

    Args:
        media: The run's folder for them.
    """

    def __init__(self, media: Path) -> None:
        self._media = media
        self._waiting: dict[str, Picture] = {}

    def take(self, group: str, metrics: Metrics) -> Numbers:
        """Keep the pictures among `metrics` and return the rest."""
        numbers = {name: value for name, value in metrics.items() if not isinstance(value, Picture)}
        if len(numbers) != len(metrics):
            self._waiting |= {f"{group}/{name}": value for name, value in metrics.items() if isinstance(value, Picture)}
        return numbers

    def drain(self) -> list[tuple[str, bytes]]:
        """Return `group/name` and PNG file of what waits, and forget it."""
        if not self._waiting:
            return []
        waiting, self._waiting = self._waiting, {}
        return [(key, encode_png(picture.pixels)) for key, picture in waiting.items()]

    def save(self, key: str, step: int, png: bytes) -> None:
        """Write a picture, over one of the same name and step."""
        path = self._media / f"{key}_{step:09d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, png, durable=False)
