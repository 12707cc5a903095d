"""A sweep that is killed with -9 again and again ends as one that was left alone: every trial once, in the same bits.

The sweep runs twice. The first time nobody disturbs it. The second time its process is killed at random moments, every
other time together with those of its trials, and the same command goes on. In the end every trial must be done, must
have begun once, and must have the fingerprint and the metrics of its undisturbed twin; the exit code says whether.

    python benchmarks/sweep_kill.py                                     # 24 trials, 5 kills
    python benchmarks/sweep_kill.py --kills 1 --lrs 2 --name try
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
from pathlib import Path
from typing import Any

from harness import ROOT, markdown_table, write_results

LAB = (sys.executable, "-m", "rl_lab")
SWEEP = """\
base_config: ppo_cartpole
sweep:
  optimizers.policy.lr: {lrs}
  algorithm.clip_range: [0.1, 0.2]
  components.actor.hidden_dims: [[32], [64, 64]]
  algorithm.entropy_coef: {{log_uniform: [1.0e-4, 1.0e-2]}}
seeds: [1, 2]
parallel_jobs: 2
overrides: [training.total_timesteps=20480, training.eval_frequency=10240, training.num_eval_episodes=5,
            training.checkpoint_frequency=1024, logging.tensorboard=false]
"""


def main() -> None:
    args = parse_arguments()
    rng = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        file, whole, killed = (Path(folder) / name for name in ("kill.yaml", "whole", "killed"))
        file.write_text(SWEEP.format(lrs=[round(1e-3 * (n + 1), 4) for n in range(args.lrs)]))
        start = time.monotonic()
        finish(sweep(file, whole))
        wall_s = time.monotonic() - start
        kills = kill_all(file, killed, args.kills, wall_s, rng)
        finish(sweep(file, killed))
        row = compare(whole, killed) | {"undisturbed_s": round(wall_s, 1)}
    rows = [{"kills": len(kills), "with its trials": sum(kill["with_trials"] for kill in kills), **row}]
    write_results(args.name, rows, seeds=[args.seed], kills=kills, sweep=SWEEP)
    print(markdown_table(rows))
    if not row["equal"] or len(kills) < args.kills:
        sys.exit("error: not every trial is the same after all kills")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--lrs", type=int, default=3, help="learning rates; eight trials each")
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    parser.add_argument("--name", default="sweep_kill", help="of the result files")
    return parser.parse_args()


def sweep(file: Path, directory: Path) -> subprocess.Popen[bytes]:
    command = [*LAB, "sweep", str(file), "--dir", str(directory), "--json"]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen[bytes]) -> None:
    _, errors = process.communicate()
    if process.returncode != 0:
        sys.exit(f"error: a sweep failed: {errors.decode()[-1000:]}")


def kill_all(file: Path, directory: Path, count: int, wall_s: float, rng: random.Random) -> list[dict[str, Any]]:
    """Kill the sweep `count` times, spread over the time that it takes; say how each found it."""
    kills: list[dict[str, Any]] = []
    for number in range(count):
        process, with_trials = sweep(file, directory), number % 2 == 0
        goal = (number + rng.uniform(0.2, 0.8)) / (count + 1)  # share of all checkpoints
        deadline = time.monotonic() + 3 * wall_s
        while progress(directory) < goal and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        if process.poll() is not None:
            print(f"the sweep ended after {number} kills", file=sys.stderr)
            break
        trials = children(process.pid)
        for pid in [process.pid, *(trials if with_trials else [])]:
            os.kill(pid, signal.SIGKILL)
        process.wait()
        states = [path.read_text().strip() for path in directory.glob("trials/*/status")]
        kills.append({"with_trials": with_trials, "trials_running": len(trials), "trials_done": states.count("done")})
        print(f"kill {number + 1}: {kills[-1]}", flush=True)
    return kills


def progress(directory: Path) -> float:
    """Return the share of the sweep's env steps that is done, by the rows of its trials."""
    plan = directory / "sweep.json"
    if not plan.is_file():
        return 0.0
    done = 0.0
    for metrics in directory.glob("trials/*/metrics.jsonl"):
        lines = metrics.read_bytes().splitlines()
        done += json.loads(lines[-1])["step"] / 20480 if lines and lines[-1].endswith(b"}") else 0
    return done / len(json.loads(plan.read_text())["trials"])


def children(pid: int) -> list[int]:
    file = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(each) for each in file.read_text().split()] if file.exists() else []


def compare(whole: Path, killed: Path) -> dict[str, Any]:
    """Return how many trials are done, began once and are the same in both sweeps."""
    from rl_lab.tracking.fingerprint import fingerprint
    from rl_lab.tracking.run_directory import RunDirectory

    names = [trial["name"] for trial in json.loads((whole / "sweep.json").read_text())["trials"]]
    found = sorted(path.name for path in (killed / "trials").iterdir())
    done = same = resumed = 0
    for name in names:
        left, right = (RunDirectory.open(place / "trials" / name) for place in (whole, killed))
        done += right.read_status() == "done"
        same += fingerprint(left) == fingerprint(right) and same_files(left.path, right.path)
        resumed += '"kind": "resume"' in right.events_file.read_text()
    is_equal = found == names and done == same == len(names)
    return {"trials": len(names), "done": done, "resumed": resumed, "equal to undisturbed": same, "equal": is_equal}


def same_files(left: Path, right: Path) -> bool:
    return all((left / name).read_bytes() == (right / name).read_bytes() for name in ("metrics.jsonl", "metrics.json"))


if __name__ == "__main__":
    main()
