"""PPO on thousands of tensor CartPoles, CPU beside GPU: speed, learning, and whether a resumed run is the same run.

Usage: python benchmarks/ppo_gpu.py [--num-envs 4096] [--devices cpu cuda]
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import RESULTS, ROOT, provenance, run

LAB = (sys.executable, "-m", "rl_lab.cli")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=4096)
    parser.add_argument("--rollouts", type=int, default=40, help="rollouts of 32 vector steps on the GPU")
    parser.add_argument("--cpu-rollouts", type=int, default=8, help="and on the CPU, which is only timed")
    parser.add_argument("--devices", nargs="+", default=["cpu", "cuda"])
    parser.add_argument("--out", type=Path, default=RESULTS / "ppo_gpu.json")
    arguments = parser.parse_args()
    rows = []
    for device in arguments.devices:
        with tempfile.TemporaryDirectory() as directory:
            rollouts = arguments.cpu_rollouts if device == "cpu" else arguments.rollouts
            rows.append(measure(Path(directory), device, arguments.num_envs, rollouts))
        print(json.dumps(rows[-1]), flush=True)
    rates = {row["device"]: row["env_steps_per_s"] for row in rows}
    ratio = rates["cuda"] / rates["cpu"] if {"cpu", "cuda"} <= rates.keys() else None
    print(f"cuda / cpu = {ratio}")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(
        json.dumps({**provenance(), "gpu": gpu_name(), "rows": rows, "ratio": ratio}, indent=1) + "\n"
    )


def measure(directory: Path, device: str, num_envs: int, rollouts: int) -> dict[str, Any]:
    """Train once, then again with SIGTERMs and resumes in between, and compare."""
    whole, stopped, steps = directory / "whole", directory / "stopped", num_envs * 32 * rollouts
    train = [
        *(*LAB, "train", "+experiment=ppo_cartpole_tensor", f"experiment.device={device}", "logging.terminal=false"),
        *(
            f"environment.num_envs={num_envs}",
            f"training.total_timesteps={steps}",
            "training.checkpoint_frequency=null",
        ),
        *(f"training.eval_frequency={steps // 3}", f"logging.every_steps={num_envs * 32}", "--run-dir"),
    ]
    run([*train, str(whole)])
    stops = interrupt([*train, str(stopped)], [*LAB, "resume", str(stopped)], stopped)
    summary = json.loads((whole / "metrics.json").read_text())
    perf = [json.loads(line) for line in (whole / "perf.jsonl").read_text().splitlines()]
    training = [row for row in perf[3:] if not row.get("perf/share_evaluate")]
    return {
        "device": device,
        "num_envs": num_envs,
        "env_steps": steps,
        "env_steps_per_s": statistics.median(row["perf/env_steps_per_s"] for row in training),
        "shares": {k: statistics.median(r.get(k, 0) for r in training) for k in training[-1] if "share" in k},
        "eval_return": summary["last"]["eval/return"],
        "interruptions": stops,
        "resume_is_exact": fingerprint(whole) == fingerprint(stopped),
        "metrics_are_equal": (whole / "metrics.jsonl").read_bytes() == (stopped / "metrics.jsonl").read_bytes(),
    }


def interrupt(first: list[str], again: list[str], directory: Path) -> int:
    """Run to the end with a SIGTERM whenever a few more rows have been written; return how many."""
    command, stops = first, 0
    while True:
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        goal = count_rows(directory) + 10
        while process.poll() is None and count_rows(directory) < goal:
            time.sleep(0.02)
        if process.poll() is None and stops < 3:
            process.send_signal(signal.SIGTERM)
        code = process.wait()
        if code == 0:
            return stops
        if code != 143:
            raise RuntimeError(f"exit code {code} of {command}")
        command, stops = again, stops + 1


def count_rows(directory: Path) -> int:
    metrics = directory / "metrics.jsonl"
    return metrics.read_text().count("\n") if metrics.exists() else 0


def fingerprint(directory: Path) -> dict[str, str]:
    return json.loads(run([*LAB, "runs", "fingerprint", str(directory), "--json"]).stdout)


def gpu_name() -> str | None:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


if __name__ == "__main__":
    main()
