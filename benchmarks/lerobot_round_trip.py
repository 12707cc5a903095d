"""Datasets go to lerobot and come back: what one side writes, the other loads frame by frame.

lerobot is installed into `.peers/lerobot` the first time (about 2 GB). Vectors, arrays of several dimensions, flags and
PNG pictures must be equal to the bit; videos go through a codec, so two decoders of the same file are compared. Each
row of the result is one way: who wrote, how pictures are kept, what was done to the files in between.

    python benchmarks/lerobot_round_trip.py
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from harness import ROOT, markdown_table, run, write_results

from rl_lab.buffers.datasets.format import Array, Episode
from rl_lab.buffers.datasets.lerobot_episode import columns_of
from rl_lab.buffers.datasets.lerobot_reader import LeRobotReader
from rl_lab.buffers.datasets.lerobot_writer import LeRobotWriter

PEER = ROOT / ".peers" / "lerobot"
PYTHON = PEER / "bin" / "python"
WORKER = ROOT / "benchmarks" / "workers" / "lerobot_dataset.py"
WITHOUT_DEPENDENCIES = ("lerobot==0.4.4", "torchvision==0.28.0")  # their pins exclude torch 2.13
PACKAGES = (
    *("datasets", "huggingface-hub<0.36", "accelerate", "diffusers<0.36", "draccus==0.10.0", "einops", "jsonlines"),
    *("av<16", "deepdiff", "imageio[ffmpeg]", "termcolor", "pyserial", "packaging<26", "gymnasium", "pandas"),
    *("numpy<2.3", "opencv-python-headless", "grpcio", "protobuf"),
)
FPS = 10
LENGTHS = (7, 12, 5, 9)
CAMERA = "observation.images.top"
VIDEO_TOLERANCE = 2  # of 255: two versions of one decoder; a frame too early or late differs by 5


def main() -> None:
    args = parse_arguments()
    install()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, check in CHECKS.items():
            path = Path(args.keep or folder) / name.replace(" ", "_")
            rows.append({"check": name, **check(path)})
            print(json.dumps(rows[-1]), flush=True)
    write_results(args.name, rows, peer_versions=peer_versions(), lengths=LENGTHS, fps=FPS)
    print(markdown_table(rows))
    if not all(row["equal"] for row in rows):
        sys.exit("error: not every frame was equal")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", metavar="DIR", help="leave the datasets there")
    parser.add_argument("--name", default="lerobot_round_trip", help="of the result files")
    return parser.parse_args()


def install() -> None:
    """Make lerobot's own environment when it is not there."""
    if (PEER / "installed").exists():
        return
    print(f"installing lerobot into {PEER}", flush=True)
    run([sys.executable, "-m", "venv", str(PEER)])
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet"]
    run([*pip, "torch==2.13.0"])
    run([*pip, "--no-deps", *WITHOUT_DEPENDENCIES])
    run([*pip, *PACKAGES])
    (PEER / "installed").touch()


def peer_versions() -> dict[str, str]:
    names = ["lerobot", "torch", "torchvision", "datasets", "pyarrow", "av", "numpy", "pandas"]
    code = f"import importlib.metadata as m, json; print(json.dumps({{n: m.version(n) for n in {names}}}))"
    return json.loads(run([str(PYTHON), "-c", code]).stdout)


def worker(mode: str, **spec: Any) -> None:
    run([str(PYTHON), str(WORKER), mode, json.dumps(spec)], HF_HUB_OFFLINE="1", HF_DATASETS_CACHE=spec["cache"])


def episode(number: int) -> Episode:
    """Return an episode of random numbers and of pictures that move, so that a shifted frame shows."""
    rng, steps = np.random.default_rng(number), LENGTHS[number]
    slope = np.add.outer(np.arange(48), np.arange(64))[None] // 2 + 20 * np.arange(3)[:, None, None]  # [C, H, W]
    observations = {
        "state": rng.normal(size=(steps, 4)).astype(np.float32),
        "grid": rng.normal(size=(steps, 2, 3)),
        "cube": rng.integers(0, 255, (steps, 2, 3, 4)).astype(np.uint8),
        "hyper": rng.integers(-9, 9, (steps, 2, 1, 2, 3)).astype(np.int32),
        "images.top": np.stack([slope + 5 * step + 20 * number for step in range(steps)]).astype(np.uint8),
    }
    return Episode(
        observations=observations,
        actions=rng.normal(size=(steps, 2)).astype(np.float32),
        rewards=rng.normal(size=steps).astype(np.float32),
        terminated=number % 2 == 0,
        truncated=number % 2 == 1,
        final_observation={key: array[-1] for key, array in observations.items()},
        infos={"is_intervention": rng.random(steps) < 0.5, "discrete_penalty": rng.normal(size=steps)},
        task=f"task {number % 2}",
    )


