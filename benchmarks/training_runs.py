"""What the benchmarks of learning share: experiments trained over seeds, rows and curves of how they did, and figures.

A run is trained by `lab train` in a directory of its own. One that was interrupted is resumed, one that has its row in
the results is left alone, and one that is asked for more steps goes on.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import matplotlib as mpl
from harness import LAB, RESULTS, ROOT, git_commit, markdown_table, read_rows, run_json, write_csv, write_results

mpl.use("Agg")
from matplotlib import pyplot as plt

RUNS = ROOT / "experiments" / "benchmarks"
EVALUATION_SEED = 1_000_003  # of episodes that no training run has seen
COLUMNS = (
    *("experiment", "seed", "env_steps", "eval_mean", "eval_std", "best_mean", "target", "passed", "published"),
    *("wall_s", "threads", "compile", "metric", "commit", "fingerprint"),
)
Row = dict[str, Any]
RUNNING: set[subprocess.Popen[bytes]] = set()


class Published(NamedTuple):
    """What someone else reports."""

    env_steps: int
    value: float
    source: str


@dataclass(frozen=True)
class Task:
    """How long an experiment is trained, what it must reach and what others have reached."""

    steps: int | None = None  # env steps; None: as the experiment says
    target: float | None = None
    metric: str = "return"  # of the evaluation
    eval_frequency: int | None = None  # env steps between two points of the curve; None: as the experiment says
    eval_episodes: int = 10  # of a point
    published: tuple[Published, ...] = ()
    is_beside_random: bool = False  # where nobody reports anything: what random actions bring
    teacher: str | None = None  # the experiment whose run of the same seed teaches
    experiment: str | None = None  # of which the task is a variant; None: the task is an experiment by itself
    overrides: tuple[str, ...] = ()  # that make the variant


def call(main: Callable[[], None]) -> None:
    """Run a script; what ends it early is one line."""
    try:
        main()
    except RuntimeError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped: the same command goes on from here")


def points(source: str, values: Mapping[int, float]) -> tuple[Published, ...]:
    """Return what a source reports, by env steps."""
    return tuple(Published(env_steps, value, source) for env_steps, value in values.items())


def parser(description: str, name: str, tasks: Mapping[str, Task], *, num_seeds: int) -> argparse.ArgumentParser:
    """Return the options that all these benchmarks have."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tasks", "--experiments", nargs="+", default=list(tasks), metavar="TASK", help="experiments")
    options.add_argument("--seeds", nargs="+", type=int, default=list(range(1, num_seeds + 1)))
    options.add_argument("--steps", type=int, help="env steps instead of those of the tasks")
    options.add_argument("--episodes", type=int, default=100, help="fresh evaluation episodes per checkpoint")
    options.add_argument("--threads", type=int, default=1, help="of one run")
    options.add_argument("--parallel", type=int, default=2, help="runs at a time")
    options.add_argument("--overrides", nargs="*", default=[], help="for every run, such as budget=tiny")
    options.add_argument("--name", default=name, help="of the result files")
    options.add_argument("--fresh", action="store_true", help="drop these tasks' runs and results and begin anew")
    return options


def benchmark(tasks: Mapping[str, Task], args: argparse.Namespace) -> None:
    """Train and evaluate what has no row yet; write rows, curves and figure."""
    rows, curves = earlier_rows(args), read_rows(RESULTS / f"{args.name}_curves.csv")
    steps = {key(row): row["env_steps"] for row in rows}
    known = {name: tasks.get(name, Task()) for name in [*tasks, *args.tasks, *(row["experiment"] for row in rows)]}
    jobs = [
        (name, seed)
        for name, seed in product(args.tasks, args.seeds)
        if steps.get((name, seed), 0) < (args.steps or known[name].steps or 1)
    ]
    for row in finished_rows(jobs, lambda name, seed: score(name, seed, known[name], args), args.parallel):
        print(f"{row['experiment']} s{row['seed']}: {row['eval_mean']:.2f}, {row['wall_s']:.0f} s", flush=True)
        rows = in_order([*(each for each in rows if key(each) != key(row)), row], known)
        new = curve(*key(row), known, args.name)
        curves = in_order([*(each for each in curves if key(each) != key(row)), *new], known)
        write_results(args.name, rows, seeds=args.seeds, episodes=args.episodes, overrides=args.overrides)
        write_csv(f"{args.name}_curves", curves)
    if curves:
        draw(curves, known, RESULTS / f"{args.name}.png")
    shown = [{name: row[name] for name in COLUMNS if name not in ("metric", "fingerprint")} for row in rows]
    print(f"\n{markdown_table(shown)}\n\n{markdown_table(summary(rows))}")


