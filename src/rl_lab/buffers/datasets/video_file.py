"""Pictures in mp4 files at exact times: frame `i` of an episode is shown at `i / fps` seconds, no earlier, no later."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from rl_lab.buffers.datasets.files import one_line
from rl_lab.buffers.datasets.format import Array, DatasetError
from rl_lab.buffers.datasets.lerobot_format import VIDEO_CODECS
from rl_lab.core.errors import ConfigError

try:
    import av
except ModuleNotFoundError as error:
    raise ConfigError("av is not installed: pip install 'rl-lab[lerobot-data]'") from error

TOLERANCE_S = 1e-4  # of a frame's time, as LeRobot asks for


def write_video(path: Path, frames: Array, fps: float, *, codec: str = "libsvtav1", crf: int = 30) -> None:
    """Encode pictures [T, 3, H, W] with a key frame at every second one, so that any frame is found fast."""
    _reject_unfit(frames)
    options = {"crf": str(crf), "g": "2"}
    options |= {"preset": "10", "svtav1-params": "lp=1"} if codec == "libsvtav1" else {"bf": "0", "threads": "1"}
    os.environ.setdefault("SVT_LOG", "1")  # errors only: the encoder writes to the terminal by itself
    with av.open(str(path), "w", format="mp4") as container:
        stream: Any = container.add_stream(codec, rate=_rate(fps), options=options)
        stream.height, stream.width = frames.shape[2:]
        stream.pix_fmt = "yuv420p"
        stream.time_base = stream.codec_context.time_base = 1 / _rate(fps)
        for number, frame in enumerate(frames):
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame.transpose(1, 2, 0)), format="rgb24")
            picture.pts, picture.time_base = number, 1 / _rate(fps)
            container.mux(stream.encode(picture))
        container.mux(stream.encode())


def video_info(frames: Array, fps: float, codec: str) -> dict[str, Any]:
    """Return what LeRobot writes about a video feature."""
    return {
        "video.height": frames.shape[2],
        "video.width": frames.shape[3],
        "video.codec": VIDEO_CODECS[codec],
        "video.pix_fmt": "yuv420p",
        "video.is_depth_map": False,
        "video.fps": int(fps) if float(fps).is_integer() else fps,
        "video.channels": frames.shape[1],
        "has_audio": False,
    }


def read_video(path: Path, begin_s: float, count: int, fps: float, shape: Sequence[int]) -> Array:
    """Return `count` frames from `begin_s` on as [T, C, H, W]; a time without a frame raises."""
    height, width, channels = shape
    if channels != 3:
        raise DatasetError(f"{path}: a video has 3 channels, not {channels}")
    found = np.zeros(count, dtype=np.bool_)
    try:
        with av.open(str(path), format="mp4") as container:  # not a list of other files
            _check_size(path, container.streams.video[0], height, width)
            frames = np.empty((count, channels, height, width), dtype=np.uint8)
            for time_s, frame in _frames_from(container, begin_s):
                number = round((time_s - begin_s) * fps)
                if number >= count:
                    break
                if number >= 0 and abs(time_s - begin_s - number / fps) < TOLERANCE_S:
                    _check_size(path, frame, height, width)  # a stream may change it
                    frames[number] = frame.to_ndarray(format="rgb24").transpose(2, 0, 1)
                    found[number] = True
                if found.all():
                    break
    except FileNotFoundError as error:
        raise DatasetError(f"{path} is missing") from error
    except (av.FFmpegError, IndexError) as error:
        raise DatasetError(f"{path} is not a video ({one_line(error)})") from error
    if not found.all():
        time_s = begin_s + int(found.argmin()) / fps
        raise DatasetError(
            f"{path} has no frame at {time_s:.4f} s (fps {fps:g}, {int((~found).sum())} of {count} missing)"
        )
    return frames


def decode_video(path: Path) -> Iterator[Array]:
    """Yield all pictures [H, W, 3] of a file, whatever their times."""
    try:
        with av.open(str(path)) as container:
            for frame in container.decode(video=0):
                yield frame.to_ndarray(format="rgb24")
    except (av.FFmpegError, IndexError) as error:
        raise DatasetError(f"{path} is not a video ({one_line(error)})") from error


def join_videos(sources: Sequence[Path], counts: Sequence[int], fps: float, target: Path) -> None:
    """Put videos one after the other without encoding them again; `counts` are their frames."""
    with av.open(str(target), "w", format="mp4") as output:
        stream: Any = None
        shown = 0
        for source, count in zip(sources, counts, strict=True):
            with av.open(str(source), format="mp4") as container:
                if stream is None:
                    stream = output.add_stream_from_template(container.streams.video[0], opaque=True)
                    stream.time_base = container.streams.video[0].time_base
                for packet in container.demux(video=0):
                    if packet.dts is None or packet.pts is None:  # the end of the stream
                        continue
                    if packet.pts * packet.time_base >= (count - 0.5) / _rate(fps):  # of an episode that was cut off
                        continue
                    offset = shown / _rate(fps) / packet.time_base
                    packet.pts, packet.dts = round(packet.pts + offset), round(packet.dts + offset)
                    packet.stream = stream
                    output.mux(packet)
            shown += count


def _frames_from(container: Any, begin_s: float) -> Any:
    """Yield (seconds, frame) from the key frame before `begin_s` on."""
    stream = container.streams.video[0]
    container.seek(max(0, int((begin_s - TOLERANCE_S) / stream.time_base)), stream=stream)
    for frame in container.decode(stream):
        yield float(frame.pts * stream.time_base), frame


def _check_size(path: Path, shown: Any, height: int, width: int) -> None:
    if (shown.height, shown.width) != (height, width):
        raise DatasetError(f"{path} is {shown.height} x {shown.width} instead of {height} x {width}")


def _rate(fps: float) -> Fraction:
    return Fraction(fps).limit_denominator(1001)


def _reject_unfit(frames: Array) -> None:
    _, channels, height, width = frames.shape
    if channels != 3 or height % 2 or width % 2:
        raise DatasetError(
            f"a video needs 3 channels and an even height and width, not {channels} x {height} x {width}"
        )
