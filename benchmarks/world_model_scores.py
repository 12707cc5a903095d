"""Scores of Dreamer, PlaNet, TD-MPC and World Models with the committed experiment files, beside what others report.

Trains by `lab train`, evaluates by `lab evaluate` on fresh episodes, and writes every seed, the bad ones too, to
`results/world_model_scores.csv`, the learning curves to `world_model_scores_curves.csv` and `.png`. Interrupt it when
you like: the next call resumes what was half done and keeps what was finished.

    python benchmarks/world_model_scores.py --tasks dreamer_cartpole --seeds 1 2 3
    python benchmarks/world_model_scores.py --tasks planet_dmc_cartpole_swingup --seeds 1 --parallel 1

Env steps are decisions: where an action is repeated an env step has several frames, and published curves count frames.
"""

from __future__ import annotations

from training_runs import Task, benchmark, call, parser, points

V3 = "DreamerV3 of January 2023, 5 seeds, while training"
TDMPC = "TD-MPC, 5 seeds"
TDMPC2 = "TD-MPC2, 3 seeds"

TASKS = {
    "dreamer_cartpole": Task(target=475.0, eval_frequency=2_000),
    "dreamer_dmc_cartpole_balance": Task(
        target=900.0, eval_frequency=2_000, published=points(V3, {6_250: 299, 12_500: 518})
    ),
    "planet_dmc_cartpole_swingup": Task(
        target=637.5,
        eval_frequency=2_500,
        eval_episodes=5,
        published=points("RL Lab's first PlaNet, state, 178 k frames", {22_000: 637.5}),
    ),
    "dreamer_v3_2023_dmc_walker_walk": Task(
        100_000,
        eval_frequency=10_000,
        published=points(V3, {12_500: 111, 25_000: 290, 37_500: 408, 50_000: 518, 75_000: 742, 100_000: 824}),
    ),
    "dreamer_v3_2023_dmc_cartpole_swingup": Task(
        100_000,
        eval_frequency=10_000,
        published=points(V3, {12_500: 225, 25_000: 331, 37_500: 428, 50_000: 513, 75_000: 658, 100_000: 789}),
    ),
    "dreamer_v3_2023_dmc_cup_catch": Task(
        100_000,
        eval_frequency=10_000,
        published=points(V3, {12_500: 269, 25_000: 593, 37_500: 742, 50_000: 761, 75_000: 952, 100_000: 957}),
    ),
    "planet_cartpole": Task(target=475.0, eval_frequency=2_000, eval_episodes=5),
    "world_models_cartpole": Task(target=475.0),
    "world_models_cartpole_dream": Task(target=475.0),
    "tdmpc2_cartpole": Task(target=475.0, eval_frequency=1_000),
    "tdmpc2_multitask": Task(target=17.4, eval_frequency=1_000, eval_episodes=60),  # what one task's policy would bring
    "tdmpc_dmc_cartpole_swingup": Task(
        target=800.0, eval_frequency=1_250, published=points(TDMPC, {5_000: 574, 7_500: 825, 12_500: 859})
    ),
    "tdmpc_dmc_cup_catch": Task(
        target=930.0, eval_frequency=2_500, published=points(TDMPC, {10_000: 931, 25_000: 977})
    ),
    "tdmpc2_dmc_walker_walk": Task(eval_frequency=5_000, published=points(TDMPC2, {50_000: 962})),
    "tdmpc2_dmc_cup_catch": Task(eval_frequency=5_000, published=points(TDMPC2, {50_000: 981})),
    "tdmpc2_dmc_cheetah_run": Task(eval_frequency=5_000, published=points(TDMPC2, {50_000: 519})),
}


def main() -> None:
    benchmark(TASKS, parser(__doc__ or "", "world_model_scores", TASKS, num_seeds=3).parse_args())


if __name__ == "__main__":
    call(main)
