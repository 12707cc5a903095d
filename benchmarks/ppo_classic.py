"""PPO on the classic tasks with the committed experiment files, over several seeds.

Trains by `lab train`, with more frequent and shorter evaluations than the files ask for (training does not notice, the
curves get their points), evaluates the last and the best checkpoint by `lab evaluate` on fresh episodes, and writes
every seed, the bad ones too, to `results/ppo_classic.csv`, the learning curves to `ppo_classic_curves.csv` and `.png`.
Rows that are there already are kept: an interrupted benchmark goes on where it stopped.

    python benchmarks/ppo_classic.py                        # four tasks, five seeds
    python benchmarks/ppo_classic.py --all                  # every ppo_* experiment
    python benchmarks/ppo_classic.py --experiments ppo_cartpole --seeds 1 2 --fresh
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib as mpl
from harness import LAB, RESULTS, ROOT, git_commit, markdown_table, read_rows, run, run_json, write_csv, write_results

mpl.use("Agg")
from matplotlib import pyplot as plt

TARGETS = {"ppo_cartpole": 475.0, "ppo_acrobot": -100.0, "ppo_pendulum": -200.0, "ppo_lunarlander": 200.0}
EVAL_FREQUENCY = {"ppo_cartpole": 8_192, "ppo_acrobot": 20_480, "ppo_pendulum": 20_480, "ppo_lunarlander": 51_200}
RUNS = ROOT / "experiments" / "benchmarks"
EVALUATION_SEED = 1_000_003  # of episodes that no training run has seen
Row = dict[str, Any]


def main() -> None:
    args = parse_arguments()
    names = all_experiments() if args.all else args.experiments
    rows = [] if args.fresh else [typed(row) for row in read_rows(RESULTS / f"{args.name}.csv")]
    finished = {(row["experiment"], row["seed"]) for row in rows}
    jobs = [(name, seed) for name in names for seed in args.seeds if (name, seed) not in finished]
    for row in finished_rows(jobs, args):
        rows = sorted([*rows, row], key=lambda row: (row["experiment"], row["seed"]))
        write_results(args.name, rows, seeds=args.seeds, episodes=args.episodes, overrides=args.overrides)
    curves = [point for row in rows for point in curve(row["experiment"], row["seed"], args.name)]
    write_csv(f"{args.name}_curves", curves)
    draw(curves, RESULTS / f"{args.name}.png")
    shown = [row | {"fingerprint": row["fingerprint"][:12]} for row in rows]
    print(f"\n{markdown_table(shown)}\n\n{markdown_table(summary(rows))}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", nargs="+", default=list(TARGETS))
    parser.add_argument("--all", action="store_true", help="every ppo_* experiment")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--episodes", type=int, default=100, help="evaluation episodes per checkpoint")
    parser.add_argument("--parallel", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument("--overrides", nargs="*", default=[], help="for every run, such as budget=tiny")
    parser.add_argument("--name", default="ppo_classic", help="of the result files")
    parser.add_argument("--fresh", action="store_true", help="drop the results that are there")
    return parser.parse_args()


def finished_rows(jobs: list[tuple[str, int]], args: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows in the order in which they are finished; the first failure ends the benchmark."""
    with ThreadPoolExecutor(args.parallel) as pool:
        futures = [pool.submit(train_and_evaluate, experiment, seed, args) for experiment, seed in jobs]
        for future in as_completed(futures):
            if future.exception() is not None:
                pool.shutdown(wait=True, cancel_futures=True)
            row = future.result()
            name, wall_s = f"{row['experiment']} s{row['seed']}", f"{row['wall_s']:.0f} s"
            print(f"{name}: {row['eval_mean']:.1f} +- {row['eval_std']:.1f}, {wall_s}", flush=True)
            yield row


def all_experiments() -> list[str]:
    """Return the names of the lab's PPO experiments."""
    listed = sorted(path.stem for path in (ROOT / "src/rl_lab/configs/experiment").glob("ppo_*.yaml"))
    return [*TARGETS, *(name for name in listed if name not in TARGETS)]


def run_directory(experiment: str, seed: int, name: str) -> Path:
    return RUNS / name / f"{experiment}_s{seed}"


