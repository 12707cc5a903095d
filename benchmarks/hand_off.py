"""One world model, four users: its own actor, CEM and MPPI that plan in it, a new actor that learns in its dreams.

Trains the world model as `dreamer_cartpole` does, or takes that of a run of it. What then uses its checkpoint differs
in YAML alone, and none of it changes the model: PlaNet searches it at every step, with one planner and the other; a
Dreamer that has learned nothing yet learns in it. Each is evaluated on fresh episodes, beside random actions. About
twenty minutes of one core; `results/hand_off.csv` and `.json`. What is there already is not done again.

    python benchmarks/hand_off.py
    python benchmarks/hand_off.py --source experiments/dreamer --name hand_off_of_mine
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from harness import LAB, ROOT, markdown_table, run, run_json, write_csv, write_results
from training_runs import EVALUATION_SEED, RUNS, call

SOURCE = "dreamer_cartpole"
PLANNED = "planet_dreamer_cartpole"
LOOK = (  # an episode: `lab evaluate` has those that count
    "training.phases=[{name: look, buffer: replay, type: eval_only, duration_cycles: 1, workflow_hooks: [evaluate]}]",
    *("training.eval_frequency=null", "training.num_eval_episodes=1", "training.eval_num_envs=1"),
)
DREAM = (
    "training.phases=[{name: dream, buffer: replay, duration_steps: ${training.total_timesteps}, train_ratio: 0.4,"
    " workflow_hooks: [collect, update_controller]}]"
)
USERS = {  # experiment, and what its YAML is told
    "CEM": (PLANNED, LOOK),
    "MPPI": (PLANNED, (*LOOK, "components.planner._target_=rl_lab.components.planners.MPPI")),
    "a new actor": (SOURCE, (DREAM,)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, help=f"a run of {SOURCE}; none: one is trained")
    parser.add_argument("--steps", type=int, default=8_000, help="env steps in which the world model is learned")
    parser.add_argument("--dream-steps", type=int, default=3_000, help="env steps from which the new actor dreams")
    parser.add_argument("--episodes", type=int, default=20, help="fresh evaluation episodes of each")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--overrides", nargs="*", default=[], help="for every run, such as budget=tiny")
    parser.add_argument("--name", default="hand_off", help="of the result files")
    args = parser.parse_args()
    folder = RUNS / args.name
    source = trained(SOURCE, folder / "source", args.steps, (), args) if args.source is None else args.source.resolve()
    random = run_json(
        [sys.executable, str(ROOT / "benchmarks" / "random_policy.py"), SOURCE, "--episodes", str(args.episodes)]
    )
    rows = [row("random actions", random), row("its own actor", evaluated(source, args))]
    taken = [f"training.resume_path={source}", "training.resume_mode=warm_start", "training.resume_parts=[world_model]"]
    for user, (experiment, told) in USERS.items():
        directory = folder / user.replace(" ", "_")
        trained(experiment, directory, args.dream_steps, (*taken, *told), args)
        rows.append(row(user, evaluated(directory, args), " ".join(told)))
    write_csv(args.name, rows)
    write_results(args.name, rows, seed=args.seed, episodes=args.episodes, overrides=args.overrides)
    print(markdown_table([{key: cell for key, cell in each.items() if key != "yaml"} for each in rows]))


def trained(experiment: str, directory: Path, steps: int, options: tuple[str, ...], args: argparse.Namespace) -> Path:
    """Bring a run to its end, from wherever it is, and return its directory."""
    given = [f"experiment.seed={args.seed}", f"training.total_timesteps={steps}", "experiment.num_threads=1"]
    given += [*options, *args.overrides, "+logging=quiet"]
    run([*LAB, "train", f"+experiment={experiment}", *given, "--run-dir", str(directory)])
    return directory


def evaluated(directory: Path, args: argparse.Namespace) -> dict[str, Any]:
    options = ["--episodes", str(args.episodes), "--checkpoint", "latest", "--seed", str(EVALUATION_SEED)]
    return run_json([*LAB, "evaluate", str(directory), *options, "--json"])


def row(user: str, scores: dict[str, Any], yaml: str = "") -> dict[str, Any]:
    return {
        "what acts": user,
        "mean return": round(scores["return"], 2),
        "std": round(scores["return_std"], 2),
        "length": round(scores["length"], 1),
        "yaml": yaml,
    }


if __name__ == "__main__":
    call(main)
