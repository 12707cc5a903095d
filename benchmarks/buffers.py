"""The buffers' speed beside those of Stable-Baselines3 and TorchRL: rows added and drawn per second, in one run.

Same data, capacity and batch for all, each library in its own environment and process. The rounds are interleaved (lab
sb3 torchrl lab ...), because a shared machine drifts: the ratio is taken within each round, its median is the result.

    python benchmarks/buffers.py                                        # about 20 minutes
    python benchmarks/buffers.py --rounds 1 --window 0.3 --scale 0.02 --name try     # does it work at all?

`add` stores 64 vector steps at once (Stable-Baselines3 takes them one by one), `add one step` a single one;
`sample B` draws B transitions, or B sequences. `sb3_lean` is Stable-Baselines3 with `optimize_memory_usage`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from statistics import median
from typing import Any

from harness import ROOT, markdown_table, run, run_json, write_results

WORKERS = ROOT / "benchmarks" / "workers"
PEERS = ROOT / ".peers"
PACKAGES = {
    "sb3": ("torch==2.13.0", "gymnasium==1.4.0", "stable-baselines3"),
    "torchrl": ("torch==2.13.0", "numpy", "torchrl==0.14.1", "tensordict==0.14.3"),
}
HOMES = {"sb3": "sb3", "sb3_lean": "sb3", "torchrl": "torchrl"}
SHARED = {"num_envs": 8, "frame_stack": 1, "action": 6, "sequence_length": 1, "episode_length": 1000}
PIXELS = [3, 64, 64]
TASKS: dict[str, dict[str, Any]] = {
    "state": SHARED
    | {"kind": "transitions", "capacity": 1_000_000, "observation": [17], "batch_sizes": [256], "peers": list(HOMES)},
    "frames": SHARED
    | {"kind": "transitions", "capacity": 100_000, "observation": [4, 84, 84], "frame_stack": 4}
    | {"batch_sizes": [32, 256], "peers": list(HOMES)},
    "sequences_state": SHARED
    | {"kind": "sequences", "capacity": 1_000_000, "observation": [17], "sequence_length": 64}
    | {"batch_sizes": [16], "peers": ["torchrl"]},
    "sequences_pixels": SHARED
    | {"kind": "sequences", "capacity": 100_000, "observation": PIXELS, "sequence_length": 64}
    | {"batch_sizes": [16], "peers": ["torchrl"]},
}


def main() -> None:
    args = parse_arguments()
    rows: list[dict[str, Any]] = []
    for task in args.tasks:
        rows += measure_rounds(task, args)
        write_results(args.name, rows, summary=summary(rows), tasks=TASKS)
    print(f"\n{markdown_table(summary(rows))}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--window", type=float, default=3.0, help="seconds per number")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0, help="of the capacities, for a try-out")
    parser.add_argument("--name", default="buffers", help="of the result files")
    return parser.parse_args()


def peer_python(name: str) -> str:
    """Return the Python of a peer's own environment, installing it when it is not there."""
    folder = PEERS / HOMES[name]
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        print(f"installing {HOMES[name]} into {folder}")
        run([sys.executable, "-m", "venv", str(folder)])
        run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES[HOMES[name]]])
        (folder / "installed").touch()
    return str(python)


def measure_rounds(task: str, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield one row per number, library and round, the libraries in turns."""
    spec = {key: value for key, value in TASKS[task].items() if key != "peers"}
    spec |= {"window_s": args.window, "threads": args.threads}
    spec["capacity"] = int(spec["capacity"] * args.scale) // spec["num_envs"] * spec["num_envs"]
    for round_, library in product(range(args.rounds), ["lab", *TASKS[task]["peers"]]):
        python = sys.executable if library == "lab" else peer_python(library)
        command = [python, str(WORKERS / f"{library}_buffers.py"), json.dumps(spec)]
        result = run_json(command, OMP_NUM_THREADS=str(args.threads), RL_LOGGING_LEVEL="ERROR")
        load = os.getloadavg()[0]
        for number, rows_per_s in result["numbers"].items():
            yield {"task": task, "number": number, "round": round_, "library": library} | {
                "version": result["version"],
                "rows_per_s": rows_per_s,
                "load_average": load,
            }
        shown = ", ".join(f"{number} {rate:,.0f}" for number, rate in result["numbers"].items())
        print(f"{task} round={round_} {library}: {shown} rows/s", flush=True)


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return per number and peer: the medians, and the median of the ratios within the rounds."""
    rates: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        rates.setdefault((row["task"], row["number"], row["library"]), []).append(row["rows_per_s"])
    table = []
    for (task, number, library), values in rates.items():
        ours = rates[task, number, "lab"]
        ratios = [mine / theirs for mine, theirs in zip(ours, values, strict=True)]
        table.append(
            {
                "task": task,
                "number": number,
                "library": library,
                "rows/s (median)": f"{median(values):.0f}",
                "lab is faster by": "-" if library == "lab" else f"{median(ratios):.2f}x",
                "in each round": "-" if library == "lab" else " ".join(f"{ratio:.2f}" for ratio in ratios),
            }
        )
    return sorted(table, key=lambda row: (list(TASKS).index(row["task"]), row["number"]))


if __name__ == "__main__":
    try:
        main()
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        sys.exit(f"error: {error}")
