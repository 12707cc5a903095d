"""The catalogue with ten thousand runs: rebuild, list and filter, eight writers at once; a curve of 200,000 rows drawn.

The runs are synthetic: directories with the files of a finished run, made from one real config; every fifth is a trial
of a sweep. Times in the process include looking at every directory; those of commands also Python's start and imports.

    python benchmarks/catalogue_speed.py
    python benchmarks/catalogue_speed.py --runs 500 --name try
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import random
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from harness import markdown_table, write_results

from rl_lab.tracking.atomic import replace_file
from rl_lab.tracking.catalogue import choose, choose_runs, list_runs, values
from rl_lab.tracking.comparison import compare_experiments
from rl_lab.tracking.figures import draw_curves, render
from rl_lab.tracking.index import Index

ALGORITHMS, ENVIRONMENTS = ("ppo", "sac", "td3", "dqn"), ("HalfCheetah-v5", "Hopper-v5", "CartPole-v1", "Ant-v5")
FILTERS = (
    "algorithm=ppo",
    "environment~Cheetah status=done",
    "eval/return>3000",
    "algorithm.gamma=0.99 tag=paper",
    "algorithm=ppo environment~Cheetah eval/return>3000 tag=paper status=done since=7d",
)
METRICS = ("eval/return", "eval/length", "train/actor_loss", "train/critic_loss", "train/entropy", "train/q")
WRITERS, ROUNDS = 8, 25
ROWS = 200_000


def config(number: int, rng: random.Random) -> dict[str, Any]:
    """Return a config of some hundred lines."""
    algorithm, environment = ALGORITHMS[number % 4], ENVIRONMENTS[number // 4 % 4]
    network = {"_target_": "rl_lab.components.mlp.MLP", "input_dim": 17, "hidden_dims": [256, 256], "layer_norm": False}
    return {
        "schema_version": 1,
        "experiment": {"name": f"{algorithm}_{environment}", "seed": number, "tags": ["paper"] if number % 5 else []},
        "environment": {"_target_": "rl_lab.environments.gymnasium.GymnasiumEnv", "name": environment, "num_envs": 1},
        "workflow": {"_target_": f"rl_lab.workflows.{algorithm}.{algorithm.upper()}"},
        "algorithm": {"gamma": rng.choice([0.97, 0.98, 0.99]), "tau": 0.005, "lr": 3e-4 * rng.random()},
        "components": {name: dict(network) for name in ("actor", "critic", "encoder", "target")},
        "buffers": {"replay": {"capacity": 1_000_000, "batch_size": 256, "n_step": 1, "storage": "device"}},
        "training": {f"option_{option}": option for option in range(40)}
        | {"phases": [{"name": "train", "duration_steps": 1_000_000, "workflow_hooks": ["collect", "update_agent"]}]},
        "logging": {f"option_{option}": False for option in range(10)},
    }


def make_run(root: Path, number: int, rng: random.Random) -> None:
    """Write the files of a finished run."""
    run, now = root / f"run_{number:05d}", time.time()
    run.mkdir()
    values = {name: rng.uniform(0, 6000) for name in METRICS}
    position = {"step": 1_000_000, "updates": 1_000_000, "episodes": 1000, "cycles": 1000, "phase": "train"}
    files = {
        "config.yaml": yaml.dump(config(number, rng), Dumper=yaml.CSafeDumper, sort_keys=False),
        "metrics.jsonl": "".join(
            json.dumps({**position, "step": step, **values}) + "\n" for step in range(100_000, 1_000_001, 100_000)
        ),
        "metrics.json": json.dumps({"position": position, "last": values, "highest": values}),
        "status": "done\n",
        "manifest.json": json.dumps(
            {"schema_version": 1, "id": f"{number:06x}", "name": f"n{number % 100}", "seed": number}
            | {
                "created": now - rng.uniform(0, 60 * 86_400),
                "host": "h",
                "git_commit": "0" * 40,
                "config_hash": "1" * 64,
            }
        ),
    }
    for name, text in files.items():
        (run / name).write_text(text)
    os.utime(run, (now - 100, now - 100))


def home(root: Path, number: int) -> Path:
    """Return where a run lies: directly under the root, or, every fifth, among the trials of one of 20 sweeps."""
    if number % 5:
        return root
    sweep = root / f"sweep_{number // 5 % 20:02d}"
    (sweep / "trials").mkdir(parents=True, exist_ok=True)
    (sweep / "sweep.json").write_text("{}")
    return sweep / "trials"


def timed(work: Callable[[], Any], repeats: int = 1) -> tuple[float, float]:
    """Return wall and CPU seconds of the quickest of several calls."""
    found = []
    for _ in range(repeats):
        start, cpu = time.perf_counter(), time.process_time()
        work()
        found.append((time.perf_counter() - start, time.process_time() - cpu))
    return min(found)


def best_50(root: Path, sort: str | None = None) -> None:
    """Do what `lab runs list` does before it prints."""
    with Index(root) as index:
        runs, _ = choose(index, [], sort, limit=50)
        values(index, runs, ["run", "status", "env_steps", "score"])


def command(*words: str) -> tuple[float, float]:
    """Return wall and CPU seconds of a `lab` command."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", "rl_lab", *words], check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def write(root: Path, number: int, errors: multiprocessing.Queue[str]) -> None:
    """Make runs and change them, and bring the index up to date after every change, as one of several processes."""
    rng, changed = random.Random(number), 0
    for turn in range(ROUNDS):
        name = 1_000_000 + number * 1000 + turn
        make_run(root, name, rng)
        for status in ("running", "done"):
            replace_file(root / f"run_{name:05d}" / "status", status + "\n", durable=False)
            try:
                with Index(root):
                    changed += 1
            except sqlite3.Error as error:
                errors.put(f"{type(error).__name__}: {error}")
    errors.put(f"done {changed}")


