"""Hi-ORS, parts of it left out, behaviour cloning and RLPD on the insertion task: success after equal budgets.

Every row is a variant of a packaged experiment, by overrides. All have the same demonstrations (`bc_more` has more);
those that practise have the same simulated human and the same env steps (`rlpd_more` has more); those that clone have
the same updates (`bc_1000`, which has fewer, is spared much of its overfitting), RLPD makes one per env step. The human
of Hi-ORS errs: one episode in five is called a success within its first steps, and one failure in twenty as it ends.
RLPD learns from the task's own detector, as HIL-SERL does from a classifier.

All are scored twice, by the same rule: the last checkpoint, and the one that was best in the run's own evaluations (of
100 episodes, every 1,000 updates; RLPD every 2,000 env steps of 50 episodes). Both on 100 fresh episodes. Rows go to
`results/human_comparison.*`, a line per variant beside the paper's ablations to `results/human_comparison_table.csv`.
The two tasks from pictures (two arms, three cameras) are for one seed, twenty minutes of a busy core each, and need
OpenGL.
Interrupt it when you like: the same command goes on.

    python benchmarks/human_comparison.py
    python benchmarks/human_comparison.py --tasks bc hiors --seeds 1 --parallel 1
    taskset -c 0-7 python benchmarks/human_comparison.py --parallel 8
    python benchmarks/human_comparison.py --name sac_pi0 --tasks sac_pi0_imitation sac_pi0 sac_pi0_distill_1
    python benchmarks/human_comparison.py --tasks pixels_bc pixels_hiors --seeds 1 --name human_comparison_pixels
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from statistics import mean
from typing import Any

import yaml
from harness import RESULTS, markdown_table, write_csv
from training_runs import Row, Task, benchmark, call, json_lines, parser, run_directory

NAME = "human_comparison"
SUCCESS = "info/is_success"
RULES = "buffers.accepted.into.acceptance"
REPLAY = "buffers.replay.parts.online"
SHORTER = ("training.phases.1.duration_steps=8000", "training.total_timesteps=8320")  # env steps, as Hi-ORS has
NO_CORRECTIONS = "training.operator.max_takeovers=0"  # the human still judges


HAS_PYARROW = find_spec("pyarrow") is not None  # without it: the lab's own format, the same learning
ACCEPTED, ONLINE = ((), ()) if HAS_PYARROW else (("buffers.accepted.format=lab",), (f"{REPLAY}.format=lab",))
ERRS = ("environment.num_envs=1", "+training.operator.hasty=0.2", "+training.operator.false_success=0.05")


def variant(experiment: str, *overrides: str) -> Task:
    recorded = {"hiors": ACCEPTED, "rlpd": ONLINE}.get(experiment.split("_")[0], ())
    return Task(metric=SUCCESS, experiment=experiment, overrides=(*overrides, *recorded))


def hiors(*overrides: str) -> Task:
    return variant("hiors_insertion", *ERRS, *overrides)


TASKS = {
    "bc": variant("hiors_bc_insertion"),
    "bc_1000": variant("hiors_bc_insertion", "training.phases.1.duration_updates=1000", "algorithm.decay_updates=1000"),
    "bc_more": variant("hiors_bc_insertion", "training.total_timesteps=1_600"),  # as many human steps as Hi-ORS has
    "hiors": hiors(),
    "no_corrections": hiors(NO_CORRECTIONS),
    "no_no_op_filter": hiors(f"{RULES}.no_op_std=null"),
    "no_short_filter": hiors(f"{RULES}.min_steps=1"),
    "chunk_5": hiors("algorithm.action_horizon=5"),
    "chunk_25": hiors("algorithm.action_horizon=25"),
    "fixed_m": hiors(f"{RULES}.thresholds=[0.04]"),  # every success, however late
    "no_score_weights": hiors("algorithm.score_power=0"),
}
TASKS |= {
    "rlpd": variant("rlpd_insertion", *SHORTER),
    "rlpd_no_corrections": variant("rlpd_insertion", *SHORTER, NO_CORRECTIONS),
    "rlpd_more": variant("rlpd_insertion"),  # half as many steps again
}
INSERTION = tuple(TASKS)

TASKS |= {  # asked for by name: a flow policy that critics improve
    "sac_pi0": variant("sac_pi0_insertion"),
    "sac_pi0_imitation": variant("sac_pi0_insertion", "training.total_timesteps=320"),  # what the critics begin with
    "sac_pi0_distill_3": variant("sac_pi0_insertion", "algorithm.distill_weight=3"),
    "sac_pi0_distill_1": variant("sac_pi0_insertion", "algorithm.distill_weight=1"),
    "sac_pi0_more": variant(
        "sac_pi0_insertion", "training.phases.2.duration_steps=12_000", "training.total_timesteps=12_320"
    ),
}
SMALL = (  # minutes of one core: a quarter of the experiments' updates, of a quarter of their rows
    "+environment.env_kwargs.spread=0.3",
    "components.encoder.channels=[16,32,64]",
    "buffers.accepted.into.batch_size=32",
    "algorithm.decay_updates=3_000",
    "training.num_eval_episodes=50",
)
PRACTICE = "{collect: 100}, {update_policy: 100}, {evaluate: {every_updates: 1_500}}"
TASKS |= {
    "pixels_bc": variant(
        "hiors_bc_pick_and_place_pixels",
        *SMALL,
        "training.phases.1.duration_updates=3_000",
        "training.phases.1.workflow_hooks=[update_policy, {evaluate: {every_updates: 1_500}}]",
    ),
    "pixels_hiors": variant(
        "hiors_pick_and_place_pixels",
        *SMALL,
        "training.phases.1.duration_updates=1_000",
        f"training.phases.2.workflow_hooks=[{PRACTICE}]",
    ),
}
PAPER = {  # success in percent, Insert-Moisturizer on a real robot (arXiv 2510.26406)
    "bc": "57",
    "hiors": "80",
    "no_corrections": "0",
    "no_no_op_filter": "20",
    "no_short_filter": "60",
    "chunk_5": "10",
    "chunk_25": "40",
    "rlpd": "does not converge (HIL-SERL)",
}


def main() -> None:
    options = parser(__doc__ or "", NAME, TASKS, num_seeds=3)
    options.set_defaults(tasks=list(INSERTION))
    args = options.parse_args()
    benchmark(TASKS, args)
    lines = table(json.loads((RESULTS / f"{args.name}.json").read_text())["rows"], args.name, args.episodes)
    write_csv(f"{args.name}_table", lines)
    print(f"\n{markdown_table(lines)}")


def table(rows: Iterable[Row], name: str, episodes: int) -> list[Row]:
    """Return a line per variant: seeds, mean, an interval of 95 % for all their episodes together, and the paper's."""
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        grouped.setdefault(row["experiment"], []).append(row)
    return [line(task, group, name, episodes) for task, group in grouped.items()]


