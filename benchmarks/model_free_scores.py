"""Scores of SAC, TD3, DQN and hindsight replay with the committed experiment files, beside what others report.

Trains by `lab train`, evaluates the last and the best checkpoint by `lab evaluate` on fresh episodes, and writes every
seed, the bad ones too, to `results/model_free_scores.csv`, the learning curves to `model_free_scores_curves.csv` and
`.png`. Interrupt it when you like: the next call resumes what was half done and keeps what was finished. With more
`--steps` a finished run goes on.

    python benchmarks/model_free_scores.py --tasks sac_pendulum td3_pendulum --seeds 1 2 3 4 5
    python benchmarks/model_free_scores.py --tasks sac_halfcheetah --seeds 1 --steps 500_000 --threads 2 --parallel 1

Published values are means over seeds. Those of Dopamine and CleanRL are returns while training, with exploration; those
of the zoo (rl-baselines3-zoo) are evaluations of one run. All were made with earlier versions of the MuJoCo tasks.
"""

from __future__ import annotations

from training_runs import Task, benchmark, call, parser, points

DOPAMINE = "Dopamine, 5 seeds"
CLEANRL = "CleanRL"
ZOO = "zoo"
SLM = "SLM-Lab, double DQN, prioritized"
SUCCESS = "info/is_success"

TASKS = {
    "sac_pendulum": Task(20_000, -200.0, eval_frequency=2_000, published=points(ZOO, {20_000: -157.0})),
    "td3_pendulum": Task(20_000, -200.0, eval_frequency=2_000, published=points(ZOO, {20_000: -151.9})),
    "sac_halfcheetah": Task(
        300_000,
        eval_frequency=10_000,
        published=points(DOPAMINE, {50_000: 2679, 100_000: 5470, 200_000: 7386, 300_000: 8820, 500_000: 9898}),
    ),
    "sac_hopper": Task(
        300_000,
        eval_frequency=10_000,
        published=points(DOPAMINE, {50_000: 1150, 100_000: 2337, 150_000: 2984, 300_000: 2763, 500_000: 3198}),
    ),
    "sac_walker2d": Task(
        300_000,
        eval_frequency=10_000,
        published=points(DOPAMINE, {150_000: 1276, 200_000: 1956, 300_000: 3532, 500_000: 3907}),
    ),
    "td3_halfcheetah": Task(300_000, eval_frequency=10_000, published=points(CLEANRL, {1_000_000: 9583})),
    "dqn_cartpole": Task(
        target=475.0,
        eval_frequency=5_000,
        published=(*points(ZOO, {50_000: 500.0}), *points(CLEANRL, {500_000: 488.7})),
    ),
    "dqn_lunarlander": Task(target=200.0, eval_frequency=20_000, published=points(SLM, {300_000: 266})),
    "dqn_minatar_breakout": Task(eval_frequency=20_000, is_beside_random=True),
    "td3_reach_her": Task(target=0.95, metric=SUCCESS, eval_frequency=2_000, eval_episodes=50),
    "sac_reach_her": Task(target=0.95, metric=SUCCESS, eval_frequency=2_000, eval_episodes=50),
    "sac_fetch_reach_her": Task(target=0.95, metric=SUCCESS, eval_frequency=2_000, eval_episodes=50),
}


def main() -> None:
    benchmark(TASKS, parser(__doc__ or "", "model_free_scores", TASKS, num_seeds=3).parse_args())


if __name__ == "__main__":
    call(main)
