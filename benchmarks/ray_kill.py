"""Searches on a Ray cluster of two nodes whose driver is killed with -9 once, against undisturbed ones.

Both nodes are processes of this machine (`ray.cluster_utils.Cluster`, one CPU each). Every search runs twice on them.
The second time its driver is killed at a random moment and the same command goes on. Then every run must be there once
and none of its rows twice. Searches in rounds (a population, successive halving) must have taken the same decisions and
come to the same bits; with asynchronous halving it matters who was faster, so that there each run is compared with what
the same setting comes to when nobody ends it: its rows must be the first of those. The exit code says whether.

    python benchmarks/ray_kill.py                                       # needs the extras ray and tune
    python benchmarks/ray_kill.py --only population --name try
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import ROOT, markdown_table, versions, write_results

LAB = (sys.executable, "-m", "rl_lab")
SEARCH = """\
base_config: ppo_cartpole
sweep:
  optimizers.policy.lr: {{log_uniform: [1.0e-4, 1.0e-2]}}
  algorithm.entropy_coef: {{log_uniform: [1.0e-4, 1.0e-1]}}
  experiment.seed: {{int: [1, 1000]}}
parallel_jobs: 2
overrides: [training.total_timesteps=12288, training.eval_frequency=2048, training.num_eval_episodes=5,
            training.checkpoint_frequency=1024, logging.tensorboard=false]
tune: {{{tune}}}
"""
KINDS = {
    "population": "trials: 4, population: {every_steps: 4096}",
    "halving": "trials: 6, halving: {first_steps: 4096, keep: 0.5}",
    "asynchronous halving": "trials: 6, pruner: halving, sampler: random",
}
FREE = "trials: 6, pruner: none, sampler: random"


def main() -> None:
    args = parse_arguments()
    rng, rows, kills = random.Random(args.seed), [], []
    with tempfile.TemporaryDirectory() as folder, two_nodes() as address:
        for kind in [kind for kind in KINDS if args.only in (None, kind)]:
            row, kill = disturb(kind, Path(folder) / kind.replace(" ", "_"), address, rng)
            rows.append(row)
            kills.append(kill)
            print(markdown_table(rows), flush=True)
    write_results(args.name, rows, seeds=[args.seed], kills=kills, search=SEARCH, tune=KINDS, **ray_version())
    if not all(row["as undisturbed"] == row["runs"] and row["rows twice"] == 0 for row in rows):
        sys.exit("error: not every run is as it should be after the kill")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=KINDS, help="one of the searches")
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    parser.add_argument("--name", default="ray_kill", help="of the result files")
    return parser.parse_args()


def ray_version() -> dict[str, Any]:
    return {"more_versions": versions(("ray", "optuna"))}


@contextmanager
def two_nodes() -> Iterator[str]:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    try:
        yield cluster.address
    finally:
        cluster.shutdown()


def disturb(kind: str, folder: Path, address: str, rng: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run a search undisturbed and killed; return what came of it and when it was killed."""
    folder.mkdir()
    file, whole, killed = folder / "search.yaml", folder / "whole", folder / "killed"
    file.write_text(SEARCH.format(tune=KINDS[kind]))
    free = folder / "free.yaml"
    free.write_text(SEARCH.format(tune=FREE))
    is_ordered = kind != "asynchronous halving"
    start = time.monotonic()
    finish(tune(file if is_ordered else free, whole, address))
    wall_s = time.monotonic() - start
    goal = (rng.uniform(0.3, 0.7) if is_ordered else rng.uniform(0.1, 0.25)) * steps_of(whole)  # some are ended early
    process = tune(file, killed, address)
    while steps_of(killed) < goal and process.poll() is None:
        time.sleep(0.02)
    if process.poll() is not None:
        sys.exit(f"error: the search ended before it was killed: {kind}")
    kill = {"search": kind, "env_steps": steps_of(killed), "of": steps_of(whole)}
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    finish(tune(file, killed, address))
    return {"search": kind, **compare(whole, killed, is_ordered), "undisturbed_s": round(wall_s, 1)}, kill


def tune(file: Path, directory: Path, address: str) -> subprocess.Popen[bytes]:
    command = [*LAB, "tune", str(file), "--dir", str(directory), "--on", "ray", "--address", address, "--json"]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen[bytes]) -> None:
    _, errors = process.communicate()
    if process.returncode != 0:
        sys.exit(f"error: a search failed: {errors.decode()[-1000:]}")


def steps_of(directory: Path) -> int:
    """Return the env steps of all runs together, by their rows."""
    total = 0
    for metrics in directory.glob("trials/*/metrics.jsonl"):
        lines = metrics.read_bytes().splitlines()
        total += json.loads(lines[-1])["step"] if lines and lines[-1].endswith(b"}") else 0
    return total


def compare(whole: Path, killed: Path, is_ordered: bool) -> dict[str, Any]:
    """Return how many runs there are, how they ended, how many rows are there twice and who is as it should be."""
    from rl_lab.tracking.fingerprint import fingerprint
    from rl_lab.tracking.run_directory import RunDirectory

    names = sorted(path.name for path in (whole / "trials").iterdir())
    if names != sorted(path.name for path in (killed / "trials").iterdir()):
        sys.exit("error: other runs after the kill")
    same = twice = 0
    for name in names:
        left, right = (RunDirectory.open(place / "trials" / name) for place in (whole, killed))
        steps = [(row["step"], "eval/return" in row) for row in map(json.loads, right.metrics_file.open())]
        twice += len(steps) - len({*steps})
        is_same_start = left.metrics_file.read_bytes().startswith(right.metrics_file.read_bytes())
        same += fingerprint(left) == fingerprint(right) and is_same_start if is_ordered else is_same_start
    journals = [place / ("rounds.json" if is_ordered else "report.json") for place in (whole, killed)]
    if is_ordered and journals[0].read_bytes() != journals[1].read_bytes():
        sys.exit("error: other decisions after the kill")
    report = json.loads((killed / "report.json").read_text())
    states = [trial["state"] for trial in report["trials"]]
    ended = {state: states.count(state) for state in dict.fromkeys(states)}
    text = ", ".join(f"{count} {state}" for state, count in ended.items())
    return {"runs": len(names), "ended": text, "rows twice": twice, "as undisturbed": same}


if __name__ == "__main__":
    main()
