"""Buffers on a GPU: what a draw costs there, that it never waits for the device, and that a restored one goes on.

Usage: python benchmarks/buffers_gpu.py [--scale 1.0] [--device cuda]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, provenance

from rl_lab.buffers.episode import EpisodeBuffer
from rl_lab.buffers.prioritized import PrioritizedReplayBuffer
from rl_lab.buffers.replay import ReplayBuffer
from rl_lab.buffers.sequence import SequenceBuffer
from rl_lab.core import Buffer, tree_leaves

NUM_ENVS, CHUNK, REPEATS = 64, 64, 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full capacities")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=RESULTS / "buffers_gpu.json")
    args = parser.parse_args()
    rows = []
    for name, (make, shape, rows_per_draw) in cases(args.scale, args.device).items():
        rows.append({"buffer": name, **measure(make, shape, rows_per_draw, torch.device(args.device))})
        print(json.dumps(rows[-1]), flush=True)
    name = torch.cuda.get_device_name() if args.device == "cuda" else "none"
    args.out.write_text(json.dumps({**provenance(), "gpu": name, "rows": rows}, indent=1) + "\n")


def cases(scale: float, device: str) -> dict[str, tuple[Callable[[int], Any], list[int], int]]:
    """Return by name: a maker that takes a seed, the shape of an observation, and rows per draw."""
    million, images = int(1_000_000 * scale), int(100_000 * scale)
    shared: dict[str, Any] = {"num_envs": NUM_ENVS, "device": device}
    return {
        "replay, 1 M states": (lambda s: ReplayBuffer(million, 256, seed=s, **shared), [17], 256),
        "replay, 1 M states, 3 steps": (lambda s: ReplayBuffer(million, 256, n_step=3, seed=s, **shared), [17], 256),
        "prioritized, 1 M states": (lambda s: PrioritizedReplayBuffer(million, 256, seed=s, **shared), [17], 256),
        "replay, 100 k frames 84x84x4": (
            lambda s: ReplayBuffer(images, 256, frame_stack=4, seed=s, **shared),
            [4, 84, 84],
            256,
        ),
        "sequences 16 x 64, 1 M states": (lambda s: SequenceBuffer(million, 16, 64, seed=s, **shared), [17], 1024),
        "sequences 16 x 64, 100 k images, new ones first": (
            lambda s: SequenceBuffer(images, 16, 64, online=True, seed=s, **shared),
            [3, 64, 64],
            1024,
        ),
        "chunks of 16, 1 M states": (
            lambda s: EpisodeBuffer(million, 256, chunk_length=16, history=2, seed=s, **shared),
            [17],
            256,
        ),
    }


def measure(make: Callable[[int], Any], shape: list[int], rows: int, device: torch.device) -> dict[str, Any]:
    """Fill a buffer, draw from it, and compare its draws with those of one that was restored from its state."""
    buffer, again = make(1), make(2)
    added = fill(buffer, shape, device)
    again.set_state(buffer.get_state())
    is_exact = all(
        torch.equal(a, b)
        for _ in range(3)
        for (_, a), (_, b) in zip(tree_leaves(buffer.sample()), tree_leaves(again.sample()), strict=True)
    )
    never_waits = draw_without_waiting(buffer, device)
    synchronize(device)
    start = time.perf_counter()
    for _ in range(REPEATS):
        buffer.sample()
    synchronize(device)
    seconds = (time.perf_counter() - start) / REPEATS
    return {
        "added_rows_per_s": round(added),
        "draw_us": round(seconds * 1e6, 1),
        "drawn_rows_per_s": round(rows / seconds),
        "never_waits": never_waits,
        "restored_draws_are_equal": is_exact,
    }


def fill(buffer: Any, shape: list[int], device: torch.device) -> float:
    """Add chunks until the buffer is full; return rows per second."""
    chunks = -(-buffer.capacity // (NUM_ENVS * CHUNK)) + 1
    pictures = (
        torch.randint(0, 256, (CHUNK + 1, NUM_ENVS, *shape), dtype=torch.uint8, device=device)
        if len(shape) == 3
        else torch.randn(CHUNK + 1, NUM_ENVS, *shape, device=device)
    )
    no = torch.zeros(CHUNK, NUM_ENVS, dtype=torch.bool, device=device)
    last = no.clone()
    last[-1] = True
    trajectory = {
        "observations": pictures[:-1],
        "actions": torch.randn(CHUNK, NUM_ENVS, 6, device=device),
        "rewards": torch.randn(CHUNK, NUM_ENVS, device=device),
        "terminated": no,
        "truncated": last,
        "final_observations": pictures[1:],
        "is_first": last.roll(1, 0),
    }
    start = time.perf_counter()
    for _ in range(chunks):
        buffer.add(trajectory)
    synchronize(device)
    return chunks * CHUNK * NUM_ENVS / (time.perf_counter() - start)


def draw_without_waiting(buffer: Buffer, device: torch.device) -> bool:
    """Return whether a draw does without waiting for the device, by torch's own watch."""
    if device.type != "cuda":
        return True
    torch.cuda.set_sync_debug_mode("error")
    try:
        buffer.sample()
    except RuntimeError as error:
        print(f"waits: {error}")
        return False
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return True


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
