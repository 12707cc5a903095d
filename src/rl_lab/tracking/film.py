"""Films of any environment: mp4 where ffmpeg is installed, else an animated PNG."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from rl_lab.core.mp4 import Mp4Writer
from rl_lab.ops.png import encode_png
from rl_lab.tracking.atomic import replace_file, temporary_sibling

FPS = 30  # where the environment does not tell how fast it is
MAX_FPS = 50


class Film:
    """One file that has its name once it is closed; an earlier one of that name is replaced.

    Args:
        path: Where it goes, without its ending.
        fps: Pictures per second.
    """

    def __init__(self, path: Path, fps: float) -> None:
        self._fps, self._is_mp4 = fps, find_spec("imageio_ffmpeg") is not None
        self.path = path.with_name(path.name + (".mp4" if self._is_mp4 else ".png"))
        self._part = temporary_sibling(path).with_suffix(".mp4")
        self._writer: Mp4Writer | None = None
        self._pictures: list[Tensor] = []  # of a PNG, which is written at the end

    def add(self, picture: Tensor) -> None:
        """Append a picture [H, W, 3] uint8, as large as the first."""
        if not self._is_mp4:
            self._pictures.append(picture.cpu())
            return
        if self._writer is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = Mp4Writer(self._part, self._fps)
        self._writer.add(picture.cpu().numpy())

    def close(self) -> Path | None:
        """Show the file and return its path; None when nothing was added."""
        if self._writer is not None:
            self._writer.close()
            os.replace(self._part, self.path)
        elif self._pictures:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.path, encode_png(torch.stack(self._pictures), self._fps), durable=False)
        else:
            return None
        self._writer, self._pictures = None, []
        return self.path

    def drop(self) -> None:
        """Forget what was added since it was opened or closed."""
        if self._writer is not None:
            self._writer.close()
            self._part.unlink(missing_ok=True)
        self._writer, self._pictures = None, []


class Camera:
    """Films in real time, as far as the steps per second are known.

    Args:
        draw: Returns the picture of the present state.
        path: Of the film, without its ending.
        rate: Steps per second of the environment.
        fps: Pictures per second; None: one each step, up to 50.
    """

    def __init__(
        self, draw: Callable[[], Tensor], path: Path, rate: float | None = None, fps: int | None = None
    ) -> None:
        wanted = fps or min(rate or FPS, MAX_FPS)
        self._every = max(1, round((rate or wanted) / wanted))
        self._film = Film(path, (rate or wanted) / self._every)
        self._draw, self.steps = draw, 0
        self.path: Path | None = None

    def look(self) -> None:
        """Take the picture of this step when it is its turn."""
        if self.steps % self._every == 0:
            self._film.add(self._draw())
        self.steps += 1

    def close(self) -> None:
        """Write what was filmed."""
        self.path = self._film.close()

    def drop(self) -> None:
        """Forget what was filmed and not written."""
        self._film.drop()


def resized(picture: Tensor, width: int, height: int) -> Tensor:
    """Return a picture [H, W, 3] uint8 in another size."""
    planes = picture.permute(2, 0, 1).unsqueeze(0).float()
    planes = F.interpolate(planes, (height, width), mode="bilinear", align_corners=False, antialias=True)
    return planes.squeeze(0).permute(1, 2, 0).round().clamp(0, 255).to(torch.uint8)