EPISODES = [episode(number) for number in range(len(LENGTHS))]


def ours_loads_there(path: Path, *, lossy: bool, chosen: Sequence[int], check_stats: bool = True) -> dict[str, Any]:
    """Load with lerobot what is in `path`."""
    there = loaded_there(path, None if len(chosen) == len(EPISODES) else list(chosen))
    wanted = [columns_of(EPISODES[number]) for number in chosen]
    if lossy:
        reader = LeRobotReader(path)
        wanted = [
            {**entry, CAMERA: columns_of(reader.read(n))[CAMERA]} for n, entry in zip(chosen, wanted, strict=True)
        ]
    differences = {}
    for name in wanted[0]:
        here = np.concatenate([columns[name] for columns in wanted])
        found = np.rint(there[name] * 255) if name == CAMERA else there[name].reshape(here.shape)
        differences[name] = largest(here.astype(found.dtype), found)  # lerobot makes every float a float32
    tasks = [EPISODES[number].task for number in chosen for _ in range(LENGTHS[number])]
    chunk = EPISODES[0].actions[[-2, -1, -1, -1]]
    facts = {
        "tasks": there["task"].tolist() == tasks,
        "chunk": bool((there["chunk"] == chunk).all()) and there["chunk_is_pad"].tolist() == [False, False, True, True],
        "statistics": not check_stats or stats_are_right(there),
    }
    if lossy:
        facts["frames in place"] = are_in_place(np.rint(there[CAMERA] * 255), chosen)
    return verdict(differences, lossy, sum(LENGTHS[number] for number in chosen), facts)


def loaded_there(path: Path, episodes: list[int] | None = None) -> Any:
    out = path.with_name(f"{path.name}.npz")
    worker("read", root=str(path), out=str(out), episodes=episodes, cache=f"{path}_cache")
    return np.load(out)


def stats_are_right(there: Any) -> bool:
    actions = np.concatenate([e.actions for e in EPISODES])
    pictures = np.concatenate([e.observations["images.top"] for e in EPISODES]).astype(np.float64) / 255
    wanted = {"action": actions.std(0), CAMERA: pictures.std((0, 2, 3))}
    return all(np.allclose(there[f"std|{name}"].ravel(), std, rtol=1e-5) for name, std in wanted.items())


def theirs_loads_here(path: Path, *, dtype: str, added_here: int = 0) -> dict[str, Any]:
    """Write with lerobot, load here; with `added_here` the last episodes are added by the lab and lerobot reads too."""
    there = EPISODES[: len(EPISODES) - added_here]
    write_there("write", path, there, dtype=dtype)
    if added_here:
        with LeRobotWriter(path) as writer:
            for number in range(len(there), len(EPISODES)):
                writer.save(EPISODES[number])
        # lerobot 0.4.4 overflows uint8 in its own statistics of pictures, which stay in the sum
        return ours_loads_there(path, lossy=dtype == "video", chosen=range(len(EPISODES)), check_stats=False)
    return compare_here(path, lossy=dtype == "video")


def ours_grows_there(path: Path) -> dict[str, Any]:
    """Write half of it here, let lerobot add the rest, load here."""
    write_here(path, EPISODES[:2])
    write_there("append", path, EPISODES[2:], dtype="image")
    return compare_here(path, lossy=False)


def write_there(mode: str, path: Path, episodes: Sequence[Episode], *, dtype: str) -> None:
    columns = [columns_of(e) for e in episodes]
    for entry in columns:
        entry[CAMERA] = entry[CAMERA].transpose(0, 2, 3, 1)
    arrays = path.with_name(f"{path.name}_in.npz")
    np.savez(arrays, **{f"{i}|{n}": there_shape(n, a) for i, entry in enumerate(columns) for n, a in entry.items()})
    features = {
        name: {"dtype": dtype if name == CAMERA else str(array.dtype), "shape": there_shape(name, array).shape[1:]}
        | {"names": ["height", "width", "channels"] if name == CAMERA else None}
        for name, array in columns[0].items()
    }
    tasks = [e.task for e in episodes]
    worker(mode, root=str(path), arrays=str(arrays), features=features, tasks=tasks, fps=FPS, cache=f"{path}_cache")