def train_and_evaluate(experiment: str, seed: int, args: argparse.Namespace) -> Row:
    """Train one seed from the start and return its row."""
    directory = run_directory(experiment, seed, args.name)
    shutil.rmtree(directory, ignore_errors=True)
    fixed = [f"experiment.seed={seed}", "experiment.num_threads=1", "logging.terminal=false"]
    if experiment in EVAL_FREQUENCY:
        fixed += [f"training.eval_frequency={EVAL_FREQUENCY[experiment]}", "training.num_eval_episodes=20"]
    trained = run([*LAB, "train", f"+experiment={experiment}", *fixed, *args.overrides, "--run-dir", str(directory)])
    last, best = (evaluate(directory, args.episodes, checkpoint) for checkpoint in ("latest", "best"))
    target = TARGETS.get(experiment)
    fingerprint = run_json([*LAB, "runs", "fingerprint", str(directory), "--json"])
    return {
        "experiment": experiment,
        "seed": seed,
        "env_steps": metrics(directory)[-1]["step"],
        "eval_mean": last["return"],
        "eval_std": last["return_std"],
        "best_mean": best["return"],
        "target": "" if target is None else target,
        "passed": "" if target is None else last["return"] >= target,
        "wall_s": trained.wall_s,
        "commit": git_commit(),
        "fingerprint": fingerprint["parameters"],
    }


def evaluate(directory: Path, episodes: int, checkpoint: str) -> dict[str, float]:
    """Return the mean and the spread of the returns of that many greedy episodes."""
    options = ["--episodes", str(episodes), "--checkpoint", checkpoint, "--seed", str(EVALUATION_SEED)]
    return run_json([*LAB, "evaluate", str(directory), *options, "--json"])


def metrics(directory: Path) -> list[Row]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def curve(experiment: str, seed: int, name: str) -> list[Row]:
    """Return the evaluations during a run; those of a run that is no longer there are taken from the last results."""
    directory = run_directory(experiment, seed, name)
    if not directory.exists():
        before = read_rows(RESULTS / f"{name}_curves.csv")
        return [row for row in before if (row["experiment"], int(row["seed"])) == (experiment, seed)]
    evaluations = (row for row in metrics(directory) if "eval/return" in row)
    return [
        {"experiment": experiment, "seed": seed, "step": row["step"], "eval/return": row["eval/return"]}
        for row in evaluations
    ]


def draw(curves: list[Row], path: Path) -> None:
    """Draw a panel per experiment: a thin line per seed, their mean, and the target."""
    names = list(dict.fromkeys(row["experiment"] for row in curves))
    columns = min(len(names), 2)
    figure, axes = plt.subplots(
        -(-len(names) // columns), columns, squeeze=False, figsize=(5 * columns, 2.4 + len(names))
    )
    for name, axis in zip(names, axes.flat, strict=False):
        points: dict[str, dict[float, float]] = {}
        for row in (row for row in curves if row["experiment"] == name):
            points.setdefault(str(row["seed"]), {})[int(row["step"]) / 1000] = float(row["eval/return"])
        for line in points.values():
            axis.plot(list(line), list(line.values()), color="tab:blue", linewidth=0.8, alpha=0.5)
        common = sorted(set.intersection(*(set(line) for line in points.values())))
        axis.plot(common, [mean(line[step] for line in points.values()) for step in common], color="tab:blue")
        if name in TARGETS:
            axis.axhline(TARGETS[name], color="tab:red", linestyle="--", linewidth=0.8)
        axis.set(title=f"{name}, {len(points)} seeds", xlabel="env steps / 1000", ylabel="evaluation return")
    for axis in axes.flat[len(names) :]:
        axis.remove()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def typed(row: dict[str, str]) -> Row:
    """Return a row of the CSV file as it was before it was written."""
    numbers = {key: float(row[key]) for key in ("eval_mean", "eval_std", "best_mean", "wall_s")}
    counts = {key: int(row[key]) for key in ("seed", "env_steps")}
    target = {"target": float(row["target"]), "passed": row["passed"] == "True"} if row["target"] else {}
    return {**row, **numbers, **counts, **target}


def summary(rows: Iterable[Row]) -> list[Row]:
    """Return per experiment how many seeds reached the target."""
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        grouped.setdefault(row["experiment"], []).append(row)
    return [
        {
            "experiment": name,
            "target": group[0]["target"],
            "seeds passed": f"{sum(row['passed'] is True for row in group)} of {len(group)}",
            "mean of seeds": mean(row["eval_mean"] for row in group),
            "worst seed": min(row["eval_mean"] for row in group),
            "env steps": max(row["env_steps"] for row in group),
            "seconds": mean(row["wall_s"] for row in group),
        }
        for name, group in grouped.items()
    ]


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as error:
        sys.exit(f"error: {error}")
