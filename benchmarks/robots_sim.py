"""Simulation alone: env steps/s of the robots' physics, on a GPU by number of worlds and on a CPU by threads.

An env step is 4 substeps of 5 ms with random targets around the stance, after which positions, velocities and sensors
are current. On a GPU it is one CUDA graph, which the script asserts.

Usage: python benchmarks/robots_sim.py [--backend warp|cpu] [--envs 1024 4096 8192 16384] [--robots quadruped g1]
           [--terrain plane field boxes] [--cones pyramidal elliptic] [--threads 1 2] [--steps 100]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, provenance

from rl_lab.robots.models.bipeds import g1, pm01, sa01
from rl_lab.robots.models.quadruped import quadruped
from rl_lab.robots.models.rolling import rotunbot
from rl_lab.robots.models.scene import Physics, compile_scene
from rl_lab.robots.sim import BatchSim, make_sim
from rl_lab.robots.terrain.terrain import Terrain

ROBOTS = {"quadruped": quadruped, "g1": g1, "pm01": pm01, "sa01": sa01, "rotunbot": rotunbot}
CONES = {"pyramidal": Physics(), "elliptic": Physics(cone="elliptic", impratio=10.0)}
SUBSTEPS = 4
RANDOMIZED = ("geom_friction", "body_mass")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("warp", "cpu"), default="warp" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--envs", type=int, nargs="+", default=[1024, 4096, 8192, 16384])
    parser.add_argument("--robots", nargs="+", choices=ROBOTS, default=["quadruped"])
    parser.add_argument("--terrain", nargs="+", choices=("plane", "field", "boxes"), default=["plane"])
    parser.add_argument("--cones", nargs="+", choices=CONES, default=["pyramidal"])
    parser.add_argument("--threads", type=int, nargs="+", default=[0], help="of the cpu backend; 0 is every core")
    parser.add_argument("--deterministic", type=int, nargs="+", choices=(0, 1), default=[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out", type=Path, default=RESULTS / "robots_sim.json")
    args = parser.parse_args()
    rows = []
    for robot in args.robots:
        for ground in args.terrain:
            terrain = None if ground == "plane" else Terrain(num_levels=6, num_columns=10, shape=ground)
            for cone in args.cones:
                model = compile_scene(ROBOTS[robot](), terrain, CONES[cone])
                for envs in args.envs:
                    for switch in args.threads if args.backend == "cpu" else args.deterministic:
                        row = {"robot": robot, "terrain": ground, "cone": cone, "envs": envs}
                        rows.append(row | measure(model, terrain, envs, switch, args))
                        print(json.dumps(rows[-1]), flush=True)
    gpu = torch.cuda.get_device_name() if args.backend == "warp" and torch.cuda.is_available() else "none"
    args.out.write_text(json.dumps({**provenance(), "gpu": gpu, "rows": rows}, indent=1) + "\n")


def measure(model: Any, terrain: Terrain | None, envs: int, switch: int, args: argparse.Namespace) -> dict[str, Any]:
    """Return the rate of one simulation: `switch` is its threads on a CPU, its determinism on a GPU."""
    start = time.perf_counter()
    device = "cuda" if args.backend == "warp" and torch.cuda.is_available() else "cpu"
    choice = {"num_threads": switch} if args.backend == "cpu" else {"deterministic": bool(switch)}
    sim = make_sim(model, envs, backend=args.backend, device=device, randomized=RANDOMIZED, **choice)
    if device == "cuda":
        assert sim.uses_graphs, "CUDA graphs are off"
    randomize(sim)
    if terrain is not None:
        qpos = sim.read("qpos").clone()
        origins = terrain.origins.flatten(0, 1).to(device)
        qpos[:, :3] += origins[torch.arange(envs, device=device) % len(origins)]
        sim.write("qpos", qpos)
    targets = stance_targets(sim)
    advance(sim, targets, 10)
    ready = time.perf_counter() - start
    begin, work = time.perf_counter(), time.process_time()
    advance(sim, targets, args.steps)
    seconds, work = time.perf_counter() - begin, time.process_time() - work
    reset_s = resets(sim, args.steps)
    sim.check()
    return {
        "backend": args.backend,
        "threads" if args.backend == "cpu" else "deterministic": switch,
        "env_steps_per_s": round(envs * args.steps / seconds),
        "env_steps_per_cpu_s": round(envs * args.steps / work),  # what an idle core gives, on a CPU
        "ms_per_step": round(1e3 * seconds / args.steps, 3),
        "ms_per_reset_and_forward": round(1e3 * reset_s, 3),
        "ready_s": round(ready, 1),
        "gpu_gb": round(torch.cuda.max_memory_allocated() / 2**30, 2) if device == "cuda" else 0.0,
    }


def randomize(sim: BatchSim) -> None:
    """Give every world its own friction and mass."""
    generator = torch.Generator().manual_seed(0)
    scale = (0.8 + 0.4 * torch.rand(sim.num_envs, 1, generator=generator)).to(sim.device)
    sim.write_model("body_mass", sim.read_model("body_mass") * scale)
    sim.write_model("geom_friction", sim.read_model("geom_friction") * scale[:, None])
    sim.recompute()
    sim.forward()


def stance_targets(sim: BatchSim) -> torch.Tensor:
    """Return targets [16, N, U] around the default pose."""
    home = torch.as_tensor(sim.model.key_ctrl[0], dtype=torch.float32)
    generator = torch.Generator().manual_seed(1)
    return (home + 0.4 * torch.rand(16, sim.num_envs, sim.model.nu, generator=generator) - 0.2).to(sim.device)


def advance(sim: BatchSim, targets: torch.Tensor, steps: int) -> None:
    """Step with targets that change, and wait for the end."""
    for i in range(steps):
        sim.write("ctrl", targets[i % len(targets)])
        sim.step(SUBSTEPS)
        sim.read("sensordata")
    if sim.device.type == "cuda":
        torch.cuda.synchronize()


def resets(sim: BatchSim, steps: int) -> float:
    """Return the seconds that resetting 1 % of the worlds and a forward take."""
    mask = torch.arange(sim.num_envs, device=sim.device) % 100 == 0
    start = time.perf_counter()
    for _ in range(steps):
        sim.reset(mask)
        sim.forward()
    if sim.device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps


if __name__ == "__main__":
    main()
