"""Env steps per second of a robot task: simulation alone, the environment around it, collection and training.

The simulation gets random joint targets around the default pose, the environment random actions, collection the actions
of the untrained policy. Training is `lab train` on the task's experiment: the median rate of the run's own perf rows
after the first third. The shares of a training step's time follow from the rates. On a shared machine read the columns
per CPU second.

Usage: python benchmarks/robots_training.py [--experiment quadruped_flat_ppo] [--num-envs 256 1024] [--device cpu]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, markdown_table, provenance, run

from rl_lab.config.allow_list import AllowList
from rl_lab.config.build import assemble
from rl_lab.config.compose import compose
from rl_lab.config.targets import Targets
from rl_lab.orchestration.collector import Collector
from rl_lab.robots.legged_env import LeggedEnv

LAB = (sys.executable, "-m", "rl_lab.cli")
ROLLOUT = 24  # vector steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiment", default="quadruped_flat_ppo")
    parser.add_argument("--num-envs", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=50, help="vector steps of simulation and environment")
    parser.add_argument("--rollouts", type=int, default=9, help="of training")
    parser.add_argument("--out", type=Path, default=RESULTS / "robots_training.json")
    arguments = parser.parse_args()
    rows = []
    for num_envs in arguments.num_envs:
        row = {"experiment": arguments.experiment, "device": arguments.device, "num_envs": num_envs}
        row |= measure_parts(arguments.experiment, arguments.device, num_envs, arguments.steps)
        row |= measure_training(arguments.experiment, arguments.device, num_envs, arguments.rollouts)
        row |= shares(row)
        rows.append(row)
        print(json.dumps(row), flush=True)
    print(markdown_table(rows))
    arguments.out.write_text(json.dumps({**provenance(), "gpu": gpu_name(), "rows": rows}, indent=1) + "\n")


def measure_parts(experiment: str, device: str, num_envs: int, steps: int) -> dict[str, Any]:
    """Time the simulation with random targets, the environment with random actions, and collection by the policy."""
    options = [f"+experiment={experiment}", f"environment.num_envs={num_envs}", f"experiment.device={device}"]
    parts = assemble(compose(options), Targets(AllowList()))
    env = parts.env
    assert isinstance(env, LeggedEnv)
    collector = Collector(env, 0, nullcontext)
    env_steps = num_envs * ROLLOUT

    def collect(_: int) -> None:
        collector.collect(parts.workflow, ROLLOUT, env_steps=0, should_stop=bool)

    collect(0)
    collection = rate(collect, env_steps, -(-steps // ROLLOUT), env.device)
    actions = [torch.randn(num_envs, len(env.robot.joints), device=env.device) * 0.5 for _ in range(8)]
    environment = rate(lambda i: env.step(actions[i % 8]), num_envs, steps, env.device)
    sim, rest = env.world.sim, env.world.sim.read("ctrl").clone()

    def simulate(index: int) -> None:
        sim.write("ctrl", rest + 0.2 * actions[index % 8])
        sim.step(env.substeps)

    simulation = rate(simulate, num_envs, steps, env.device)
    is_captured = env.is_captured
    assert is_captured or env.device.type != "cuda", "CUDA graphs are off"
    env.close()
    rates = {"simulation": simulation, "environment": environment, "collection": collection}
    row = {f"{name}_per_s": value[0] for name, value in rates.items()}
    return row | {f"{name}_per_cpu_s": value[1] for name, value in rates.items()} | {"is_captured": is_captured}


def rate(step: Callable[[int], Any], size: int, steps: int, device: torch.device) -> tuple[float, float]:
    """Return env steps per second of wall time and of CPU time, where one step takes `size` of them."""
    for index in range(2):
        step(index)
    synchronize(device)
    wall, cpu = time.perf_counter(), time.process_time()
    for index in range(steps):
        step(index)
    synchronize(device)
    count = size * steps
    return count / (time.perf_counter() - wall), count / (time.process_time() - cpu)


def measure_training(experiment: str, device: str, num_envs: int, rollouts: int) -> dict[str, Any]:
    """Train for some rollouts; return the median rate after the first third."""
    size = num_envs * ROLLOUT
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "run"
        run(
            [
                *(*LAB, "train", f"+experiment={experiment}", f"experiment.device={device}", "logging.terminal=false"),
                *(f"environment.num_envs={num_envs}", f"training.total_timesteps={size * rollouts}"),
                *("training.eval_frequency=null", f"logging.every_steps={size}", "--run-dir", str(path)),
            ]
        )
        rows = [json.loads(line) for line in (path / "perf.jsonl").read_text().splitlines()]
    rows = rows[len(rows) // 3 :]
    return {"training_per_s": statistics.median(row["perf/env_steps_per_s"] for row in rows)}


def shares(row: dict[str, Any]) -> dict[str, float]:
    """Return what part of training is simulation, terms of the task, deciding and recording, and learning."""
    names = ("simulation", "environment", "collection", "training")
    times = [0.0, *(row["training_per_s"] / row[f"{name}_per_s"] for name in names)]
    labels = ("share_simulation", "share_terms", "share_acting", "share_learning")
    return {label: times[i + 1] - times[i] for i, label in enumerate(labels)}


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def gpu_name() -> str | None:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


if __name__ == "__main__":
    main()
