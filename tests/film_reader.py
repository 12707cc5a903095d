"""What is in a film, as ffmpeg decodes it."""

import re
import subprocess

import numpy as np

from rl_lab.core.mp4 import find_ffmpeg


def read_film(path):
    """Return pictures [T, H, W, 3] and pictures per second."""
    words = [find_ffmpeg(), "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-fps_mode", "passthrough", "-"]
    told = subprocess.run(words, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    about = told.stderr.decode()
    width, height = map(int, re.search(r"Video: .*?, (\d+)x(\d+)", about).groups())
    fps = float(re.search(r"([\d.]+) fps", about).group(1))
    return np.frombuffer(told.stdout, np.uint8).reshape(-1, height, width, 3), fps
