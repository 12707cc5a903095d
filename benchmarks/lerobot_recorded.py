"""Datasets that the lab recorded in LeRobot's format, read by lerobot itself: every frame, flag, task and statistic.

A simulated human corrects a policy in the insertion cell, with both cameras, while a `RecordingBuffer` writes. One
recording is left as it is, one is taken back to an earlier checkpoint and goes on, one is joined, two become one
(`lab data merge`). A run of `lab train` that is killed with -9 and resumed is read too. lerobot is installed as for
`lerobot_round_trip.py`.

    python benchmarks/lerobot_recorded.py
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import markdown_table, run, write_results
from lerobot_round_trip import install, largest, loaded_there, peer_versions

from rl_lab.buffers.datasets.format import EpisodeReader
from rl_lab.buffers.datasets.lerobot_episode import columns_of
from rl_lab.buffers.datasets.lerobot_reader import LeRobotReader
from rl_lab.buffers.datasets.lerobot_writer import compact_lerobot
from rl_lab.buffers.episode import EpisodeBuffer
from rl_lab.buffers.recording import RecordingBuffer
from rl_lab.environments.gymnasium import GymnasiumEnv
from rl_lab.human.experts import InsertionExpert
from rl_lab.human.simulated import SimulatedHuman
from rl_lab.orchestration.collector import Collector
from rl_lab.orchestration.interventions import Interventions
from rl_lab.orchestration.supervision import Supervision

PIECE, PIECES = 25, 8  # vector steps
VIDEO_TOLERANCE = 2  # of 255: two versions of one decoder
KILLED_RUN = ("+experiment=corrected_insertion", "buffers.demonstrations.format=lerobot", "+logging=quiet")
KILLED_RUN += ("training.checkpoint_frequency=400", "training.num_eval_episodes=2")


class Idle(InsertionExpert):
    """A policy that does nothing: all that is done is done by the human."""

    def plan(self, obs: torch.Tensor) -> torch.Tensor:
        """Return no movement."""
        return torch.zeros(len(obs), self.num_actions)


def main() -> None:
    args = parse_arguments()
    install()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, make in CHECKS.items():
            path = make(Path(folder) / name.replace(" ", "_"))
            rows.append({"check": name, **compare(path)})
            print(json.dumps(rows[-1]), flush=True)
    write_results(args.name, rows, peer_versions=peer_versions(), pieces=PIECES, steps_per_piece=PIECE)
    print(markdown_table(rows))
    if not all(row["equal"] for row in rows):
        sys.exit("error: not every frame was equal")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="lerobot_recorded", help="of the result files")
    return parser.parse_args()


def record(folder: Path, *, pictures: str = "png", seed: int = 0, cut_at: int | None = None) -> Path:
    """Record pieces of a corrected policy; with `cut_at` the state after so many is gone back to at the end once."""
    torch.manual_seed(seed)
    env = GymnasiumEnv("cell/Insertion-v0", 1, env_kwargs={"observations": "all"}, info_keys=["is_success"])
    human = SimulatedHuman(InsertionExpert(), patience_steps=3, reaction_steps=1, max_takeovers=9)
    policy = Supervision(Idle(), human, Interventions(lambda *_, **__: None, lambda _: None))
    collector = Collector(env, seed, lambda _: nullcontext())

    def fresh() -> RecordingBuffer:
        options: dict[str, Any] = {
            "format": "lerobot",
            "pictures": pictures,
            "task": "insert the peg",
            "spec": env.spec,
        }
        buffer = RecordingBuffer(EpisodeBuffer(2000, 8), **options)
        buffer.attach(folder)
        return buffer

    results = [
        policy.recorded(collector.collect(policy, PIECE, env_steps=0, should_stop=lambda: False)) for _ in range(PIECES)
    ]
    env.close()
    buffer, state, begin = fresh(), None, 0
    for _ in range(2 if cut_at is not None else 1):
        if state is not None:
            buffer, begin = fresh(), cut_at or 0
            buffer.set_state(state)
        for number, result in enumerate(results[begin:], begin):
            buffer.witness(result.seen)
            buffer.add(result.trajectory)
            if number + 1 == cut_at:
                state = buffer.get_state()
    return folder / "dataset"


def joined(folder: Path) -> Path:
    path = record(folder)
    compact_lerobot(path)
    return path


def joined_and_cut(folder: Path) -> Path:
    """Record, join all files into one each, and go back into the middle of them."""
    path = joined(folder)
    from rl_lab.buffers.datasets.lerobot_writer import LeRobotWriter

    writer = LeRobotWriter(path, data_mb=0)
    writer.cut(2)
    writer.save(LeRobotReader(record(folder / "more", seed=1)).read(0))
    writer.release()
    return path


def merged(folder: Path) -> Path:
    parts = [str(record(folder / str(seed), seed=seed)) for seed in (1, 2)]
    run([*LAB, "data", "merge", str(folder / "both"), *parts])
    return folder / "both"


def killed_run(folder: Path) -> Path:
    """Kill a run twice with -9 while it practises, and resume it."""
    command = [*LAB, "train", *KILLED_RUN, f"experiment.root={folder}"]
    for words in (command, [*LAB, "resume", "--root", str(folder)]):
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        deadline = time.monotonic() + 300
        before = episodes_of(folder)
        while process.poll() is None and episodes_of(folder) < before + 40 and time.monotonic() < deadline:
            time.sleep(0.2)
        if process.poll() is not None:
            raise RuntimeError("the run was over before it could be killed")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    run([*LAB, "resume", "--root", str(folder)])
    (path,) = folder.glob("*/buffers/demonstrations/dataset")
    return path


LAB = (sys.executable, "-m", "rl_lab")


def episodes_of(folder: Path) -> int:
    infos = list(folder.glob("*/buffers/demonstrations/dataset/meta/info.json"))
    return json.loads(infos[0].read_text())["total_episodes"] if infos else 0


def compare(path: Path) -> dict[str, Any]:
    """Load with lerobot and compare with what the lab reads; pictures of videos go through two decoders."""
    reader = LeRobotReader(path)
    there = loaded_there(path)
    here = [columns_of(episode) for episode in reader.episodes()]
    lossy = bool(reader.info.keys("video"))
    numbers, pictures = 0.0, 0.0
    for name in here[0]:
        mine = np.concatenate([columns[name] for columns in here])
        if reader.info.features[name].is_picture:
            pictures = max(pictures, largest(mine, np.rint(there[name] * 255)))
        else:
            numbers = max(numbers, largest(mine, there[name].reshape(mine.shape)))
    facts = {
        "tasks": there["task"].tolist() == tasks_of(reader),
        "flags": bool(there["complementary_info.is_intervention"].any()),
        "statistics": are_right(here, there, reader),
    }
    failed = [name for name, is_true in facts.items() if not is_true]
    return {
        "episodes": len(reader.lengths),
        "frames": sum(reader.lengths),
        "data files": len(list((path / "data").rglob("*.parquet"))),
        "interventions": round(float(there["complementary_info.is_intervention"].mean()), 3),
        "numbers differ by": numbers,
        "pictures differ by (of 255)": pictures,
        "failed": ", ".join(failed),
        "equal": numbers == 0 and pictures <= (VIDEO_TOLERANCE if lossy else 0) and not failed,
    }


def tasks_of(reader: EpisodeReader) -> list[str | None]:
    return [reader.glance(number).task for number, length in enumerate(reader.lengths) for _ in range(length)]


def are_right(here: list[dict[str, Any]], there: Any, reader: LeRobotReader) -> bool:
    """Return whether lerobot finds the mean and deviation of the numbers themselves."""
    for name in here[0]:
        if not reader.info.features[name].is_picture:
            numbers = np.concatenate([columns[name] for columns in here]).astype(np.float64)
            if not np.allclose(there[f"std|{name}"].ravel(), numbers.std(0).ravel(), rtol=1e-5, atol=1e-7):
                return False
            if not np.allclose(there[f"mean|{name}"].ravel(), numbers.mean(0).ravel(), rtol=1e-5, atol=1e-7):
                return False
    return True


CHECKS: dict[str, Callable[[Path], Path]] = {
    "recorded, PNG": record,
    "recorded, video": lambda folder: record(folder, pictures="video"),
    "recorded, taken back to the middle of an episode, recorded on": lambda folder: record(folder, cut_at=3),
    "the same as video": lambda folder: record(folder, pictures="video", cut_at=3),
    "recorded and joined": joined,
    "joined, cut in the middle of its file, recorded on": joined_and_cut,
    "two recordings merged": merged,
    "a run of lab train killed twice with -9 and resumed": killed_run,
}

if __name__ == "__main__":
    try:
        main()
    except (RuntimeError, subprocess.SubprocessError) as error:
        sys.exit(f"error: {error}")
