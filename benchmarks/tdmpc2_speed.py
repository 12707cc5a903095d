"""TD-MPC2, size 5, beside the official implementation: updates and decisions, one after another in one run.

Both have the sizes of walker-walk (24 numbers seen, 6 of an action, episodes of 500 decisions), batches of 256
sequences of 3 steps and plans of 6 rounds with 512 sequences. A decision is whole when its action is on the host. Ours
is captured and its update includes drawing the batch; theirs updates one batch that lies on the device again and again,
compiled (`reduce-overhead`), as it is by default, and uncompiled.

All get ready at the same time, which takes minutes where something is compiled, and are then timed one by one. What is
not ready within `--patience` has no row; rows are written as they come.

Once: `git clone https://github.com/nicklashansen/tdmpc2` and `pip install --target DEPENDENCIES --no-deps
tensordict==0.8.3 cloudpickle pyvers importlib_metadata zipp orjson`; later ones (0.15) do not build its critics.

    python benchmarks/tdmpc2_speed.py --peer CLONE [--dependencies DEPENDENCIES] [--out results/tdmpc2_speed.json]

With `--device cpu` all are eager (`OMP_NUM_THREADS=1 taskset -c 0` before it: one core each).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, markdown_table, provenance
from staged import Staged

HERE = Path(__file__).resolve().parent
SHAPES = {"observation": 24, "action": 6, "episode_steps": 500}  # of walker-walk, whose frames come in pairs
SHOWN = ("who", "way", "precision", "update_ms", "decisions_per_s", "parameters", "ready_s")
CASES = ("lab:captured", "official:eager", "official:compiled")
ON_CPU = ("lab:eager", "official:eager")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True, type=Path, help="a clone of nicklashansen/tdmpc2")
    parser.add_argument("--dependencies", type=Path, help="a folder that holds tensordict; null: it is installed")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--cases", nargs="+", help="who:way")
    parser.add_argument("--precision", default="tf32", choices=("tf32", "float32"), help="its own: tf32")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a round, of which there are five")
    parser.add_argument("--patience", type=float, default=900.0, help="seconds for getting ready")
    parser.add_argument("--out", type=Path, default=RESULTS / "tdmpc2_speed.json")
    arguments = parser.parse_args()
    cases = arguments.cases or (CASES if arguments.device == "cuda" else ON_CPU)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        waiting = [Staged(case, command(case, arguments), Path(folder), **beside(case, arguments)) for case in cases]
        until = time.monotonic() + arguments.patience
        for process in [process for process in waiting if process.is_ready(until)]:
            if (row := process.row()) is not None:
                who, way = process.name.split(":")
                rows.append({"who": who, "way": way, "precision": arguments.precision, **row})
                write(rows, arguments.out)
                print({key: rows[-1][key] for key in SHOWN}, flush=True)
    print(markdown_table([{key: row[key] for key in SHOWN} for row in rows]))
    print(f"times as fast: {ratios(rows)}")


def command(case: str, arguments: argparse.Namespace) -> list[str]:
    """Return the command of a case."""
    who, way = case.split(":")
    if who == "lab":
        named = ["--one", f"tdmpc2:5m:{way}:{arguments.precision}", "--device", arguments.device]
        return [sys.executable, str(HERE / "world_model_gpu.py"), *named, "--seconds", str(arguments.seconds)]
    task = {
        "path": str(arguments.peer),
        "device": arguments.device,
        "precision": arguments.precision,
        "is_compiled": way == "compiled",
        "seconds": arguments.seconds,
        **SHAPES,
    }
    return [sys.executable, str(HERE / "workers" / "tdmpc2_official.py"), json.dumps(task)]


def beside(case: str, arguments: argparse.Namespace) -> dict[str, str]:
    """Return what the environment of a case has besides."""
    if arguments.dependencies is None or case.startswith("lab"):
        return {}
    folders = [str(arguments.dependencies.resolve()), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, folders))}


def ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return how many times as fast ours is as each of theirs."""
    mine = next((row for row in rows if row["who"] == "lab"), None)
    found = {}
    for theirs in rows if mine is not None else []:
        if theirs is not mine:
            found[f"updates, {theirs['way']}"] = round(theirs["update_ms"] / mine["update_ms"], 2)
            found[f"decisions, {theirs['way']}"] = round(mine["decisions_per_s"] / theirs["decisions_per_s"], 2)
    return found


def write(rows: list[dict[str, Any]], path: Path) -> None:
    """Write the rows that there are."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    path.write_text(json.dumps({**provenance(), "gpu": gpu, "ratios": ratios(rows), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