def key(row: Mapping[str, Any]) -> tuple[str, int]:
    return row["experiment"], int(row["seed"])


def in_order(rows: Iterable[Row], tasks: Mapping[str, Task]) -> list[Row]:
    """Return the rows by task, as the table has them, and seed; those of one seed stay in their order."""
    return sorted(
        (row for row in rows if row["experiment"] in tasks),
        key=lambda row: (list(tasks).index(row["experiment"]), int(row["seed"])),
    )


def earlier_rows(args: argparse.Namespace) -> list[Row]:
    """Return the rows of the results, with empty cells for columns that are newer than they are."""
    path = RESULTS / f"{args.name}.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    if args.fresh:
        rows = [row for row in rows if row["experiment"] not in args.tasks]
        start_anew(args)
    return [dict.fromkeys(COLUMNS, "") | row for row in rows]


def start_anew(args: argparse.Namespace) -> None:
    """Remove the runs that are asked for."""
    for name, seed in product(args.tasks, args.seeds):
        shutil.rmtree(run_directory(name, seed, args.name), ignore_errors=True)


def finished_rows(jobs: Sequence[tuple[str, int]], work: Callable[[str, int], Row], parallel: int) -> Iterator[Row]:
    """Yield the rows in the order in which they are finished; a failure or a signal stops all runs, at a checkpoint."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    pool = ThreadPoolExecutor(parallel)
    try:
        for future in as_completed([pool.submit(work, *job) for job in jobs]):
            yield future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in list(RUNNING):
            process.terminate()
        pool.shutdown()


def run_directory(experiment: str, seed: int, name: str) -> Path:
    return RUNS / name / f"{experiment}_s{seed}"


def score(experiment: str, seed: int, task: Task, args: argparse.Namespace) -> Row:
    """Train one seed to its end, evaluate it on fresh episodes and return its row."""
    directory = run_directory(experiment, seed, args.name)
    train(directory, experiment, seed, task, args)
    published = (*task.published, *(random_points(experiment, task.metric) if task.is_beside_random else ()))
    last = evaluate(directory, args.episodes, "latest")
    best = evaluate(directory, args.episodes, "best") if (directory / "checkpoints" / "best").exists() else {}
    env_steps, value = json_lines(directory / "metrics.jsonl")[-1]["step"], last[task.metric]
    return {
        "experiment": experiment,
        "seed": seed,
        "env_steps": env_steps,
        "eval_mean": value,
        "eval_std": last.get(f"{task.metric}_std", ""),
        "best_mean": best.get(task.metric, ""),  # a run too short for an evaluation has no best checkpoint
        "target": "" if task.target is None else task.target,
        "passed": "" if task.target is None else value >= task.target,
        "published": "; ".join(f"{point.value:g} at {point.env_steps:,} ({point.source})" for point in published),
        "wall_s": json_lines(directory / "perf.jsonl")[-1]["perf/elapsed_s"],
        "threads": args.threads,
        "compile": how_updates_ran(directory),
        "metric": task.metric,
        "commit": git_commit(),
        "fingerprint": run_json([*LAB, "runs", "fingerprint", str(directory), "--json"])["parameters"],
    }


def train(directory: Path, experiment: str, seed: int, task: Task, args: argparse.Namespace) -> None:
    """Train up to the task's steps from wherever the run in the directory has come to; its output is kept beside it."""
    options = [f"experiment.seed={seed}", f"experiment.num_threads={args.threads}"]
    if (steps := args.steps or task.steps) is not None:
        options += [f"training.total_timesteps={steps}"]
    if task.eval_frequency is not None:
        options += [
            f"training.eval_frequency={task.eval_frequency}",
            f"training.num_eval_episodes={task.eval_episodes}",
        ]
    if task.teacher is not None:
        options += [f"training.teacher.run={run_directory(task.teacher, seed, args.name)}"]
    options += [*task.overrides, *args.overrides]
    command = [*LAB, "train", f"+experiment={task.experiment or experiment}", *options, "--run-dir", str(directory)]
    directory.parent.mkdir(parents=True, exist_ok=True)
    log = directory.with_suffix(".log")
    with log.open("a") as output:  # in a session of its own: Ctrl-C reaches it once, by `finished_rows`
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, start_new_session=True)
        RUNNING.add(process)
        code = process.wait()
        RUNNING.discard(process)
    if code != 0:
        raise RuntimeError(f"exit code {code} of {shlex.join(command)}:\n{log.read_text()[-2000:]}")


