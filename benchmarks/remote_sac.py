"""SAC on Pendulum with the learner and its actors in processes of their own, beside the same run in one process.

`lab start` runs a learner and actors, which meet over a socket file; in `killed` the actor gets a SIGKILL after a third
and after two thirds of the way, and `lab start` begins it again. Returns are means of 20 episodes of 200 steps that the
learner plays: about -1,200 is what random torques bring, about -150 is solved. Actors wait where they are 200 steps
ahead (`max_lead`), so that wall time is the learner's.

    python benchmarks/remote_sac.py
    python benchmarks/remote_sac.py --steps 2_000 --seeds 1 --ways one_process actor --name try
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from harness import ROOT, markdown_table, write_results

LAB = (sys.executable, "-m", "rl_lab")
WAYS: dict[str, tuple[str, ...]] = {
    "one_process": (*LAB, "train", "+experiment=sac_pendulum"),
    "actor": (*LAB, "start", "+experiment=remote_sac_pendulum"),
    "three_actors": (*LAB, "start", "+experiment=remote_sac_pendulum", "transport.actors=3"),
    "killed": (*LAB, "start", "+experiment=remote_sac_pendulum"),
}
LOOK_S, LIMIT_S = 0.2, 1_800.0


def main() -> None:
    args = parse_arguments()
    rows, curves = [], []
    with tempfile.TemporaryDirectory() as folder:
        for seed in args.seeds:
            for way in args.ways:
                row, curve = measure(way, seed, args.steps, Path(folder) / f"{way}_{seed}")
                rows.append(row)
                curves.append({"way": way, "seed": seed, "curve": curve})
                print(row, flush=True)
                write_results(args.name, rows, curves=curves)
    print(markdown_table(rows))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=lambda text: int(text.replace("_", "")), default=10_000, help="env steps")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--name", default="remote_sac", help="of the result files")
    return parser.parse_args()


def measure(way: str, seed: int, steps: int, run: Path) -> tuple[dict[str, Any], list[list[float]]]:
    """Return what came of a run, and its curve as env steps and returns."""
    every = f"training.eval_frequency={steps // 4}"
    options = (f"experiment.seed={seed}", f"training.total_timesteps={steps}", every, "experiment.compile=eager")
    kept = ("training.checkpoint_frequency=1_000", "logging.every_steps=200")
    start = time.perf_counter()
    with (run.parent / f"{run.name}.log").open("w") as log:
        command = (*WAYS[way], *options, *kept, "--run-dir", str(run))
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env=os.environ)
        try:
            kills = kill_on_the_way(run, steps, process) if way == "killed" else 0
            code = process.wait(LIMIT_S)
        finally:
            process.terminate()
    if code != 0:
        raise RuntimeError(f"exit code {code} of {way}:\n{Path(log.name).read_text()[-2000:]}")
    wall_s = time.perf_counter() - start
    rows = [row for row in lines(run / "metrics.jsonl") if "eval/return" in row]
    curve = [[row["step"], round(row["eval/return"], 1)] for row in rows]
    last = {"env_steps": curve[-1][0], "return_first": curve[0][1], "return_last": curve[-1][1]}
    cut = int(lines(run / "perf.jsonl")[-1].get("actors/cut_episodes", 0))
    return {"way": way, "seed": seed, **last, "kills": kills, "cut_episodes": cut, "wall_s": round(wall_s, 1)}, curve


def kill_on_the_way(run: Path, steps: int, crew: subprocess.Popen[bytes]) -> int:
    """Kill the actor after a third and after two thirds of the steps; return how often that was."""
    for share in (1 / 3, 2 / 3):
        wait_until(partial(has_come, run, round(share * steps), crew))
        os.kill(child_of(crew.pid, "actor"), signal.SIGKILL)
    return 2


def has_come(run: Path, steps: int, crew: subprocess.Popen[bytes]) -> bool:
    """Return whether a run has come so far, or is over."""
    return newest_step(run) >= steps or crew.poll() is not None


def child_of(parent: int, role: str) -> int:
    """Return the number of the process of this crew that has this role."""
    for number in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        if role in Path(f"/proc/{number}/cmdline").read_text().split("\0")[:5]:
            return int(number)
    raise RuntimeError(f"process {parent} has no {role}")


def newest_step(run: Path) -> int:
    rows = lines(run / "perf.jsonl")
    return int(rows[-1]["step"]) if rows else 0


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the whole rows of a file that may be growing."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def wait_until(is_true: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not is_true():
        if time.monotonic() > end:
            raise RuntimeError(f"nothing came about in {LIMIT_S:.0f} s")
        time.sleep(LOOK_S)


if __name__ == "__main__":
    main()