def writers(root: Path) -> tuple[float, int, list[str]]:
    """Let eight processes write at once; return the seconds, how often the index was brought up to date, and errors."""
    errors: multiprocessing.Queue[str] = multiprocessing.Queue()
    processes = [multiprocessing.Process(target=write, args=(root, number, errors)) for number in range(WRITERS)]
    start = time.perf_counter()
    for process in processes:
        process.start()
    told, finished = [], 0
    while finished < WRITERS:
        text = errors.get(timeout=600)
        finished += text.startswith("done")
        told.append(text)
    for process in processes:
        process.join()
    wrong = [text for text in told if not text.startswith("done")]
    updates = sum(int(text.split()[1]) for text in told if text.startswith("done"))
    new = [run for run in list_runs(root) if run.path.name.startswith("run_1") and len(run.path.name) == 11]
    assert len(new) == WRITERS * ROUNDS, len(new)
    assert {run.status for run in new} == {"done"}
    return time.perf_counter() - start, updates, wrong


def long_curve(root: Path) -> list[tuple[str, tuple[float, float]]]:
    """Return the seconds from the file of a run with 200,000 rows to a PNG."""
    make_run(root, 1, random.Random(0))
    with (root / "run_00001" / "metrics.jsonl").open("w") as file:
        for row in range(ROWS):
            values = dict.fromkeys(METRICS[2:], row % 1000 * 1.2345)
            file.write(
                json.dumps({"step": row * 8, "updates": row, "episodes": 0, "cycles": row, "phase": "p"} | values)
                + "\n"
            )
    draw = lambda: render(draw_curves(compare_experiments(root, metric="train/q")), "png")  # noqa: E731
    imports = timed(lambda: importlib.import_module("matplotlib.figure"))
    return [("import of matplotlib", imports), ("first", timed(draw)), ("again", timed(draw, 3))]


def measure(args: argparse.Namespace, root: Path, other: Path) -> list[dict[str, Any]]:
    rng, rows = random.Random(0), []

    def note(what: str, seconds: tuple[float, float], limit: float | None = None, more: str = "") -> None:
        wall, cpu = (round(each, 4) for each in seconds)
        rows.append({"what": what, "wall_s": wall, "cpu_s": cpu, "limit_s": limit or "", "note": more})
        print(rows[-1], flush=True)

    for number in range(args.runs):
        make_run(home(root, number), number, rng)
    with Index(root) as index:
        note(f"rebuild of {args.runs} runs", timed(index.rebuild), 60)
    note("list all", timed(lambda: list_runs(root), 5), 0.3)
    note("list, newest 50", timed(lambda: best_50(root), 5), 0.3)
    for text in FILTERS:
        found = len(choose_runs(root, text.split()))
        note(f"filter {text}", timed(lambda text=text: choose_runs(root, text.split()), 5), 0.3, f"{found} runs")
    note("list, highest 50 by eval/return", timed(lambda: best_50(root, "eval/return"), 5), 0.3)
    for words in (["runs", "list"], *(["runs", "list", *text.split()] for text in FILTERS), ["--help"]):
        is_list = words[0] == "runs"
        place = ["--root", str(root)] if is_list else []
        quickest = min(command(*words, *place) for _ in range(10))
        note(f"command lab {' '.join(words)}", quickest, 0.3 if is_list else None)
    wall, updates, errors = writers(other / "writers")
    note(f"{WRITERS} writers, {updates} updates of the index", (wall, 0.0), more=f"{len(errors)} errors {errors[:1]}")
    for what, seconds in long_curve(other / "curve"):
        note(f"curve of {ROWS} rows from file to PNG: {what}", seconds, None if "import" in what else 1)
    return rows


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=10_000)
    options.add_argument("--name", default="catalogue_speed", help="of the result files")
    args = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LAB_INDEX"] = str(Path(folder, "index"))
        for name in ("runs", "curve", "writers"):
            Path(folder, name).mkdir()
        rows = measure(args, Path(folder, "runs"), Path(folder))
    write_results(args.name, rows, runs=args.runs, seeds=[0])
    print(markdown_table(rows))


if __name__ == "__main__":
    main()
