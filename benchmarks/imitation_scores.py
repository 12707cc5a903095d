"""Scores of students beside their teachers: behaviour cloning, blind students, DAgger, experts into diffusion policies.

Teachers are trained first, a run per seed; the student of a seed learns from the teacher of the same seed. Rows,
curves and figure go to `results/imitation_scores.*`, those of teachers too. Interrupt it when you like: the same
command goes on.

    python benchmarks/imitation_scores.py
    python benchmarks/imitation_scores.py --tasks distill_cartpole --seeds 1

Env steps of a student are those of the mixture of teacher and student; what the teacher took is in its own row.
"""

from __future__ import annotations

import argparse

from training_runs import Task, benchmark, call, parser

TEACHERS = {
    "ppo_cartpole": Task(target=475.0),
    "td3_pendulum": Task(target=-200.0),
    "tdmpc2_pendulum_tensor": Task(target=-200.0),
}
STUDENTS = {
    "bc_cartpole": Task(target=475.0, teacher="ppo_cartpole"),
    "distill_cartpole": Task(target=475.0, teacher="ppo_cartpole"),
    "dagger_pendulum": Task(target=-200.0, teacher="td3_pendulum"),
    "distill_diffusion_pendulum": Task(target=-200.0, teacher="td3_pendulum"),
    "distill_tdmpc_pendulum": Task(target=-200.0, teacher="tdmpc2_pendulum_tensor"),
}


def main() -> None:
    args = parser(__doc__ or "", "imitation_scores", STUDENTS, num_seeds=3).parse_args()
    teachers = {STUDENTS[name].teacher for name in args.tasks if name in STUDENTS}
    for tasks in ([name for name in TEACHERS if name in teachers], args.tasks):
        benchmark(TEACHERS | STUDENTS, argparse.Namespace(**vars(args) | {"tasks": tasks}))


if __name__ == "__main__":
    call(main)
