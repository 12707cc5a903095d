import subprocess
import sys

import numpy as np
import pytest

from rl_lab.core.mp4 import Mp4Writer
from tests.film_reader import read_film

UNDER_FORK_HANDLERS = """\
import os, sys
from pathlib import Path
import numpy as np
from rl_lab.core.mp4 import Mp4Writer

os.register_at_fork(after_in_child=lambda: os._exit(1))
writer = Mp4Writer(Path(sys.argv[1]), 10)
for _ in range(3):
    writer.add(np.zeros((16, 16, 3), np.uint8))
writer.close()
"""


def write_film(path, pictures):
    writer = Mp4Writer(path, 12.5)
    for picture in pictures:
        writer.add(picture)
    writer.close()


def test_pictures_come_back(tmp_path):
    path, grays = tmp_path / "film.mp4", [0, 50, 100, 200]
    write_film(path, [np.full((33, 41, 3), gray, np.uint8) for gray in grays])  # odd sides, which the codec has not
    shown, fps = read_film(path)
    assert (shown.shape, fps) == ((4, 34, 42, 3), 12.5)
    assert shown[:, 5, 5, 1].tolist() == pytest.approx(grays, abs=4)


def test_a_film_without_pictures_is_none(tmp_path):
    write_film(tmp_path / "film.mp4", [])
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_written_is_told(tmp_path):
    path = tmp_path / "nowhere" / "film.mp4"
    with pytest.raises(OSError, match=rf"ffmpeg cannot write {path}: .*No such file"):
        write_film(path, [np.zeros((64, 64, 3), np.uint8)] * 1000)


def test_fork_handlers_of_this_process_do_not_run_in_ffmpeg(tmp_path):
    path = tmp_path / "film.mp4"
    subprocess.run([sys.executable, "-c", UNDER_FORK_HANDLERS, str(path)], check=True, timeout=60)
    assert path.stat().st_size > 0
