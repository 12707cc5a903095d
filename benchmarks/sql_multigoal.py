"""Soft Q-learning on MultiGoal: which of the four goals does the exploring policy reach, and how often?

Trains every experiment over the seeds, plays 100 episodes with the policy as it explores, from the start state, and
counts the goals: `results/sql_multigoal.csv`, a figure of all paths in `.png`. The implicit policy must reach each goal
in a tenth of the rollouts; the Gaussian ones, of SQL and of SAC, cannot have four modes and are shown beside it; the
one that is composed of two tasks must go where both are content. An interrupted call is resumed by the next one.

    python benchmarks/sql_multigoal.py
    python benchmarks/sql_multigoal.py --tasks sac_multigoal sac_multigoal_auto --name sac_multigoal
    python benchmarks/sql_multigoal.py --tasks sql_multigoal --seeds 1 --name try
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, git_commit, markdown_table, write_results
from matplotlib import pyplot as plt
from torch import Tensor
from training_runs import (
    EVALUATION_SEED,
    Row,
    Task,
    call,
    finished_rows,
    how_updates_ran,
    json_lines,
    parser,
    run_directory,
    start_anew,
    train,
)

from rl_lab.config.allow_list import AllowList
from rl_lab.config.build import assemble
from rl_lab.config.resume import recompose
from rl_lab.config.targets import Targets
from rl_lab.core.seeding import isolated_rng
from rl_lab.environments.multigoal import BOUND, GOAL_NAMES, GOAL_RADIUS, GOALS
from rl_lab.tracking.checkpoint_choice import choose_checkpoint
from rl_lab.tracking.run_directory import RunDirectory

REQUIRED: dict[str, dict[str, float]] = {  # the smallest share of rollouts that must end at a goal
    "sql_multigoal": dict.fromkeys(GOAL_NAMES, 0.1),
    "sql_multigoal_gaussian": {},  # one mode: shown beside the others
    "sac_multigoal": {},  # one mode too, by the gradient of its own values instead of Stein's
    "sac_multigoal_auto": {},  # the same with SAC's own temperature
    "sql_multigoal_composed": {"north": 0.5},  # what its two tasks have in common
}
TASKS = dict.fromkeys(REQUIRED, Task()) | {
    "sac_multigoal_auto": Task(experiment="sac_multigoal", overrides=("algorithm.target_entropy=auto",))
}


def main() -> None:
    args = parser(__doc__ or "", "sql_multigoal", TASKS, num_seeds=5).parse_args()
    if args.fresh:
        start_anew(args)
    jobs = [(name, seed) for name in args.tasks for seed in args.seeds]
    for trained in finished_rows(jobs, lambda name, seed: trained_run(name, seed, args), args.parallel):
        print(f"{trained['experiment']} s{trained['seed']}: trained", flush=True)
    paths = {job: rollouts(run_directory(*job, args.name), args.episodes) for job in jobs}
    rows = [score(*job, paths[job], args) for job in jobs]
    write_results(args.name, rows, seeds=args.seeds, episodes=args.episodes, required=REQUIRED)
    draw(paths, args, RESULTS / f"{args.name}.png")
    print(f"\n{markdown_table(rows)}")


def trained_run(experiment: str, seed: int, args: argparse.Namespace) -> Row:
    train(run_directory(experiment, seed, args.name), experiment, seed, TASKS.get(experiment, Task()), args)
    return {"experiment": experiment, "seed": seed}


@torch.inference_mode()
def rollouts(directory: Path, episodes: int) -> Tensor:
    """Return the positions of that many exploring episodes, [T + 1, episodes, 2]; after its end, one stays there."""
    run = RunDirectory.open(directory)
    loaded = choose_checkpoint(run, "latest")
    parts = assemble(recompose(run), Targets(AllowList()))
    parts.workflow.load_state_dict(loaded.state["workflow"])
    parts.workflow.set_state(loaded.state["workflow_state"])
    parts.workflow.eval()
    node: dict[str, Any] = {**parts.config["environment"], "num_envs": episodes}
    env = parts.targets.instantiate("environment", node, device=parts.context.device)
    with isolated_rng(EVALUATION_SEED):
        obs, carry = env.reset(EVALUATION_SEED), parts.workflow.initial_carry(episodes)
        path, has_ended, is_first = [obs], torch.zeros(episodes, dtype=torch.bool), torch.ones(episodes).bool()
        while not has_ended.all():
            actions, _, carry = parts.workflow.act(
                obs, carry, is_first=is_first, explore=True, step=loaded.manifest["counters"]["env_steps"]
            )
            step = env.step(actions)
            path.append(torch.where(has_ended[:, None], path[-1], step.final_observations))
            obs, is_first = step.observations, step.terminated | step.truncated
            has_ended |= is_first
    return torch.stack(path)


def goal_shares(path: Tensor) -> dict[str, float]:
    """Return the share of the rollouts that end within the radius of each goal."""
    distance = (path[-1][:, None] - torch.tensor(GOALS)).norm(dim=-1)  # [episodes, 4]
    counts = (distance < GOAL_RADIUS).sum(0).tolist()
    return {name: count / len(distance) for name, count in zip(GOAL_NAMES, counts, strict=True)}


def score(experiment: str, seed: int, path: Tensor, args: argparse.Namespace) -> Row:
    directory, shares = run_directory(experiment, seed, args.name), goal_shares(path)
    required = REQUIRED.get(experiment, {})
    return {
        "experiment": experiment,
        "seed": seed,
        "env_steps": json_lines(directory / "metrics.jsonl")[-1]["step"],
        **shares,
        "nowhere": round(1.0 - sum(shares.values()), 6),
        "passed": all(shares[goal] >= share for goal, share in required.items()) if required else "",
        "wall_s": json_lines(directory / "perf.jsonl")[-1]["perf/elapsed_s"],
        "threads": args.threads,
        "compile": how_updates_ran(directory),
        "commit": git_commit(),
    }


def draw(paths: dict[tuple[str, int], Tensor], args: argparse.Namespace, file: Path) -> None:
    """Draw the paths, a row of panels per experiment and a column per seed."""
    size = (2.2 * len(args.seeds), 2.4 * len(args.tasks))
    figure, axes = plt.subplots(len(args.tasks), len(args.seeds), squeeze=False, figsize=size)
    for axis, ((experiment, seed), path) in zip(axes.flat, paths.items(), strict=True):
        axis.plot(path[..., 0], path[..., 1], color="tab:blue", linewidth=0.5, alpha=0.5)
        for x, y in GOALS:
            axis.add_patch(plt.Circle((x, y), GOAL_RADIUS, color="tab:red", fill=False))
        axis.set(xlim=(-BOUND, BOUND), ylim=(-BOUND, BOUND), aspect="equal", xticks=[], yticks=[])
        axis.set_title(f"{experiment}\nseed {seed}", fontsize="x-small")
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    call(main)
