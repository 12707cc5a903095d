"""Episodes as one HTML file: pictures, plots and interventions; it asks nothing of any network."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_lab.buffers.datasets.format import Array, Episode, EpisodeReader, Field
from rl_lab.buffers.datasets.summary import intervention_flags, segments, summarize_episode
from rl_lab.cli.data.choosing import cameras_of
from rl_lab.ops.png import encode_png
from rl_lab.tracking.atomic import replace_file

QUALITY = 80  # of JPEG pictures
MOST_LINES = 32  # of one plot
DIGITS = 5  # of a number that is plotted


def write_viewer(reader: EpisodeReader, numbers: Sequence[int], target: Path, *, every: int = 1) -> int:
    """Write the file, with pictures of every so many steps, and return its bytes."""
    content = {
        "title": f"{reader.robot or reader.path.name}: {reader.path}",
        "rate": reader.steps_per_second,
        "every": every,
        "episodes": [_episode(reader, number, every) for number in numbers],
    }
    template = files("rl_lab").joinpath("data/viewer/episodes.html").read_text()
    # `<` could end the script that holds the data; the rest of HTML means nothing there
    page = template.replace("@DATA@", json.dumps(content, allow_nan=False).replace("<", "\\u003c"))
    replace_file(target, page.encode(), durable=False)
    return len(page)


def _episode(reader: EpisodeReader, number: int, every: int) -> dict[str, Any]:
    episode = reader.read(number)
    facts = summarize_episode(episode)
    told = [f"{facts['steps']} steps, return {facts['return']:.4g}, {facts['end']}", facts["verdict"], facts["task"]]
    if facts["interventions"]:
        who = ", ".join(facts["operators"]) or "somebody"
        told.append(f"{facts['interventions']} steps by {who} in {facts['takeovers']} takeovers")
    told.append(facts["began"])
    return {
        "label": str(number),
        "steps": len(episode),
        "facts": "; ".join(text for text in told if text),
        "interventions": segments(intervention_flags(episode)),
        "series": _series(episode),
        "cameras": {name: [_picture(p) for p in frames[::every]] for name, frames in cameras_of(episode).items()},
    }


def _series(episode: Episode) -> dict[str, list[list[float | None]]]:
    """Return the lines of each plot: one per number of an array, [lines][T]."""
    found = {}
    for name, array in episode.arrays().items():
        if Field(str(array.dtype), array.shape[1:]).is_image:
            continue
        lines = array.reshape(len(episode), -1).T[:MOST_LINES].astype(np.float64)
        found[name] = [[_rounded(value) for value in line] for line in lines]
    return found


def _rounded(value: float) -> float | None:
    """Return few digits; JSON has no NaN."""
    return float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None


def _picture(picture: Array) -> str:
    """Return a picture [C, H, W] as a data address: JPEG where Pillow is installed, else PNG."""
    pixels = np.repeat(picture, 3, axis=0) if len(picture) == 1 else picture[:3]
    pixels = np.ascontiguousarray(pixels.transpose(1, 2, 0))
    if find_spec("PIL") is None:
        return f"data:image/png;base64,{base64.b64encode(encode_png(torch.from_numpy(pixels))).decode()}"
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
