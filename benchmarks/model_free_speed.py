"""PPO's speed beside Stable-Baselines3 and SBX: env steps per second of the whole training loop, in one run.

Same environments, network, batch and number of copies for all. The rounds are interleaved (lab sb3 sbx lab sb3 ...),
because a shared machine drifts: the ratio is taken within each round, and its median is the result. Every library logs
as it does by default without a terminal; none evaluates or writes checkpoints. A process gets a core per thread.

    python benchmarks/model_free_speed.py                           # about 15 minutes
    python benchmarks/model_free_speed.py --rounds 1 --window 3 --name try     # does it work at all?
    python benchmarks/model_free_speed.py --peer my_worker.py .peers/mine/bin/python

A worker takes one JSON argument and prints one JSON line: see `workers/window.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from harness import ROOT, markdown_table, run, run_json, write_results

WORKERS = ROOT / "benchmarks" / "workers"
PEERS = ROOT / ".peers"
SHARED = ("torch==2.13.0", "gymnasium==1.4.0", "gymnasium[mujoco]", "mujoco==3.17.0")  # as the lab has them
PACKAGES = {"sb3": ("stable-baselines3",), "sbx": ("sbx-rl", "jax")}
TASKS: dict[str, dict[str, Any]] = {
    "cartpole": {
        "env_id": "CartPole-v1",
        "num_envs": 8,
        "num_steps": 128,
        "num_epochs": 4,
        "minibatch_size": 256,
        "hidden": [64, 64],
        "learning_rate": 2.5e-4,
        "use_normalization": False,
    },
    "halfcheetah": {
        "env_id": "HalfCheetah-v5",
        "num_envs": 8,
        "num_steps": 256,
        "num_epochs": 10,
        "minibatch_size": 64,
        "hidden": [64, 64],
        "learning_rate": 3e-4,
        "use_normalization": True,
    },
}


class Worker(NamedTuple):
    """A library: the Python it is installed in, and the script that trains with it."""

    python: str
    script: str


def main() -> None:
    args = parse_arguments()
    workers = {name: Worker(str(peer_python(name)), str(WORKERS / f"{name}_ppo.py")) for name in args.libraries}
    workers = {"lab": Worker(sys.executable, str(WORKERS / "lab_ppo.py"))} | workers
    workers |= {Path(paths[0]).stem: peer_worker(*paths) for paths in args.peer}
    rows = []
    for task, threads in product(args.tasks, args.threads):
        rows += measure_rounds(task, threads, workers, args)
        write_results(args.name, rows, summary=summary(rows), tasks=TASKS, seeds=list(range(args.rounds)))
    print(f"\n{markdown_table(summary(rows))}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--libraries", nargs="*", choices=PACKAGES, default=list(PACKAGES), help="peers to install")
    parser.add_argument("--peer", nargs="+", action="append", default=[], metavar="PATH", help="worker [python]")
    parser.add_argument("--rounds", type=int, default=3, help="each round has its own seed")
    parser.add_argument("--warmup", type=float, default=4.0, help="seconds")
    parser.add_argument("--window", type=float, default=12.0, help="seconds")
    parser.add_argument("--name", default="model_free_speed", help="of the result files")
    return parser.parse_args()


def peer_worker(script: str, python: str = sys.executable) -> Worker:
    """Return the worker of a `--peer`; without a Python of its own it runs in the lab's."""
    return Worker(str(Path(python).absolute()), str(Path(script).absolute()))


def peer_python(name: str) -> Path:
    """Return the Python of a peer's own environment, installing it when it is not there."""
    python = PEERS / name / "bin" / "python"
    marker = PEERS / name / "installed"
    if not marker.exists():
        print(f"installing {name} into {python.parents[1]}")
        run([sys.executable, "-m", "venv", str(PEERS / name)])
        run([str(python), "-m", "pip", "install", "--quiet", *SHARED, *PACKAGES[name]])
        marker.touch()
    return python


def measure_rounds(
    task: str, threads: int, workers: dict[str, Worker], args: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Yield one row per library and round, the libraries in turns."""
    for seed, (name, worker) in product(range(args.rounds), workers.items()):
        spec = TASKS[task] | {"threads": threads, "warmup_s": args.warmup, "window_s": args.window, "seed": seed}
        with cores(threads):
            result = run_json([worker.python, worker.script, json.dumps(spec)], OMP_NUM_THREADS=str(threads))
        row = {"task": task, "threads": threads, "round": seed} | result | {"library": name}
        speed = f"{row['env_steps_per_s']:,.0f} env steps/s on {row['cores_used']:.2f} cores"
        print(f"{task} threads={threads} round={seed} {name}: {speed}", flush=True)
        yield row


@contextmanager
def cores(count: int) -> Iterator[None]:
    """Let processes started in this block have the first `count` cores: XLA heeds no other limit."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return per task, thread count and peer: every value, and the median of the ratios within the rounds."""
    speeds: dict[tuple[str, int, str], list[float]] = {}
    cores_used: dict[tuple[str, int, str], list[float]] = {}  # below the thread count of 1: the machine was not idle
    for row in rows:
        key = (row["task"], row["threads"], row["library"])
        speeds.setdefault(key, []).append(row["env_steps_per_s"])
        cores_used.setdefault(key, []).append(row["cores_used"])
    table = []
    for (task, threads, library), values in speeds.items():
        ratios = [ours / theirs for ours, theirs in zip(speeds[task, threads, "lab"], values, strict=True)]
        table.append(
            {
                "task": task,
                "threads": threads,
                "library": library,
                "env steps/s": " ".join(f"{value:.0f}" for value in values),
                "median": f"{median(values):.0f}",
                "cores used": median(cores_used[task, threads, library]),
                "lab is faster by": "-" if library == "lab" else f"{median(ratios):.2f}x",
                "in each round": "-" if library == "lab" else " ".join(f"{ratio:.2f}" for ratio in ratios),
            }
        )
    return table


if __name__ == "__main__":
    try:
        main()
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        sys.exit(f"error: {error}")
