"""What a checkpoint of a large replay buffer costs when little of it is new, and whether going back is exact.

A buffer of 64x64 pictures is filled to 1 GB and saved; then 2000 rows (24 MB) are added before each further save. The
same content is saved a second time as plain tensors, as a checkpoint without segments would. In the end the first
checkpoint is loaded again and must hold what it held. The exit code says whether saves stay under the limit and going
back is exact.

    python benchmarks/checkpoint_buffers.py
    python benchmarks/checkpoint_buffers.py --gigabytes 0.1 --saves 3 --name try
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from harness import markdown_table, write_results

from rl_lab.buffers.replay import ReplayBuffer
from rl_lab.core import Box, Discrete, EnvSpec, Segment, State
from rl_lab.tracking.checkpoint import CheckpointStore
from rl_lab.tracking.fingerprint import tree_hash

SHAPE = (3, 64, 64)
PICTURE = 3 * 64 * 64  # bytes
SPEC = EnvSpec("pictures", Box(SHAPE, torch.uint8, 0, 255), Discrete(4))
CHUNK = 500  # rows added at once


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(1)
    rng = torch.Generator().manual_seed(0)
    capacity = int(args.gigabytes * 1e9) // PICTURE
    buffer = ReplayBuffer(capacity, 32, num_envs=1, spec=SPEC, seed=0)
    add(buffer, capacity, rng)
    with tempfile.TemporaryDirectory(dir=args.directory) as folder:
        row, is_exact = measure(buffer, rng, Path(folder), args)
    write_results(args.name, [row], limit_s=args.limit)
    print(markdown_table([row]))
    if not is_exact or row["save s (median)"] > args.limit:
        sys.exit(f"error: {'over the limit' if is_exact else 'the first checkpoint is not what it was'}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0, help="of the buffer")
    parser.add_argument("--rows", type=int, default=2000, help="added before each save")
    parser.add_argument("--saves", type=int, default=7, help="after the first")
    parser.add_argument("--limit", type=float, default=0.3, metavar="S", help="for the median save")
    parser.add_argument("--directory", help="on the disk to measure; none: that of temporary files")
    parser.add_argument("--name", default="checkpoint_buffers", help="of the result files")
    return parser.parse_args()


def add(buffer: ReplayBuffer, rows: int, rng: torch.Generator) -> None:
    """Add random pictures, which no file system can make smaller."""
    for start in range(0, rows, CHUNK):
        count = min(CHUNK, rows - start)
        pictures = torch.randint(256, (count + 1, 1, *SHAPE), dtype=torch.uint8, generator=rng)
        flags = torch.zeros(count, 1, dtype=torch.bool)
        buffer.add(
            {
                "observations": pictures[:-1],
                "actions": torch.randint(4, (count, 1), generator=rng),
                "rewards": torch.rand(count, 1, generator=rng),
                "terminated": flags,
                "truncated": flags,
                "final_observations": pictures[1:],
                "is_first": flags,
            }
        )


def measure(
    buffer: ReplayBuffer, rng: torch.Generator, folder: Path, args: argparse.Namespace
) -> tuple[dict[str, Any], bool]:
    """Return the times, and whether the first checkpoint was still exact at the end."""
    store, plain = CheckpointStore(folder / "segments", keep_last=args.saves + 1), CheckpointStore(folder / "plain")
    first_hash = tree_hash(buffer.get_state())
    first, first_s = save(store, buffer.get_state())
    times, plain_times = [], []
    for _ in range(args.saves):
        add(buffer, args.rows, rng)
        times.append(save(store, buffer.get_state())[1])
        plain_times.append(save(plain, without_segments(buffer.get_state()))[1])
    start = time.perf_counter()
    loaded = store.load(first).state
    load_s = time.perf_counter() - start
    row = {
        "buffer MB": size(buffer.get_state()) / 1e6,
        "rows new": args.rows,
        "MB new": args.rows * PICTURE / 1e6,
        "first save s": first_s,
        "save s (median)": statistics.median(times),
        "save s (max)": max(times),
        "save s as plain tensors": statistics.median(plain_times),
        "load s": load_s,
        "going back": "exact" if tree_hash(loaded) == first_hash else "DIFFERENT",
    }
    return row, row["going back"] == "exact"


def save(store: CheckpointStore, state: State) -> tuple[Path, float]:
    start = time.perf_counter()
    path = store.save(state, counters={}, phase="bench")
    return path, time.perf_counter() - start


def without_segments(tree: Any) -> Any:
    """Return the same content in plain tensors."""
    if isinstance(tree, dict):
        return {key: without_segments(part) for key, part in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(without_segments(part) for part in tree)
    return tree.tensor if isinstance(tree, Segment) else tree


def size(tree: Any) -> int:
    """Return the bytes in a tree's segments."""
    if isinstance(tree, dict):
        return sum(size(part) for part in tree.values())
    if isinstance(tree, list | tuple):
        return sum(size(part) for part in tree)
    return tree.tensor.nbytes if isinstance(tree, Segment) else 0


if __name__ == "__main__":
    main()
