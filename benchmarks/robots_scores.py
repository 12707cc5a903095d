"""Scores of legged robots with the committed experiment files: returns, curves, wall time, and what testers say.

Trains by `lab train`, evaluates by `lab evaluate` on fresh episodes, and lets `lab play --testers all` hold fixed
commands. Rows go to `results/robots_scores.csv` and `.json`, the tables of the testers to `robots_scores_testers.csv`,
curves to `robots_scores_curves.csv` and `.png`. Interrupt it when you like: the same command goes on.

    taskset -c 0-1 python benchmarks/robots_scores.py --seeds 1 --threads 2 --parallel 1 --episodes 64
    python benchmarks/robots_scores.py --tasks g1_flat_ppo --tested-on cuda cpu --overrides experiment.device=cuda

Tested on another device than trained, a policy meets another simulation. Physics takes as many threads as torch does
(`--threads`).
"""

from __future__ import annotations

import argparse
from itertools import product

from harness import LAB, read_rows, run, write_csv
from training_runs import Row, Task, benchmark, call, parser, run_directory

TASKS = {
    "quadruped_flat_ppo": Task(eval_frequency=1_966_080, eval_episodes=64),
    "rotunbot_flat_ppo": Task(),
    **dict.fromkeys(
        ("quadruped_flat_ppo_amp", "quadruped_rough_ppo", "g1_flat_ppo", "biped_pm01_flat_ppo"),
        Task(eval_frequency=19_660_800, eval_episodes=64),  # for a GPU
    ),
}
ON_A_CPU = ["quadruped_flat_ppo", "rotunbot_flat_ppo"]


def main() -> None:
    options = parser(__doc__ or "", "robots_scores", TASKS, num_seeds=3)
    options.set_defaults(tasks=ON_A_CPU)
    options.add_argument("--tested-on", nargs="+", default=["cpu"], metavar="DEVICE", help="where testers run")
    args = options.parse_args()
    args.overrides = [f"environment.simulation.num_threads={args.threads}", *args.overrides]
    benchmark(TASKS, args)
    write_csv(f"{args.name}_testers", tested(args))


def tested(args: argparse.Namespace) -> list[Row]:
    """Return what the testers say of every run that is asked for, of its last checkpoint."""
    rows: list[Row] = []
    for name, seed, device in product(args.tasks, args.seeds, args.tested_on):
        directory = run_directory(name, seed, args.name)
        run([*LAB, "play", str(directory), "--testers", "all", "--device", device])
        own = {"experiment": name, "seed": seed, "tested_on": device}
        rows += [own | row for row in read_rows(directory / "test" / "summary.csv")]
    return rows


if __name__ == "__main__":
    call(main)
