"""An mp4 file, written by the ffmpeg that imageio-ffmpeg brings."""

from __future__ import annotations

import importlib
import subprocess
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def find_ffmpeg() -> str:
    """Return the program's path; raise ImportError where imageio-ffmpeg is not installed."""
    path: str = importlib.import_module("imageio_ffmpeg").get_ffmpeg_exe()
    return path


class Mp4Writer:
    """Appends pictures of one size; the first tells which.

    imageio's own writer is not used: it forks this process with all its threads, and where gRPC runs, the child may
    die before it has become ffmpeg.

    Args:
        path: Of the file; an earlier one is replaced.
        fps: Pictures per second.
    """

    def __init__(self, path: Path, fps: float) -> None:
        self._path, self._fps = path, Fraction(fps).limit_denominator()
        self._program = find_ffmpeg()
        self._ffmpeg: subprocess.Popen[bytes] | None = None

    def add(self, picture: NDArray[np.uint8]) -> None:
        """Append a picture [H, W, 3]."""
        even = _even(picture)
        if self._ffmpeg is None:
            self._ffmpeg = self._start(*even.shape[:2])
        assert self._ffmpeg.stdin is not None
        try:
            self._ffmpeg.stdin.write(even.tobytes())
            self._ffmpeg.stdin.flush()
        except BrokenPipeError:
            self.close()  # which tells why
            raise

    def close(self) -> None:
        """End the file; OSError tells why there is none. Without a picture there is none either."""
        if self._ffmpeg is None:
            return
        ffmpeg, self._ffmpeg = self._ffmpeg, None
        _, words = ffmpeg.communicate()  # closes its input, which ends the film
        if ffmpeg.returncode:
            told = words.decode(errors="replace").strip() or f"exit code {ffmpeg.returncode}"
            raise OSError(f"ffmpeg cannot write {self._path}: {told}")

    def _start(self, height: int, width: int) -> subprocess.Popen[bytes]:
        pictures = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(self._fps), "-i", "-"]
        film = ["-an", "-vcodec", "libx264", "-pix_fmt", "yuv420p", str(self._path.absolute())]
        return subprocess.Popen(
            [self._program, "-y", "-loglevel", "error", *pictures, *film],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            process_group=0,  # Ctrl-C is this process's business
        )


def _even(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the picture with even sides, which the codec asks for: the last row and column are repeated."""
    height, width = picture.shape[:2]
    return np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
