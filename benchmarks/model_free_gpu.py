"""Updates per second of SAC, TD3 and DQN on a GPU: eager, compiled and captured, and whether they agree.

Every way gets the same batches from a full replay buffer on the device and the same sizes (batch 256, networks 256x256,
HalfCheetah's dimensions; DQN: batch 128, 120x84, CartPole's). Sampling is part of an update. Rounds are interleaved.
LeanRL's scripts, where a clone is given, get rows of their own (`workers/leanrl_training.py`): of updates with their
sampling as well, and of the script's whole loop with one environment; where one does not run, of the reason.

    python benchmarks/model_free_gpu.py [--device cuda] [--seconds 4] [--peer leanrl PATH] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, provenance

from rl_lab.buffers.replay import ReplayBuffer
from rl_lab.config.allow_list import AllowList
from rl_lab.config.build import assemble
from rl_lab.config.compose import compose
from rl_lab.config.targets import Targets
from rl_lab.core import Box, EnvSpec, HookCall, Phase, flat_dim, seed_everything

WAYS = ("eager", "compiled", "captured")
PEER = Path(__file__).parent / "workers" / "leanrl_training.py"
PEER_TIMEOUT_S = 150.0  # of one script; a compilation takes about 60
ROUNDS = 3
STEPS = 100_000  # env steps in the buffer
TASKS = {
    "sac_halfcheetah": [],
    "td3_halfcheetah": [],
    "dqn_cartpole": [
        "components.critic={hidden_dims: [120, 84], layer_norm: false}",
        "algorithm.learning_rate_schedule=constant",
        "buffers.replay.batch_size=128",
    ],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each window")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--peer", nargs=2, metavar=("leanrl", "PATH"), help="a clone of github.com/pytorch-labs/LeanRL")
    parser.add_argument("--out", type=Path, default=RESULTS / "model_free_gpu.json")
    arguments = parser.parse_args()
    if arguments.peer and arguments.peer[0] != "leanrl":
        parser.error(f"unknown peer {arguments.peer[0]!r} (choices: leanrl)")
    rows = []
    for task in arguments.tasks:
        rows += measure(task, arguments)
        rows += measure_peer(task, arguments, rows) if arguments.peer else []
        result = {**provenance(), "gpu": gpu_name(arguments.device), "rows": rows}
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


def gpu_name(device: str) -> str:
    return torch.cuda.get_device_name() if device.startswith("cuda") else "none"


def measure(task: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return one row per way: the updates per second of every round, and the parameters' distance to eager ones."""
    updates: dict[str, Callable[[], Any]] = {}
    reached: dict[str, torch.Tensor] = {}
    first_s: dict[str, float] = {}
    for way in arguments.ways:
        try:
            updates[way], reached[way], first_s[way] = prepare(task, way, arguments.device)
        except RuntimeError as error:  # torch's compiler may lack something on this machine
            print(f"{task} {way}: {str(error).splitlines()[0]}", flush=True)
    speeds: dict[str, list[float]] = {way: [] for way in updates}
    for _ in range(ROUNDS):
        for way, update in updates.items():
            speeds[way].append(rate(update, arguments.seconds, arguments.device))
    rows = []
    for way, values in speeds.items():
        row = {
            "task": task,
            "way": way,
            "updates_per_s": [round(value, 1) for value in values],
            "median": round(statistics.median(values), 1),
            "times_eager": round(statistics.median(a / b for a, b in zip(values, speeds["eager"], strict=True)), 2),
            "first_calls_s": round(first_s[way], 2),
            "is_bit_equal_to_eager": torch.equal(reached[way], reached["eager"]),
            "largest_difference_to_eager": float((reached[way] - reached["eager"]).abs().max()),
        }
        print(json.dumps(row), flush=True)
        rows.append(row)
    return rows


def measure_peer(task: str, arguments: argparse.Namespace, ours: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per way of the same algorithm's script, each from a process of its own."""
    rows = []
    for way in arguments.ways:
        algorithm, seconds = task.partition("_")[0], str(arguments.seconds)
        command = [sys.executable, str(PEER), arguments.peer[1], algorithm, way, "--seconds", seconds]
        command += ["--device", arguments.device]
        row = {"library": "leanrl", "way": way, "task": task} | run_peer(command)
        mine = [each["median"] for each in ours if (each["task"], each["way"], "library" in each) == (task, way, False)]
        if mine and "updates_per_s" in row:
            row["ours_times_this"] = round(mine[0] / row["updates_per_s"], 2)
        print(json.dumps(row), flush=True)
        rows.append(row)
    return rows


def run_peer(command: list[str]) -> dict[str, Any]:
    """Return the row that a worker prints, or why it prints none."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PEER_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return {"does_not_run": f"not done within {PEER_TIMEOUT_S:.0f} s"}
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
        return {"does_not_run": lines[-1][:300]}
    row: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return row


def prepare(task: str, way: str, device: str, *further: str) -> tuple[Callable[[], Any], torch.Tensor, float]:
    """Return an update to call, the parameters after ten of them, and how long the first four took.

    `further` overrides the task's settings.
    """
    overrides = [
        f"+experiment={task}",
        f"experiment.device={device}",
        f"experiment.compile={way}",
        "experiment.deterministic=false",
        "environment.num_envs=1",
        *TASKS[task],
        *further,
    ]
    parts = assemble(compose(overrides), Targets(AllowList()))
    buffer = parts.context.buffers["replay"]
    assert isinstance(buffer, ReplayBuffer)
    seed_everything(0)
    fill(buffer, parts.context.spec, parts.context.device)
    phase = Phase("train", "online", (HookCall("collect"), HookCall("update_agent")), "steps", 1)
    hook = parts.workflow.update_agent

    def update() -> Any:
        return hook(buffer.sample(), phase=phase)

    started = time.perf_counter()
    for count in range(10):
        update()
        if count == 3:  # a capture happens at the fourth
            wait(device)
            first = time.perf_counter() - started
    return update, torch.cat([p.detach().flatten() for p in parts.workflow.parameters()]).clone(), first


def fill(buffer: ReplayBuffer, spec: EnvSpec, device: torch.device) -> None:
    """Add made-up transitions."""
    dim = flat_dim(spec.observation)
    for _ in range(STEPS // 1000):
        shape = (1000, 1)
        if isinstance(spec.action, Box):
            actions = torch.rand(*shape, flat_dim(spec.action), device=device) * 2 - 1
        else:
            actions = torch.randint(flat_dim(spec.action), shape, device=device)
        never = torch.zeros(*shape, dtype=torch.bool, device=device)
        buffer.add(
            {
                "observations": torch.randn(*shape, dim, device=device),
                "final_observations": torch.randn(*shape, dim, device=device),
                "actions": actions,
                "rewards": torch.randn(*shape, device=device),
                "terminated": torch.rand(*shape, device=device) < 0.01,
                "truncated": never,
                "is_first": never,
            }
        )


def rate(update: Callable[[], Any], seconds: float, device: str) -> float:
    """Return updates per second over a window."""
    wait(device)
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        for _ in range(20):
            update()
        count += 20
        wait(device)
    return count / (time.perf_counter() - started)


def wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