def there_shape(name: str, array: Array) -> Array:
    return array[:, None] if array.ndim == 1 else array


def compare_here(path: Path, *, lossy: bool) -> dict[str, Any]:
    """Compare what the lab reads with what was written; of videos, with what lerobot decodes from them."""
    read = list(LeRobotReader(path).episodes())
    found, original = ([columns_of(e) for e in episodes] for episodes in (read, EPISODES))
    differences = {
        name: largest(*(np.concatenate([columns[name] for columns in side]) for side in (found, original)))
        for name in original[0]
    }
    facts = {}
    if lossy:
        pictures = np.concatenate([columns[CAMERA] for columns in found])
        differences[CAMERA] = largest(pictures, np.rint(loaded_there(path)[CAMERA] * 255))
        facts["frames in place"] = are_in_place(pictures, range(len(EPISODES)))
    ends = [[(e.terminated, e.truncated, e.task) for e in episodes] for episodes in (read, EPISODES)]
    return verdict(differences, lossy, sum(LENGTHS), facts | {"ends and tasks": ends[0] == ends[1]})


def are_in_place(pictures: Array, chosen: Sequence[int]) -> bool:
    """Return whether every decoded picture is nearer to its own original than to a neighbour's, 5 brighter."""
    originals = np.concatenate([EPISODES[number].observations["images.top"] for number in chosen])
    return bool(np.abs(pictures.astype(int) - originals).mean((1, 2, 3)).max() < 2.5)


def verdict(differences: dict[str, float], lossy: bool, frames: int, facts: dict[str, bool]) -> dict[str, Any]:
    exact = max(value for name, value in differences.items() if name != CAMERA)
    pictures = differences[CAMERA]
    is_equal = exact == 0 and pictures <= (VIDEO_TOLERANCE if lossy else 0) and all(facts.values())
    failed = [name for name, is_true in facts.items() if not is_true]
    return {
        "frames": frames,
        "features": len(differences),
        "numbers differ by": exact,
        "pictures differ by (of 255)": pictures,
        "failed": ", ".join(failed),
        "equal": is_equal,
    }


def largest(a: Array, b: Array) -> float:
    return float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max())


def write_here(path: Path, episodes: Sequence[Episode] = EPISODES, **options: Any) -> None:
    with LeRobotWriter(path, fps=FPS, **options) as writer:
        for e in episodes:
            writer.save(e)


def write_and_die(path: Path) -> None:
    """Let a process save every episode and kill it before it can close."""
    if (pid := os.fork()) == 0:
        writer = LeRobotWriter(path, fps=FPS)
        for e in EPISODES:
            writer.save(e)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)


def to_lerobot(prepare: Callable[[Path], None], *, lossy: bool = False, chosen: Sequence[int] = range(4)) -> Any:
    def check(path: Path) -> dict[str, Any]:
        prepare(path)
        return ours_loads_there(path, lossy=lossy, chosen=chosen)

    return check


CHECKS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "ours to lerobot, PNG": to_lerobot(write_here),
    "ours to lerobot, PNG, one file per episode": to_lerobot(lambda path: write_here(path, data_mb=0)),
    "ours to lerobot, PNG, episodes 1 and 3": to_lerobot(write_here, chosen=(1, 3)),
    "ours to lerobot, writer killed with -9": to_lerobot(write_and_die),
    "ours to lerobot, AV1 video": to_lerobot(lambda path: write_here(path, pictures="video"), lossy=True),
    "ours to lerobot, H.264 video": to_lerobot(
        lambda path: write_here(path, pictures="video", video_codec="h264", video_crf=18), lossy=True
    ),
    "lerobot to ours, PNG": lambda path: theirs_loads_here(path, dtype="image"),
    "lerobot to ours, AV1 video": lambda path: theirs_loads_here(path, dtype="video"),
    "lerobot, two episodes added by us, to lerobot": lambda path: theirs_loads_here(path, dtype="image", added_here=2),
    "ours, two episodes added by lerobot, to ours": ours_grows_there,
}

if __name__ == "__main__":
    try:
        main()
    except (RuntimeError, subprocess.SubprocessError) as error:
        sys.exit(f"error: {error}")
