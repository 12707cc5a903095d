"""TensorBoard event files in the run's `tb/`, over env steps."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rl_lab.ops.png import png_size
from rl_lab.tracking.sinks import Row, Sink, numbers


class TensorBoardSink(Sink):
    """Writes every metric as a scalar, and pictures."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writer: Any = None

    def open(self, *, total_steps: int, start_step: int, resumed: bool) -> None:
        """Begin an event file; on a resume TensorBoard hides what was logged after the checkpoint."""
        from torch.utils.tensorboard import SummaryWriter  # slow to import, and not needed to read runs

        if resumed:
            self._wait_for_a_later_name()
        self._writer = SummaryWriter(str(self._directory), purge_step=start_step + 1 if resumed else None)

    def _wait_for_a_later_name(self) -> None:
        """Let the second pass in which the newest file was begun: it is in their names, by which they are read."""
        seconds = [int(path.name.split(".")[3]) for path in self._directory.glob("events.out.tfevents.*")]
        if seconds:
            time.sleep(min(max(max(seconds) + 1 - time.time(), 0.0), 1.0))

    def row(self, row: Row) -> None:
        """Write the metrics of a row."""
        for key, value in numbers(row).items():
            self._writer.add_scalar(key, value, row["step"])

    def perf(self, row: Row) -> None:
        """Write the wall-clock numbers of a row."""
        self.row(row)

    def picture(self, key: str, step: int, png: bytes) -> None:
        """Write a picture as it is: `add_image` would need Pillow only to encode it again."""
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]

        width, height = png_size(png)
        image = Summary.Image(width=width, height=height, colorspace=3, encoded_image_string=png)
        summary = Summary(value=[Summary.Value(tag=key, image=image)])
        self._writer.file_writer.add_summary(summary, step)

    def close(self) -> None:
        """Write what waits."""
        if self._writer is not None:
            self._writer.close()
