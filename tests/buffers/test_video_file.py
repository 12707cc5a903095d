"""Videos of datasets: a file is a video, and not a list of others."""

import numpy as np
import pytest

from rl_lab.core.errors import LabError

pytest.importorskip("av")
from rl_lab.buffers.datasets.video_file import join_videos, read_video, write_video

FPS, SHAPE = 10.0, (64, 64, 3)


@pytest.fixture
def linked(tmp_path):
    """A file of a foreign dataset that names another file beside it."""
    write_video(tmp_path / "secret.mp4", np.full((4, 3, 64, 64), 90, np.uint8), FPS, codec="h264")
    (tmp_path / "linked.mp4").write_text("ffconcat version 1.0\nfile secret.mp4\n")
    return tmp_path / "linked.mp4"


def test_a_list_of_files_is_no_video(linked):
    assert read_video(linked.with_name("secret.mp4"), 0.0, 4, FPS, SHAPE).shape == (4, 3, 64, 64)
    with pytest.raises(LabError, match="linked.mp4 is not a video"):
        read_video(linked, 0.0, 4, FPS, SHAPE)


def test_a_list_of_files_is_not_joined_to_others(linked):
    with pytest.raises(ValueError, match="Invalid data"):
        join_videos([linked], [4], FPS, linked.with_name("joined.mp4"))
