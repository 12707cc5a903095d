"""LeRobotDataset v3.0 on disk: where its files lie, and what `info.json` says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rl_lab.buffers.datasets.files import read_json
from rl_lab.buffers.datasets.format import DatasetError

VERSION = "v3.0"
INFO, STATS, TASKS, EXTRA = "meta/info.json", "meta/stats.json", "meta/tasks.parquet", "meta/rl_lab.json"
NOTES = "meta/notes.jsonl"
DATA, EPISODES, VIDEOS = "data", "meta/episodes", "videos"
ACTION = "action"
CHUNK_SIZE = 1000  # files per directory
AUTOMATIC = {
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}
PICTURES = ("image", "video")
VIDEO_CODECS = {"libsvtav1": "av1", "h264": "h264", "hevc": "hevc"}  # encoder -> what info.json calls the stream
MOST_PIXELS = 1 << 26
NUMBERS = ("bool", "float16", "float32", "float64", *(f"{u}int{bits}" for u in ("", "u") for bits in (8, 16, 32, 64)))
_SIZES = {"chunks_size": CHUNK_SIZE, "data_files_size_in_mb": 100, "video_files_size_in_mb": 200}
_PATHS = {
    "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
    "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
}
_OWN = {*_PATHS, "codebase_version", "robot_type", "total_episodes", "total_frames", "total_tasks", "fps", "splits"}
_OWN |= {"features"}


class Slot(NamedTuple):
    """Which file of a numbered series."""

    chunk: int
    file: int

    def path(self, root: Path, folder: str, suffix: str = ".parquet") -> Path:
        """Return the file under `root`."""
        return root / folder / f"chunk-{self.chunk:03d}" / f"file-{self.file:03d}{suffix}"

    def next(self) -> Slot:
        """Return the file after this one."""
        return Slot(self.chunk, self.file + 1) if self.file + 1 < CHUNK_SIZE else Slot(self.chunk + 1, 0)

    @classmethod
    def after(cls, slots: Sequence[Slot]) -> Slot:
        """Return the file after the last of these."""
        return max(slots).next() if slots else cls(0, 0)

    @classmethod
    def number(cls, number: int) -> Slot:
        """Return the file that is the `number`-th of its series."""
        return cls(*divmod(number, CHUNK_SIZE))


@dataclass(frozen=True)
class Feature:
    """One entry of `features`, with the array's shape as LeRobot counts it: a picture is [H, W, C]."""

    dtype: str  # a NumPy type, "string", "image" or "video"
    shape: tuple[int, ...]
    names: Any = None
    info: Mapping[str, Any] | None = None  # of a video

    @property
    def is_picture(self) -> bool:
        """Return whether it is an image or a video."""
        return self.dtype in PICTURES

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"

    def to_json(self) -> dict[str, Any]:
        """Return it as `info.json` has it."""
        entry: dict[str, Any] = {"dtype": self.dtype, "shape": list(self.shape), "names": self.names}
        return entry | ({"info": dict(self.info)} if self.info else {})

    @classmethod
    def from_json(cls, where: str, entry: Any) -> Feature:
        """Return what `to_json` made, checked."""
        try:
            shape = tuple(int(size) for size in entry["shape"])
            feature = cls(str(entry["dtype"]), shape, entry.get("names"), entry.get("info"))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DatasetError(f"{where} must have a dtype and a shape") from error
        if feature.is_picture and len(shape) != 3:
            raise DatasetError(f"{where}: shape is {list(shape)}, but a picture is [height, width, channels]")
        if any(size < 1 for size in shape):
            raise DatasetError(f"{where}: shape {list(shape)} has a size below 1")
        if feature.is_picture and shape[0] * shape[1] > MOST_PIXELS:
            raise DatasetError(f"{where}: shape {list(shape)} is more than the {MOST_PIXELS} pixels a picture may have")
        if feature.dtype not in (*PICTURES, "string", *NUMBERS):
            raise DatasetError(f"{where}: unknown dtype {feature.dtype!r}")
        return feature