def line(task: str, rows: list[Row], name: str, episodes: int) -> Row:
    shares, best = ([row[key] for row in rows] for key in ("eval_mean", "best_mean"))
    low, high = wilson(sum(shares) * episodes, len(shares) * episodes)
    return {
        "variant": task,
        "overrides": " ".join(TASKS[task].overrides) if task in TASKS else "",
        "success %": ", ".join(f"{100 * share:.0f}" for share in shares),
        "mean %": round(100 * mean(shares), 1),
        "of the best checkpoints %": round(100 * mean(best), 1),
        "95 % interval": f"{100 * low:.0f} to {100 * high:.0f}",
        "human steps": ", ".join(str(human_steps(task, row["seed"], name)) for row in rows),
        "env steps": max(row["env_steps"] for row in rows),
        "seconds": round(mean(row["wall_s"] for row in rows)),
        "paper %": PAPER.get(task, ""),
    }


def wilson(successes: float, trials: int, z: float = 1.96) -> tuple[float, float]:
    """Return Wilson's interval of a share."""
    share, spread = successes / trials, z * z / trials
    middle = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / trials + spread / (4 * trials)) / (1 + spread)
    return middle - half, middle + half


def human_steps(task: str, seed: int, name: str) -> int | str:
    """Return how many steps the expert has shown and the human has done; unknown once the run is gone."""
    directory = run_directory(task, seed, name)
    if not (directory / "metrics.jsonl").exists():
        return "?"
    acted, before = 0.0, 0
    for row in json_lines(directory / "metrics.jsonl"):
        if (share := row.get("collect/interventions")) is not None:  # of the steps since the last row that told
            acted, before = acted + share * (row["step"] - before), row["step"]
    return demonstrated(yaml.safe_load((directory / "config.yaml").read_text())) + round(acted)


def demonstrated(config: Mapping[str, Any]) -> int:
    """Return the env steps of a run's first phase."""
    first = config["training"]["phases"][0]
    if "duration_steps" in first:
        return int(first["duration_steps"])
    return int(first["duration_cycles"] * first["workflow_hooks"][0]["collect"] * config["environment"]["num_envs"])


if __name__ == "__main__":
    call(main)
