"""Learning to insert a peg beside a (simulated) human: RLPD with and without corrections, a flow policy with critics.

Rows and curves go to `results/rlpd_scores.csv` and `results/rlpd_scores_curves.csv`. Success is the share of 50
evaluation episodes, without help. Interrupt it when you like: runs that are there are not begun anew.

    python benchmarks/rlpd_scores.py
    python benchmarks/rlpd_scores.py --variants rlpd --seeds 1
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from harness import LAB, ROOT, markdown_table, run, write_csv, write_results

EIGHT = ("training.phases.1.duration_steps=8000", "training.total_timesteps=8320")  # env steps
VARIANTS = {
    "rlpd": ("+experiment=rlpd_insertion",),
    "rlpd_8k": ("+experiment=rlpd_insertion", *EIGHT),
    "rlpd_alone_8k": ("+experiment=rlpd_insertion", *EIGHT, "training.operator=null"),
    "sac_pi0": ("+experiment=sac_pi0_insertion",),
}
FOLDER = ROOT / "experiments" / "rlpd_scores"
SUCCESS = "eval/info/is_success"


def trained(variant: str, seed: int, *, only_read: bool) -> Path | None:
    """Return the run's directory; what is not done goes on, what is not there is trained, unless it is only read."""
    root = FOLDER / f"{variant}_s{seed}"
    found = sorted(root.glob("*/metrics.jsonl"))
    if only_read:
        return found[-1].parent if found else None
    if not found:
        where = (f"experiment.seed={seed}", f"experiment.root={root}", "+logging=quiet")
        run([*LAB, "train", *VARIANTS[variant], *where], OMP_NUM_THREADS="1")
        found = sorted(root.glob("*/metrics.jsonl"))
    path = found[-1].parent
    if (path / "status").read_text().strip() != "done":
        run([*LAB, "resume", str(path)], OMP_NUM_THREADS="1")
    return path


def metrics_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def row_of(variant: str, seed: int, path: Path) -> dict[str, Any]:
    """Return what a run has come to."""
    metrics = metrics_of(path)
    success = [row[SUCCESS] for row in metrics if SUCCESS in row]
    helped = [row["collect/interventions"] for row in metrics if "collect/interventions" in row]
    lengths = [row["eval/length"] for row in metrics if SUCCESS in row]
    return {
        "variant": variant,
        "seed": seed,
        "env_steps": metrics[-1]["step"],
        "success": success[-1],
        "best_success": max(success),
        "eval_length": lengths[-1],
        "interventions_most": max(helped) if helped else "",
        "interventions_last": helped[-1] if helped else "",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--read", action="store_true", help="train nothing: rows of the runs that are there")
    args = parser.parse_args()
    rows, curves = [], []
    for variant in args.variants:
        for seed in args.seeds:
            path = trained(variant, seed, only_read=args.read)
            if path is None:
                continue
            rows.append(row_of(variant, seed, path))
            seen = [row for row in metrics_of(path) if SUCCESS in row]
            curves += [{"variant": variant, "seed": seed, "step": row["step"], "success": row[SUCCESS]} for row in seen]
    write_csv("rlpd_scores_curves", curves)
    print(write_results("rlpd_scores", rows, seeds=args.seeds))
    print(markdown_table(rows))


if __name__ == "__main__":
    main()
