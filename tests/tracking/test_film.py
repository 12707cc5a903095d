import numpy as np
import pytest
import torch
from PIL import Image

from rl_lab.tracking import film as module
from rl_lab.tracking.film import Film, resized
from tests.film_reader import read_film


def pictures(count, height=33, width=47):
    shades = torch.linspace(20, 220, count).to(torch.uint8)
    return shades[:, None, None, None].expand(count, height, width, 3).contiguous()


def test_mp4_with_even_sides(tmp_path):
    film = Film(tmp_path / "deep" / "film", 25)
    for picture in pictures(5):
        film.add(picture)
    assert not (tmp_path / "deep" / "film.mp4").exists()  # until it is whole
    path = film.close()
    assert [each.name for each in path.parent.iterdir()] == ["film.mp4"]
    shown, fps = read_film(path)
    assert (shown.shape[1:], fps) == ((34, 48, 3), 25.0)
    assert shown.mean((1, 2, 3)) == pytest.approx([20, 70, 120, 170, 220], abs=8)


def test_an_animated_png_without_ffmpeg(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    film = Film(tmp_path / "film", 12.5)
    for picture in pictures(3):
        film.add(picture)
    path = film.close()
    assert path.name == "film.png"
    with Image.open(path) as shown:
        assert (shown.n_frames, shown.size) == (3, (47, 33))
        assert shown.info["duration"] == pytest.approx(80.0)
        shown.seek(2)
        assert np.asarray(shown.convert("RGB"))[0, 0].tolist() == [220, 220, 220]


def test_a_film_of_nothing_is_no_file(tmp_path):
    assert Film(tmp_path / "film", 25).close() is None
    assert not list(tmp_path.iterdir())


def test_another_size():
    picture = torch.zeros(20, 40, 3, dtype=torch.uint8)
    picture[:, 20:] = 200
    small = resized(picture, 10, 8)
    assert small.shape == (8, 10, 3)
    assert (small[:, 0] == 0).all()
    assert (small[:, -1] == 200).all()
