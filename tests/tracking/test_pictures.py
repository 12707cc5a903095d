import io
import json

import numpy as np
import pytest
import torch
from PIL import Image

from rl_lab.core import Counters, Picture
from rl_lab.ops.png import encode_png, png_size
from rl_lab.tracking.sinks import Sink
from rl_lab.tracking.tensorboard import TensorBoardSink
from rl_lab.tracking.tracker import Tracker


def picture(seed=0, height=7, width=5):
    return torch.randint(256, (height, width, 3), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def decoded(png):
    return torch.from_numpy(np.array(Image.open(io.BytesIO(png))))


class Recorder(Sink):
    def __init__(self):
        self.pictures = []

    def row(self, row):
        pass

    def picture(self, key, step, png):
        self.pictures.append((key, step, png))


@pytest.mark.parametrize(("height", "width"), [(1, 1), (7, 5), (64, 200)])
def test_another_reader_sees_the_same_pixels(height, width):
    pixels = picture(1, height, width)
    png = encode_png(pixels)
    assert torch.equal(decoded(png), pixels)
    assert png_size(png) == (width, height)
    assert encode_png(pixels.transpose(0, 1).contiguous().transpose(0, 1)) == png  # however it lies in memory


def test_another_reader_plays_the_same_film():
    frames = torch.stack([picture(seed) for seed in range(3)])
    film = Image.open(io.BytesIO(encode_png(frames)))
    assert (film.n_frames, film.info["loop"], film.info["duration"]) == (3, 0, 125.0)  # for ever, 8 a second
    for index, frame in enumerate(frames):
        film.seek(index)
        assert torch.equal(torch.from_numpy(np.array(film.convert("RGB"))), frame)
    single = encode_png(frames[:1])
    assert torch.equal(decoded(single), frames[0])
    assert png_size(single) == (5, 7)


@pytest.mark.parametrize("wrong", [torch.zeros(4, 4, 3), torch.zeros(4, 4, dtype=torch.uint8), picture()[:0]])
def test_what_is_no_picture_is_refused(wrong):
    with pytest.raises(ValueError, match=r"a picture is \[H, W, 3\] uint8, not"):
        encode_png(wrong)


def test_pictures_go_to_media_and_numbers_to_the_row(run):
    sink = Recorder()
    tracker = Tracker(run, [sink], every_steps=10)
    tracker.open(100)
    tracker.log("workflow", {"values": Picture(picture()), "spread": 2.0})
    tracker.write_due(Counters(10), "p")
    tracker.write_due(Counters(20), "p")  # nothing waits any more
    tracker.write("eval", {"return": 1.0, "path": Picture(picture(1))}, Counters(20), "p")
    tracker.close()
    files = {path.relative_to(run.media).as_posix(): path.read_bytes() for path in run.media.rglob("*.*")}
    assert set(files) == {"workflow/values_000000010.png", "eval/path_000000020.png"}
    assert torch.equal(decoded(files["workflow/values_000000010.png"]), picture())
    assert [(key, step) for key, step, _ in sink.pictures] == [("workflow/values", 10), ("eval/path", 20)]
    assert sink.pictures[1][2] == files["eval/path_000000020.png"]
    first, second = (json.loads(line) for line in run.metrics_file.read_text().splitlines())
    assert first["workflow/spread"] == 2.0
    assert not [key for key in (*first, *second) if key in ("workflow/values", "eval/path")]


def test_a_picture_is_written_again_after_a_resume(run):
    tracker = Tracker(run)
    tracker.open(100)
    state = tracker.get_state()
    contents = []
    for number in range(2):
        if number:  # the first process died after the picture
            tracker = Tracker(run)
            tracker.set_state(state)
            tracker.open(100)
        tracker.log("workflow", {"values": Picture(picture())})
        tracker.write_due(Counters(10), "p")
        tracker.close()
        contents.append([path.read_bytes() for path in run.media.rglob("*.png")])
    assert contents[0] == contents[1]
    assert len(contents[0]) == 1


def test_one_that_cannot_be_written_is_noted(run):
    (run.media / "workflow").write_text("in the way")
    tracker = Tracker(run)
    tracker.open(100)
    tracker.log("workflow", {"values": Picture(picture())})
    tracker.write_due(Counters(10), "p")
    tracker.close()
    assert "picture workflow/values was not saved" in run.events_file.read_text()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_has_them_too(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracker = Tracker(run, [TensorBoardSink(run.tb)])
    tracker.open(100)
    tracker.write("eval", {"path": Picture(picture())}, Counters(20), "p")
    tracker.close()
    events = EventAccumulator(str(run.tb))
    events.Reload()
    (event,) = events.Images("eval/path")
    assert (event.step, event.width, event.height) == (20, 5, 7)
    assert torch.equal(decoded(event.encoded_image_string), picture())
