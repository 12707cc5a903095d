"""TD-MPC2, size 5, beside the official implementation: updates and decisions, one after another in one run.

Both have the sizes of walker-walk (24 numbers seen, 6 of an action, episodes of 500 decisions), batches of 256
sequences of 3 steps and plans of 6 rounds with 512 sequences. A decision is whole when its action is on the host. Ours
is captured and its update includes drawing the batch; theirs is compiled (`reduce-overhead`), as it is by default, and
updates one batch that lies on the device again and again. Where its compiler fails it is timed uncompiled, and the row
says so.

Once: `git clone https://github.com/nicklashansen/tdmpc2` and `pip install --target DEPENDENCIES --no-deps
tensordict==0.8.3 cloudpickle pyvers importlib_metadata zipp orjson`; later ones (0.15) do not build its critics.

    python benchmarks/tdmpc2_speed.py --peer CLONE [--dependencies DEPENDENCIES] [--out results/tdmpc2_speed.json]

`--device cpu` is for trials of the script: both eager.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, markdown_table, provenance

HERE = Path(__file__).resolve().parent
SHAPES = {"observation": 24, "action": 6, "episode_steps": 500}  # of walker-walk, whose frames come in pairs
SHOWN = ("who", "way", "precision", "update_ms", "decisions_per_s", "parameters", "first_update_s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True, type=Path, help="a clone of nicklashansen/tdmpc2")
    parser.add_argument("--dependencies", type=Path, help="a folder that holds tensordict; null: it is installed")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--precisions", nargs="+", default=["tf32"], choices=("tf32", "float32"), help="its own: tf32")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a round")
    parser.add_argument("--rounds", type=int, default=5, help="of the official one; ours has five")
    parser.add_argument("--out", type=Path, default=RESULTS / "tdmpc2_speed.json")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for precision in arguments.precisions:
        pair = [official(arguments, precision), ours(arguments, precision)]
        rows += pair
        for row in pair:
            print({key: row[key] for key in SHOWN}, flush=True)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    ratios = {
        f"{key}, {theirs['precision']}": round(value, 2)
        for theirs, mine in zip(rows[::2], rows[1::2], strict=True)
        for key, value in (
            ("updates", theirs["update_ms"] / mine["update_ms"]),
            ("decisions", mine["decisions_per_s"] / theirs["decisions_per_s"]),
        )
    }
    arguments.out.write_text(json.dumps({**provenance(), "gpu": gpu, "ratios": ratios, "rows": rows}, indent=1) + "\n")
    print(markdown_table([{key: row[key] for key in SHOWN} for row in rows]))
    print(f"times as fast as the official one: {ratios}")


def official(arguments: argparse.Namespace, precision: str) -> dict[str, Any]:
    """Return the row of the official implementation."""
    ways = ("compiled", "eager") if arguments.device == "cuda" else ("eager",)
    said = ""
    for way in ways:
        task = {
            "path": str(arguments.peer),
            "device": arguments.device,
            "precision": precision,
            "is_compiled": way == "compiled",
            "seconds": arguments.seconds,
            "rounds": arguments.rounds,
            **SHAPES,
        }
        command = [sys.executable, str(HERE / "workers" / "tdmpc2_official.py"), json.dumps(task)]
        beside = [] if arguments.dependencies is None else [str(arguments.dependencies.resolve())]
        path = os.pathsep.join(filter(None, [*beside, os.environ.get("PYTHONPATH", "")]))
        done = subprocess.run(
            command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            return {"who": "official", "way": way, "precision": precision, **json.loads(done.stdout.splitlines()[-1])}
        said = done.stderr[-1500:]
        print(f"official, {way}: {said}", flush=True)
    raise SystemExit(f"the official implementation does not run here: {said}")


def ours(arguments: argparse.Namespace, precision: str) -> dict[str, Any]:
    """Return our row, by the benchmark of all world models."""
    way = "captured" if arguments.device == "cuda" else "eager"
    case = ["--one", f"tdmpc2:5m:{way}:{precision}", "--device", arguments.device, "--seconds", str(arguments.seconds)]
    command = [sys.executable, str(HERE / "world_model_gpu.py"), *case]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"ours: {done.stderr[-1500:]}")
    return {"who": "lab", **json.loads(done.stdout.splitlines()[-1])}


if __name__ == "__main__":
    main()
