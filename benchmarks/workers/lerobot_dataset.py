"""The lerobot side of `lerobot_round_trip.py`, run in lerobot's own environment: `worker.py write|read|append SPEC`.

torchvision from PyPI is built for CUDA and does not load its operators beside a CPU torch, and it has no `VideoReader`
any more, which lerobot 0.4.4 decodes videos with; both are supplied here, the second with PyAV. All else is lerobot's.
"""

import json
import sys

import numpy as np
import torch

_library = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import av  # noqa: E402
import torchvision  # noqa: E402


class VideoReader:
    """What lerobot uses of `torchvision.io.VideoReader`."""

    def __init__(self, path, stream):
        self.container = av.open(path)

    def seek(self, time_s, keyframes_only):
        """Go to the key frame before a time."""
        stream = self.container.streams.video[0]
        self.container.seek(int(time_s / stream.time_base), stream=stream)
        return self

    def __iter__(self):
        for frame in self.container.decode(video=0):
            pixels = torch.from_numpy(frame.to_ndarray(format="rgb24")).permute(2, 0, 1)
            yield {"pts": float(frame.pts * frame.time_base), "data": pixels}


torchvision.io.VideoReader = VideoReader
torchvision.set_video_backend = lambda backend: None

from lerobot.datasets.lerobot_dataset import LeRobotDataset  # noqa: E402


def write(spec):
    """Write episodes from an npz with lerobot's own API."""
    features = {name: {**entry, "shape": tuple(entry["shape"])} for name, entry in spec["features"].items()}
    use_videos = any(entry["dtype"] == "video" for entry in features.values())
    dataset = LeRobotDataset.create(
        "local/round_trip", fps=spec["fps"], root=spec["root"], features=features, use_videos=use_videos
    )
    add(dataset, spec)


def append(spec):
    """Add episodes to a dataset that exists."""
    add(LeRobotDataset("local/round_trip", root=spec["root"]), spec)


def add(dataset, spec):
    arrays = np.load(spec["arrays"])
    for number, task in enumerate(spec["tasks"]):
        columns = {name.split("|")[1]: arrays[name] for name in arrays.files if name.startswith(f"{number}|")}
        for step in range(len(columns["action"])):
            frame = {name: np.asarray(column[step]) for name, column in columns.items()}
            dataset.add_frame({**frame, "task": task})
        dataset.save_episode()
    dataset.finalize()


def read(spec):
    """Dump every frame that lerobot loads, and a batch with action chunks, into an npz."""
    dataset = LeRobotDataset("local/round_trip", root=spec["root"], episodes=spec.get("episodes"))
    frames = [dataset[index] for index in range(len(dataset))]
    arrays = {
        name: np.stack([np.asarray(frame[name]) for frame in frames])
        for name, value in frames[0].items()
        if isinstance(value, torch.Tensor)
    }
    arrays["task"] = np.array([frame["task"] for frame in frames])
    chunked = LeRobotDataset(
        "local/round_trip", root=spec["root"], delta_timestamps={"action": [i / dataset.fps for i in range(4)]}
    )
    last = chunked[int(chunked.meta.episodes[0]["dataset_to_index"]) - 2]
    arrays |= {"chunk": last["action"].numpy(), "chunk_is_pad": last["action_is_pad"].numpy()}
    for name, stats in dataset.meta.stats.items():
        arrays |= {f"std|{name}": np.asarray(stats["std"]), f"mean|{name}": np.asarray(stats["mean"])}
    np.savez(spec["out"], **arrays)


if __name__ == "__main__":
    {"write": write, "read": read, "append": append}[sys.argv[1]](json.loads(sys.argv[2]))
