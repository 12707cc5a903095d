"""A dataset's writer is killed with -9 at random moments: every episode whose `save` had returned is read back equal.

The writer saves episodes for ever, and closes and reopens the dataset now and then, so that kills also hit the joining
of files. After each kill the dataset is opened for reading as it lies there and every episode is compared; the next
writer goes on with the same directory.

    python benchmarks/dataset_kill.py
    python benchmarks/dataset_kill.py --kills 5 --name try
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import tempfile
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from harness import markdown_table, write_results

from rl_lab.buffers.datasets.format import Episode
from rl_lab.buffers.datasets.open import open_dataset, open_writer

FORMATS: dict[str, dict[str, Any]] = {
    "lab": {"format": "lab"},
    "lerobot, PNG": {"format": "lerobot", "fps": 10},
    "lerobot, video": {"format": "lerobot", "fps": 10, "pictures": "video", "video_codec": "h264"},
}
SESSION = 4  # episodes between two closes
DEADLINE_S = 60.0


def episode(number: int) -> Episode:
    """Return what a writer saves as its `number`-th episode."""
    rng = np.random.default_rng(number)
    steps = int(rng.integers(3, 12))
    pictures = np.full((steps + 1, 3, 32, 48), number % 200, dtype=np.uint8) + np.arange(steps + 1)[:, None, None, None]
    state = rng.normal(size=(steps + 1, 6)).astype(np.float32)
    return Episode(
        observations={"state": state[:-1], "camera": pictures[:-1].astype(np.uint8)},
        actions=rng.normal(size=(steps, 2)).astype(np.float32),
        rewards=rng.normal(size=steps).astype(np.float32),
        terminated=number % 3 == 0,
        truncated=number % 3 != 0,
        final_observation={"state": state[-1], "camera": pictures[-1].astype(np.uint8)},
        infos={"is_intervention": rng.random(steps) < 0.5},
        task=f"task {number % 5}",
    )


def save_for_ever(path: str, options: dict[str, Any], saved: int, report: Connection) -> None:
    """Save the episodes from the next one on, and report how many there are after each."""
    while True:
        with open_writer(path, **options) as writer:
            for _ in range(SESSION):
                number = writer.save(episode(saved))
                saved = number + 1
                report.send(saved)


def main() -> None:
    args = parse_arguments()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, options in FORMATS.items():
            rows.append(kill_writers(name, options, Path(folder) / name.replace(", ", "_"), args))
            print(rows[-1], flush=True)
    write_results(args.name, rows, seeds=[args.seed])
    print(markdown_table(rows))
    if any(row["episodes lost"] or row["episodes changed"] or row["kills"] < args.kills for row in rows):
        sys.exit("error: a dataset did not survive")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="of each format")
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    parser.add_argument("--name", default="dataset_kill", help="of the result files")
    return parser.parse_args()


def kill_writers(name: str, options: dict[str, Any], path: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Kill one writer after the other and return what became of their dataset."""
    rng, found = random.Random(args.seed), Counter[str]()
    there = lost = changed = 0
    for _ in range(args.kills):
        acknowledged = kill_one(path, options, there, rng.uniform(0.0, 0.6))
        found[leftovers(path)] += 1
        reader = open_dataset(path)
        lost += max(0, acknowledged - len(reader.lengths))
        there = len(reader.lengths)
        is_lossy = options.get("pictures") == "video"
        changed += sum(not is_same(reader.read(number), episode(number), is_lossy) for number in range(there))
    with open_writer(path, **options) as writer:  # it can still be added to
        writer.save(episode(there))
    return {
        "format": name,
        "kills": found.total(),
        "in a file's write": found["write"],
        "while joining files": found["joining"],
        "elsewhere": found["elsewhere"],
        "episodes": there + 1,
        "episodes lost": lost,
        "episodes changed": changed,
    }


def kill_one(path: Path, options: dict[str, Any], there: int, delay_s: float) -> int:
    """Start a writer, kill it `delay_s` after its first episode, and return how many episodes it had acknowledged."""
    receiver, sender = LAB.Pipe(duplex=False)
    process = LAB.Process(target=save_for_ever, args=(str(path), options, there, sender))
    process.start()
    sender.close()
    saved = there
    if not receiver.poll(DEADLINE_S):
        process.kill()
        raise RuntimeError(f"the writer showed nothing for {DEADLINE_S:.0f} s")
    process.join(delay_s)
    process.kill()
    process.join()
    if process.exitcode is None or process.exitcode >= 0:
        raise RuntimeError(f"the writer ended by itself with {process.exitcode}")
    try:
        while receiver.poll():
            saved = receiver.recv()
    except EOFError:
        pass
    return saved


def leftovers(path: Path) -> str:
    """Return what the kill interrupted, by what it left."""
    if (path / ".compaction").exists():
        return "joining"
    return "write" if any(name.startswith(".tmp-") for _, _, names in os.walk(path) for name in names) else "elsewhere"


def is_same(found: Episode, wanted: Episode, is_lossy: bool) -> bool:
    """Return whether all arrays, flags and words are equal; pictures of a video up to the codec's noise."""
    if (found.terminated, found.task) != (wanted.terminated, wanted.task) or len(found) != len(wanted):
        return False
    pairs = {name: (array, found.arrays()[name]) for name, array in wanted.arrays().items()}
    if is_lossy:
        a, b = pairs.pop("observations/camera")
        if np.abs(a.astype(int) - b).max() > 3:
            return False
    return all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in pairs.values())


LAB = multiprocessing.get_context("forkserver")  # a process that has imported everything forks the writers
LAB.set_forkserver_preload(
    ["rl_lab.buffers.datasets.lerobot_writer", "rl_lab.buffers.datasets.video_file", "rl_lab.buffers.datasets.lab"]
)

if __name__ == "__main__":
    try:
        main()
    except RuntimeError as error:
        sys.exit(f"error: {error}")