@dataclass(frozen=True)
class Info:
    """What `info.json` and `rl_lab.json` say."""

    fps: float
    features: dict[str, Feature]  # the automatic ones too
    total_episodes: int = 0
    total_frames: int = 0
    total_tasks: int = 0
    robot_type: str | None = None
    is_one_array: bool = False  # whether the observation is not a dict
    scalars: frozenset[str] = frozenset()  # features of shape [1] that are [T] here
    is_ours: bool = False  # whether the lab made the dataset
    others: Mapping[str, Any] = field(default_factory=dict)  # what else `info.json` holds

    def keys(self, dtype: str) -> list[str]:
        """Return the features of this dtype."""
        return [name for name, feature in self.features.items() if feature.dtype == dtype]

    def to_json(self) -> dict[str, Any]:
        """Return the content of `info.json`."""
        own = {
            "codebase_version": VERSION,
            "robot_type": self.robot_type,
            "total_episodes": self.total_episodes,
            "total_frames": self.total_frames,
            "total_tasks": self.total_tasks,
            "fps": int(self.fps) if float(self.fps).is_integer() else self.fps,
            "splits": {"train": f"0:{self.total_episodes}"},
            "data_path": _PATHS["data_path"],
            "video_path": _PATHS["video_path"] if self.keys("video") else None,
            "features": {name: feature.to_json() for name, feature in self.features.items()},
        }
        return {**_SIZES, **self.others, **own}

    def extra_json(self) -> dict[str, Any]:
        """Return the content of `rl_lab.json`."""
        return {
            "version": 1,
            "is_ours": self.is_ours,
            "is_one_array": self.is_one_array,
            "scalars": sorted(self.scalars),
        }


def read_info(root: Path) -> Info:
    """Read and check `info.json`, and the lab's extra file when it is there."""
    path = root / INFO
    content = read_json(path)
    _check_version(path, content.get("codebase_version"))
    fps = content.get("fps")
    if not isinstance(fps, int | float) or isinstance(fps, bool) or not 0 < fps < 1e6:
        raise DatasetError(f"{path}: fps is {fps!r}, not a positive number")
    counts: dict[str, Any] = {key: content.get(key) for key in ("total_episodes", "total_frames", "total_tasks")}
    for key, count in counts.items():
        if type(count) is not int or count < 0:
            raise DatasetError(f"{path}: {key} is {count!r}, not a count")
    for key, usual in _PATHS.items():
        if content.get(key) not in (None, usual):
            raise DatasetError(f"{path}: {key} is {content[key]!r}; only {usual!r} is read")
    if not isinstance(content.get("features"), dict):
        raise DatasetError(f"{path}: features is missing")
    features = {
        n: Feature.from_json(f"{path}: features.{check_name(path, n)}", entry)
        for n, entry in content["features"].items()
    }
    if missing := sorted((AUTOMATIC.keys() | {ACTION}) - features.keys()):
        raise DatasetError(f"{path}: features has no {missing[0]!r} (it has: {', '.join(features)})")
    extra = read_json(root / EXTRA) if (root / EXTRA).exists() else {}
    scalars = extra.get("scalars", [])
    if not isinstance(scalars, list) or any(f.shape != (1,) for n, f in features.items() if n in scalars):
        raise DatasetError(f"{root / EXTRA}: scalars is not a list of features of shape [1]")
    return Info(
        fps=fps,
        features=features,
        robot_type=content.get("robot_type"),
        is_one_array=bool(extra.get("is_one_array", False)),
        scalars=frozenset(map(str, scalars)),
        is_ours=bool(extra.get("is_ours", False)),
        others={key: value for key, value in content.items() if key not in _OWN},
        **counts,
    )


def seal(root: Path) -> list[Any]:
    """Return what changes when somebody saves, joins files or puts statistics right."""
    info = root / INFO
    chunks = [path for folder in (DATA, EPISODES) for path in sorted((root / folder).glob("chunk-*"))]
    stamps = [(found.st_ino, found.st_mtime_ns) for found in (path.stat() for path in chunks)]
    return [info.read_bytes() if info.exists() else None, *stamps]


def check_name(where: Path | str, name: str) -> str:
    """Return the name of a feature, which must not lead to another directory: videos lie in one of that name."""
    if name in ("", ".") or any(part in name for part in ("/", "\\", "..", "\0")):
        raise DatasetError(
            f"{where}: features has the name {name!r}; names are not empty and have no '/', '\\' or '..'"
        )
    return name


def _check_version(path: Path, version: Any) -> None:
    text = str(version)
    major, _, minor = text.removeprefix("v").partition(".")
    if not text.startswith("v") or not major.isdigit() or not minor.isdigit():
        raise DatasetError(f"{path}: codebase_version is {version!r}, not one of LeRobot ({VERSION!r})")
    if int(major) > 3:
        raise DatasetError(f"{path}: codebase_version {text} is newer than this lab reads ({VERSION}): update it")
    if int(major) < 3:
        raise DatasetError(f"{path}: codebase_version {text} is older than {VERSION}: convert it with lerobot first")
