"""PPO on the classic tasks with the committed experiment files, over several seeds.

Trains by `lab train`, with more frequent and shorter evaluations than the files ask for (training does not notice, the
curves get their points), evaluates the last and the best checkpoint by `lab evaluate` on fresh episodes, and writes
every seed, the bad ones too, to `results/ppo_classic.csv`, the learning curves to `ppo_classic_curves.csv` and `.png`.
Rows that are there already are kept: an interrupted benchmark goes on where it stopped.

    python benchmarks/ppo_classic.py                        # four tasks, five seeds
    python benchmarks/ppo_classic.py --all                  # every ppo_* experiment
    python benchmarks/ppo_classic.py --tasks ppo_cartpole --seeds 1 2 --fresh
"""

from __future__ import annotations

from harness import ROOT
from training_runs import Task, benchmark, call, parser

TASKS = {
    "ppo_acrobot": Task(target=-100.0, eval_frequency=20_480, eval_episodes=20),
    "ppo_cartpole": Task(target=475.0, eval_frequency=8_192, eval_episodes=20),
    "ppo_lunarlander": Task(target=200.0, eval_frequency=51_200, eval_episodes=20),
    "ppo_pendulum": Task(target=-200.0, eval_frequency=20_480, eval_episodes=20),
}


def main() -> None:
    options = parser(__doc__ or "", "ppo_classic", TASKS, num_seeds=5)
    options.add_argument("--all", action="store_true", help="every ppo_* experiment")
    args = options.parse_args()
    if args.all:
        listed = sorted(path.stem for path in (ROOT / "src/rl_lab/configs/experiment").glob("ppo_*.yaml"))
        args.tasks = [*TASKS, *(name for name in listed if name not in TASKS)]
    benchmark(TASKS, args)


if __name__ == "__main__":
    call(main)
