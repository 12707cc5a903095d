"""Env steps per second of a robot task: simulation alone, the environment around it, and training, with their shares.

The simulation gets random joint targets around the default pose. Training is `lab train` on the task's experiment; its
rates are those of the run's own perf rows after the first third. On a shared machine read the columns per CPU second.

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
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, markdown_table, provenance, run

from rl_lab.config.allow_list import AllowList
from rl_lab.config.compose import compose, resolve
from rl_lab.config.targets import Targets
from rl_lab.config.validate import validate
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
        row |= measure_environment(arguments.experiment, arguments.device, num_envs, arguments.steps)
        row |= measure_training(arguments.experiment, arguments.device, num_envs, arguments.rollouts)
        row["training_of_simulation"] = row["training_per_s"] / row["simulation_per_s"]
        rows.append(row)
        print(json.dumps(row), flush=True)
    print(markdown_table(rows))
    arguments.out.write_text(json.dumps({**provenance(), "gpu": gpu_name(), "rows": rows}, indent=1) + "\n")


def measure_environment(experiment: str, device: str, num_envs: int, steps: int) -> dict[str, Any]:
    """Time the simulation with random targets, and the environment with random actions."""
    targets = Targets(AllowList())
    config = compose([f"+experiment={experiment}", f"environment.num_envs={num_envs}"])
    env: LeggedEnv = targets.instantiate(
        "environment", validate(resolve(config), targets)["environment"], device=torch.device(device)
    )
    env.reset(0)
    width = len(env.robot.joints)
    actions = [torch.randn(num_envs, width, device=env.device) * 0.5 for _ in range(8)]
    environment = rate(lambda i: env.step(actions[i % 8]), num_envs, steps, env.device)
    sim, rest = env.world.sim, env.world.sim.read("ctrl").clone()

    def simulate(index: int) -> None:
        sim.write("ctrl", rest + 0.2 * actions[index % 8])
        sim.step(env.substeps)

    simulation = rate(simulate, num_envs, steps, env.device)
    env.close()
    return {
        "simulation_per_s": simulation[0],
        "simulation_per_cpu_s": simulation[1],
        "env_step_per_s": environment[0],
        "env_step_per_cpu_s": environment[1],
    }


def rate(step: Callable[[int], Any], num_envs: int, steps: int, device: torch.device) -> tuple[float, float]:
    """Return env steps per second of wall time and of CPU time, after a few steps to warm up."""
    for index in range(5):
        step(index)
    synchronize(device)
    wall, cpu = time.perf_counter(), time.process_time()
    for index in range(steps):
        step(index)
    synchronize(device)
    count = num_envs * steps
    return count / (time.perf_counter() - wall), count / (time.process_time() - cpu)


def measure_training(experiment: str, device: str, num_envs: int, rollouts: int) -> dict[str, Any]:
    """Train for some rollouts; return the median rates and shares after the first third."""
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
    middle = {name: statistics.median(row[name] for row in rows) for name in rows[0] if name.startswith("perf/")}
    shares = {f"share_{name}": middle[f"perf/share_{name}"] for name in ("env", "act", "update")}
    collecting = shares["share_env"] + shares["share_act"]
    total = middle["perf/env_steps_per_s"]
    return {"collection_per_s": total / collecting, "training_per_s": total, **shares}


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def gpu_name() -> str | None:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


if __name__ == "__main__":
    main()
