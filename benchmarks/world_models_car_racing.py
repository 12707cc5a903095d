"""World Models on the fast CarRacing: what V and M have learned, and the controller's score after every generation.

Trains `world_models_car_racing` by `lab train`, in the size of a quarter of an hour on one core or as the experiment
says, and evaluates the last controller on fresh tracks by `lab evaluate`. Writes a row per generation to
`results/world_models_car_racing.csv`, what made them to `.json`, the curve to `.png`, and beside them two small films:
`_open_loop.gif` (truth, reconstruction and then forecast, error) and `_dream.gif` (what the controller does in M's
dreams). An interrupted call is resumed by the next one, and `--steps` makes a finished one longer.

    python benchmarks/world_models_car_racing.py
    python benchmarks/world_models_car_racing.py --size full --threads 16 --name world_models_car_racing_full
"""

from __future__ import annotations

import argparse
import resource
import shutil
from pathlib import Path
from typing import Any

from harness import RESULTS, git_commit, markdown_table, write_results
from matplotlib import pyplot as plt
from PIL import Image, ImageSequence
from training_runs import (
    Row,
    Task,
    call,
    evaluate,
    finished_rows,
    how_updates_ran,
    json_lines,
    parser,
    run_directory,
    train,
)

EXPERIMENT = "world_models_car_racing"
PUBLISHED = {10: 308.0, 25: 668.0, 50: 767.0, 100: 799.0}  # mean of 64 candidates x 16 rollouts (hardmaru, log/)
SIZES: dict[str, list[str]] = {
    "full": [],
    "core": [  # about a quarter of an hour on one core
        "experiment.compile=eager",  # 1,200 updates are too few to compile for
        "environment.num_envs=8",
        "algorithm.random_steps=24_000",
        "algorithm.population=16",
        "algorithm.num_rollouts=2",
        "components.vae.encoder.depth=16",
        "components.vae.decoder.depth=16",
        "components.memory.hidden_dim=128",
        "optimizers.vae.lr=1e-3",
        "buffers.replay.capacity=30_000",
        "buffers.replay.batch_size=32",
        "buffers.replay.sequence_length=50",
        "training.phases.1.duration_updates=600",
        "training.phases.3.duration_updates=600",
        "training.phases.4.prediction_horizon=25",
        "training.phases.6.dream_steps=50",
        "training.phases.5.workflow_hooks=[{collect:100},update_controller]",
        "training.total_timesteps=984_000",  # 30 generations of 32 episodes
        "logging.every_steps=800",
    ],
}
FILMS = {"open_loop_image": "open_loop", "dream_image": "dream"}
COLOURS, FRAME_MS = 32, 100


def main() -> None:
    args = options()
    directory = run_directory(EXPERIMENT, args.seeds[0], args.name)
    if args.fresh:
        shutil.rmtree(directory, ignore_errors=True)
    args.overrides = [*SIZES[args.size], "training.num_eval_episodes=16", *args.overrides]
    for _ in finished_rows([(EXPERIMENT, args.seeds[0])], lambda *_: trained(directory, args), 1):
        pass  # a signal stops it at a checkpoint
    cpu_s = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])  # of this call; the wall clock knows other programs
    rows = generations(directory)
    found = {
        "scores": {
            name: value
            for name, value in evaluate(directory, args.episodes, "latest").items()
            if isinstance(value, float)
        },
        **facts(directory),
        "size": args.size,
        "cpu_s": cpu_s,
    }
    write_results(args.name, rows, seeds=args.seeds, overrides=args.overrides, published=PUBLISHED, **found)
    for film, name in FILMS.items():
        shrink(sorted((directory / "media" / "eval").glob(f"{film}_*.png"))[-1], RESULTS / f"{args.name}_{name}.gif")
    draw(rows, RESULTS / f"{args.name}.png")
    print(markdown_table(rows), found, sep="\n\n")


def options() -> argparse.Namespace:
    given = parser(__doc__ or "", EXPERIMENT, {EXPERIMENT: Task()}, num_seeds=1)
    given.add_argument("--size", choices=list(SIZES), default="core", help="how much is collected, learned and tried")
    given.set_defaults(episodes=32)
    return given.parse_args()


def trained(directory: Path, args: argparse.Namespace) -> Row:
    train(directory, EXPERIMENT, args.seeds[0], Task(), args)
    return {}


def generations(directory: Path) -> list[Row]:
    """Return a row per generation: what its candidates earned in the environment, and how fast it went."""
    clock = {row["step"]: row["perf/elapsed_s"] for row in json_lines(directory / "perf.jsonl")}
    rows: list[Row] = []
    before = None
    for row in json_lines(directory / "metrics.jsonl"):
        if row["phase"] == "controller" and before is None:
            before = (row["step"], clock[row["step"]])
        if "controller/generation" not in row:
            continue
        now = (row["step"], clock[row["step"]])
        names = ("return", "return_best", "return_worst", "sigma")
        steps, seconds = now[0] - (before or now)[0], now[1] - (before or now)[1]
        rows.append(
            {
                "generation": int(row["controller/generation"]),
                **{name: row[f"controller/{name}"] for name in names},
                "env_steps": now[0],
                "wall_s": now[1],
                "frames_per_s": steps / seconds if seconds else "",
            }
        )
        before = now
    return rows


def facts(directory: Path) -> dict[str, Any]:
    """Return how well V and M did before the search, and where the time went."""
    metrics = json_lines(directory / "metrics.jsonl")
    (look,) = [row for row in metrics if "eval/prediction_error_1" in row]
    learned = {key: row[key] for row in metrics for key in row if key.startswith("train/")}
    phases: dict[str, float] = {}
    for row in json_lines(directory / "perf.jsonl"):
        phases[row["phase"]] = row["perf/elapsed_s"]
    return {
        "model": {key: value for key, value in {**learned, **look}.items() if "/" in key},
        "elapsed_s_at_the_end_of": phases,
        "compile": how_updates_ran(directory),
        "commit": git_commit(),
    }


def shrink(film: Path, file: Path) -> None:
    """Write every second frame of a film in few colours."""
    with Image.open(film) as frames:
        kept = [frame.convert("RGB").quantize(COLOURS) for frame in ImageSequence.Iterator(frames)][::2]
    kept[0].save(file, save_all=True, append_images=kept[1:], duration=FRAME_MS, loop=0)


def draw(rows: list[Row], file: Path) -> None:
    figure, axis = plt.subplots(figsize=(5, 3.2))
    axis.fill_between(
        [row["generation"] for row in rows],
        [row["return_worst"] for row in rows],
        [row["return_best"] for row in rows],
        color="tab:blue",
        alpha=0.2,
    )
    axis.plot([row["generation"] for row in rows], [row["return"] for row in rows], color="tab:blue", marker=".")
    last = rows[-1]["generation"]
    near = {generation: value for generation, value in PUBLISHED.items() if generation <= 1.5 * last}
    axis.scatter(
        list(near), list(near.values()), 28, color="tab:orange", marker="D", label="published, 64 x 16 rollouts"
    )
    axis.set(xlabel="generation", ylabel="return of candidates: mean, best, worst", title=EXPERIMENT)
    axis.legend(fontsize="x-small")
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    call(main)