def evaluate(directory: Path, episodes: int, checkpoint: str) -> dict[str, float]:
    """Return mean and spread of the returns of that many greedy episodes, and means of the infos."""
    options = ["--episodes", str(episodes), "--checkpoint", checkpoint, "--seed", str(EVALUATION_SEED)]
    return run_json([*LAB, "evaluate", str(directory), *options, "--json"])


@cache
def random_points(experiment: str, metric: str) -> tuple[Published, ...]:
    """Return what random actions bring, as a point at the start of the curve."""
    script = str(ROOT / "benchmarks" / "random_policy.py")
    return points("random actions", {0: run_json([sys.executable, script, experiment])[metric]})


def json_lines(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def how_updates_ran(directory: Path) -> str:
    """Return what the newest checkpoint says: eager, compiled or captured."""
    checkpoints = directory / "checkpoints"
    _, state = json.loads((checkpoints / (checkpoints / "latest").read_text().strip() / "state.json").read_text())
    _, static = state["static"]
    return static["execution"]


def curve(experiment: str, seed: int, tasks: Mapping[str, Task], name: str) -> list[Row]:
    """Return the evaluations during a run."""
    columns = dict.fromkeys(["step", "eval/return", *(f"eval/{task.metric}" for task in tasks.values())], "")
    rows = json_lines(run_directory(experiment, seed, name) / "metrics.jsonl")
    found = [{column: row.get(column, "") for column in columns} for row in rows if "eval/return" in row]
    return [{"experiment": experiment, "seed": seed, **row} for row in found]


def draw(curves: list[Row], tasks: Mapping[str, Task], path: Path) -> None:
    """Draw a panel per experiment: a thin line per seed, their mean, the target, and what others report."""
    names = list(dict.fromkeys(row["experiment"] for row in curves))
    columns = min(len(names), 2)
    figure, axes = plt.subplots(
        -(-len(names) // columns), columns, squeeze=False, figsize=(5 * columns, 2.4 + len(names))
    )
    for name, axis in zip(names, axes.flat, strict=False):
        draw_panel(axis, name, [row for row in curves if row["experiment"] == name], tasks[name])
    for axis in axes.flat[len(names) :]:
        axis.remove()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def draw_panel(axis: Any, name: str, rows: Iterable[Row], task: Task) -> None:
    points: dict[str, dict[float, float]] = {}
    for row in rows:
        points.setdefault(str(row["seed"]), {})[int(row["step"]) / 1000] = float(row[f"eval/{task.metric}"])
    for line in points.values():
        axis.plot(list(line), list(line.values()), color="tab:blue", linewidth=0.8, alpha=0.5)
    common = sorted(set.intersection(*(set(line) for line in points.values())))
    means = [mean(line[step] for line in points.values()) for step in common]
    axis.plot(common, means, color="tab:blue", marker=".", markersize=3)
    if task.target is not None:
        axis.axhline(task.target, color="tab:red", linestyle="--", linewidth=0.8)
    last = max(max(line) for line in points.values())
    published = (*task.published, *(random_points(name, task.metric) if task.is_beside_random else ()))
    for marker, source in zip("Dso^", dict.fromkeys(point.source for point in published), strict=False):
        at = {point.env_steps / 1000: point.value for point in published if point.source == source}
        near = [step for step in at if step <= 1.5 * last]  # one far to the right would leave no room for the curve
        axis.scatter(near, [at[step] for step in near], 28, color="tab:orange", marker=marker, label=source)
    if published:
        axis.legend(fontsize="x-small")
    axis.set(title=f"{name}, {len(points)} seeds", xlabel="env steps / 1000", ylabel=f"evaluation {task.metric}")


def summary(rows: Iterable[Row]) -> list[Row]:
    """Return per experiment how many seeds reached the target, and what others report."""
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
            "published": group[0]["published"],
        }
        for name, group in grouped.items()
    ]
