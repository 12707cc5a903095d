"""Films of any environment: mp4 where ffmpeg is installed, else an animated PNG."""

from __future__ import annotations

import importlib
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rl_lab.tracking.atomic import replace_file, temporary_sibling
from rl_lab.tracking.png import encode_png


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
        self._writer: Any = None
        self._pictures: list[Tensor] = []  # of a PNG, which is written at the end

    def add(self, picture: Tensor) -> None:
        """Append a picture [H, W, 3] uint8, as large as the first."""
        if not self._is_mp4:
            self._pictures.append(picture.cpu())
            return
        if self._writer is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            open_writer = importlib.import_module("imageio.v2").get_writer
            self._writer = open_writer(self._part, format="FFMPEG", mode="I", fps=self._fps, macro_block_size=1)
        self._writer.append_data(_even(picture).cpu().numpy())

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
        return self.path


def resized(picture: Tensor, width: int, height: int) -> Tensor:
    """Return a picture [H, W, 3] uint8 in another size."""
    planes = picture.permute(2, 0, 1).unsqueeze(0).float()
    planes = F.interpolate(planes, (height, width), mode="bilinear", align_corners=False, antialias=True)
    return planes.squeeze(0).permute(1, 2, 0).round().clamp(0, 255).to(torch.uint8)


def _even(picture: Tensor) -> Tensor:
    """Return the picture with even sides, which the codec asks for: the last row and column are repeated."""
    height, width = picture.shape[:2]
    rows = torch.arange(height + height % 2).clamp_max(height - 1)
    columns = torch.arange(width + width % 2).clamp_max(width - 1)
    return picture[rows][:, columns]
