"""Throughput of several processes that train one run, beside one process with the sizes of each of them.

Every run is `lab train` with the same sizes per process, so that N processes collect and learn from N times as much:
a ratio of N is the best there is. One and several take turns, and start-up does not count. Where processes have to
share cores with others, or with each other, the ratio says more about those than about the lab.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from harness import LAB, markdown_table, run, write_results

TASKS = {  # options, env steps of each process
    "ppo_pendulum_tensor": (["environment.num_envs=64"], 65_536),
    "ppo_halfcheetah": (["environment.num_envs=8"], 16_384),
    "sac_pendulum": (["algorithm.random_steps=200", "buffers.replay.batch_size=256"], 1_200),
}


def throughput(task: str, devices: int, device: str) -> float:
    """Return the env steps per second of all processes together, between the first and the last row."""
    options, steps = TASKS[task]
    total = steps * devices
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run")
        words = [f"+experiment={task}", *options, f"experiment.devices={devices}", f"experiment.device={device}"]
        words += [f"training.total_timesteps={total}", f"logging.every_steps={total // 16}", "logging.terminal=false"]
        words += ["training.eval_frequency=null", "training.checkpoint_frequency=null", "experiment.compile=eager"]
        run([*LAB, "train", *words, "--run-dir", str(path)], timeout_s=1_800)
        rows = [json.loads(line) for line in (path / "perf.jsonl").read_text().splitlines()]
    first, last = rows[0], max(rows, key=lambda row: row["step"])
    return (last["step"] - first["step"]) / (last["perf/elapsed_s"] - first["perf/elapsed_s"])


def measure(task: str, devices: int, rounds: int, device: str) -> dict[str, Any]:
    """Return the median throughputs of one and of several, and the median of their ratios in each round."""
    pairs = [[throughput(task, count, device) for count in (1, devices)] for _ in range(rounds)]
    one, several = (median(rates) for rates in zip(*pairs, strict=True))
    return {
        "task": task,
        "devices": devices,
        "one_steps_per_s": one,
        "several_steps_per_s": several,
        "ratio": median(several / one for one, several in pairs),
        "lowest_ratio": min(several / one for one, several in pairs),
        "highest_ratio": max(several / one for one, several in pairs),
        "rounds": rounds,
        "load_average": os.getloadavg()[0],
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--devices", type=int, default=2, help="processes")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda for one GPU per process")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    rows = [measure(task, args.devices, args.rounds, args.device) for task in args.tasks]
    path = write_results("data_parallel", rows, device=args.device, cores=os.cpu_count())
    print(markdown_table(rows))
    print(path)


if __name__ == "__main__":
    main()
