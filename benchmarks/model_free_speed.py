"""Speed beside Stable-Baselines3 and SBX: env steps per second of the whole training loop, in one run.

Same environments, networks, batches and updates per step for all. The rounds are interleaved (lab sb3 sbx lab sb3 ...),
because a shared machine drifts: the ratio is taken within each round, and its median is the result. Every library logs
as it does by default without a terminal; none evaluates or writes checkpoints. A process gets a core per thread.
The window begins after the first updates, in which compilers work: what those took longer is `compile_s`.
`lab_bfloat16` is the lab with `experiment.precision=bfloat16`: matrix products of updates alone, for who wants them.

    python benchmarks/model_free_speed.py                           # about an hour
    python benchmarks/model_free_speed.py --tasks sac_halfcheetah --threads 2     # other rows of the results stay
    python benchmarks/model_free_speed.py --rounds 1 --window 3 --name try        # does it work at all?
    python benchmarks/model_free_speed.py --peer my_worker.py .peers/mine/bin/python
    python benchmarks/model_free_speed.py --compile compiled eager --libraries --name compile_auto     # no peers

Of several ways in `--compile` the first one is `lab`, another one `lab_<way>`; `compiling pays after` is the number of
env steps in which the first one has caught up with the time that its first updates take.

A worker takes one JSON argument and prints one JSON line: see `workers/window.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from harness import RESULTS, ROOT, git_commit, markdown_table, run, run_json, write_results

WORKERS = ROOT / "benchmarks" / "workers"
PEERS = ROOT / ".peers"
SHARED = ("torch==2.13.0", "gymnasium==1.4.0", "gymnasium[mujoco]", "mujoco==3.17.0")  # as the lab has them
PACKAGES = {"sb3": ("stable-baselines3",), "sbx": ("sbx-rl", "jax")}

PPO = {"algorithm": "ppo", "num_envs": 8, "hidden": [64, 64], "learning_starts": 0, "warmup_iterations": 3}
OFF_POLICY = {"num_envs": 1, "learning_starts": 300, "warmup_iterations": 100}  # env steps; cycles
CONTINUOUS = OFF_POLICY | {"hidden": [256, 256], "learning_rate": 3e-4, "batch_size": 256}
SAC = {"buffer_size": 1_000_000, "steps_per_update": 1, "gamma": 0.99, "tau": 0.005}  # temperature: automatic
TD3 = SAC | {"policy_delay": 2, "target_noise": 0.2, "target_noise_clip": 0.5, "exploration_noise": 0.1}
DQN = {
    "buffer_size": 10_000,
    "steps_per_update": 10,
    "gamma": 0.99,
    "target_update_steps": 500,
    "epsilon": 0.29,  # CleanRL's mean over a run (1 to 0.05 in the first half); a schedule would favour who comes far
    "max_grad_norm": 10.0,  # Stable-Baselines3 always clips
}
TASKS: dict[str, dict[str, Any]] = {
    "sac_halfcheetah": CONTINUOUS | {"algorithm": "sac", "env_id": "HalfCheetah-v5", "settings": SAC},
    "sac_pendulum": CONTINUOUS | {"algorithm": "sac", "env_id": "Pendulum-v1", "settings": SAC},
    "td3_halfcheetah": CONTINUOUS | {"algorithm": "td3", "env_id": "HalfCheetah-v5", "settings": TD3},
    "dqn_cartpole": OFF_POLICY
    | {"algorithm": "dqn", "env_id": "CartPole-v1", "hidden": [120, 84], "learning_rate": 2.5e-4, "batch_size": 128}
    | {"settings": DQN},
    "ppo_cartpole": PPO
    | {"env_id": "CartPole-v1", "learning_rate": 2.5e-4, "batch_size": 256}
    | {"settings": {"num_steps": 128, "num_epochs": 4, "use_normalization": False}},
    "ppo_halfcheetah": PPO
    | {"env_id": "HalfCheetah-v5", "learning_rate": 3e-4, "batch_size": 64}
    | {"settings": {"num_steps": 256, "num_epochs": 10, "use_normalization": True}},
}
LOW = "lab_bfloat16"
IN_BFLOAT16 = ("sac", "td3")  # whose products are large enough to gain by it
GOALS = {  # the lab's speed over that library's, with that many threads
    ("sac", "sb3"): (2.4, {2}),
    ("sac", "sbx"): (1.5, {2}),
    ("td3", "sb3"): (2.0, {1, 2}),
    ("dqn", "sb3"): (2.5, {1, 2}),
    ("ppo", "sb3"): (3.0, {1, 2}),
}


class Worker(NamedTuple):
    """A library: the Python it is installed in, and the script that trains with it."""

    python: str
    script: str
    precision: str = "float32"
    compile: str = "auto"


def main() -> None:
    args = parse_arguments()
    workers = {name: Worker(str(peer_python(name)), str(WORKERS / f"{name}_training.py")) for name in args.libraries}
    workers = lab_workers(args.compile) | workers
    workers |= {Path(paths[0]).stem: peer_worker(*paths) for paths in args.peer}
    rows = [] if args.fresh else earlier_rows(args)
    for task, threads in product(args.tasks, args.threads):
        rows += measure_rounds(task, threads, workers, args)
        rows.sort(key=lambda row: (list(TASKS).index(row["task"]), row["threads"]))  # stable: rounds stay in order
        write_results(args.name, rows, summary=summary(rows), tasks=TASKS, seeds=list(range(args.rounds)))
    print(f"\n{markdown_table(summary(rows))}")


def lab_workers(ways: list[str]) -> dict[str, Worker]:
    """Return the lab, and beside it either its other precision or its other ways to run updates."""
    lab = Worker(sys.executable, str(WORKERS / "lab_training.py"), compile=ways[0])
    if len(ways) == 1:
        return {"lab": lab, LOW: lab._replace(precision="bfloat16")}
    return {"lab": lab} | {f"lab_{way}": lab._replace(compile=way) for way in ways[1:]}


def earlier_rows(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows of the result file that this run does not measure anew."""
    path = RESULTS / f"{args.name}.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    measured = set(product(args.tasks, args.threads))
    return [row for row in rows if row["task"] in TASKS and (row["task"], row["threads"]) not in measured]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--libraries", nargs="*", choices=PACKAGES, default=list(PACKAGES), help="peers to install")
    parser.add_argument("--peer", nargs="+", action="append", default=[], metavar="PATH", help="worker [python]")
    parser.add_argument("--rounds", type=int, default=3, help="each round has its own seed")
    parser.add_argument("--warmup", type=float, default=4.0, help="seconds after the iterations that compile")
    parser.add_argument("--window", type=float, default=12.0, help="seconds")
    ways = ("auto", "eager", "compiled")
    parser.add_argument("--compile", nargs="+", choices=ways, default=["auto"], help="the lab's updates")
    parser.add_argument("--name", default="model_free_speed", help="of the result files")
    parser.add_argument("--fresh", action="store_true", help="drop earlier rows of other tasks and threads")
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
    """Yield one row per library and round, the libraries in turns; the first round finds torch's cache empty."""
    with tempfile.TemporaryDirectory() as cache, cores(threads):
        variables = {"OMP_NUM_THREADS": str(threads), "TORCHINDUCTOR_CACHE_DIR": cache}
        for seed, (name, worker) in product(range(args.rounds), workers.items()):
            if name == LOW and TASKS[task]["algorithm"] not in IN_BFLOAT16:
                continue
            times = {"warmup_s": args.warmup, "window_s": args.window}
            spec = TASKS[task] | times | {"threads": threads, "seed": seed, "compile": worker.compile}
            spec["precision"] = worker.precision
            result = run_json([worker.python, worker.script, json.dumps(spec)], **variables)
            row = {"task": task, "threads": threads, "round": seed} | result | {"library": name, "commit": git_commit()}
            speed = f"{row['env_steps_per_s']:,.0f} env steps/s on {row['cores_used']:.2f} cores"
            print(
                f"{task} threads={threads} round={seed} {name}: {speed}, compile {row['compile_s']:.1f} s", flush=True
            )
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
    """Return per task, thread count and library: every value, and the median of the ratios within the rounds."""
    groups: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["task"], row["threads"], row["library"]), []).append(row)
    table = []
    for (task, threads, library), group in groups.items():
        speeds = [row["env_steps_per_s"] for row in group]
        ratios, low_ratios = (
            [] if library in ("lab", LOW) else ratios_to(groups.get((task, threads, lab), []), speeds)
            for lab in ("lab", LOW)
        )
        goal, of_threads = GOALS.get((TASKS[task]["algorithm"], library), (None, set()))
        table.append(
            {
                "task": task,
                "threads": threads,
                "library": library,
                "env steps/s": " ".join(f"{speed:.0f}" for speed in speeds),
                "median": f"{median(speeds):.0f}",
                "cores used": median(row["cores_used"] for row in group),  # below 1: the machine was not idle
                "compile s": " ".join(f"{row['compile_s']:.1f}" for row in group),
                "lab is faster by": f"{median(ratios):.2f}x" if ratios else "-",
                "in each round": " ".join(f"{ratio:.2f}" for ratio in ratios) or "-",
                "in bfloat16": f"{median(low_ratios):.2f}x" if low_ratios else "-",
                "compiling pays after": pays_after(groups.get((task, threads, "lab"), []), group),
                "goal": f"{goal}x" if threads in of_threads else "-",
            }
        )
    return table


def pays_after(compiled: list[dict[str, Any]], eager: list[dict[str, Any]]) -> str:
    """Return how many env steps the lab's first way needs to catch up with another of its ways."""
    if not compiled or not eager[0]["library"].startswith("lab_") or eager[0]["library"] == LOW:
        return "-"
    steps = []
    for fast, slow in zip(compiled, eager, strict=True):
        saved_s = 1.0 / slow["env_steps_per_s"] - 1.0 / fast["env_steps_per_s"]  # per env step
        steps.append((fast["compile_s"] - slow["compile_s"]) / saved_s if saved_s > 0.0 else float("inf"))
    return f"{median(steps):,.0f}"


def ratios_to(ours: list[dict[str, Any]], speeds: list[float]) -> list[float]:
    """Return how much faster the lab was than a peer, round by round; nothing where it was not measured."""
    return [row["env_steps_per_s"] / peer for row, peer in zip(ours, speeds, strict=bool(ours))]


if __name__ == "__main__":
    try:
        main()
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        sys.exit(f"error: {error}")
