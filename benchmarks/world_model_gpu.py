"""Milliseconds, kernels and kernel time of a world-model agent's update on a GPU: eager, compiled and captured.

Every case is a process of its own. Those of `--fresh` run first and alone, each with an empty cache of compiled code,
so that their time to the first update is what a user waits; the others get ready at the same time, and then all are
timed one by one while the rest sleeps. An update includes sampling the batch (16 sequences of 64 steps and the one
before) and writing refreshed states back.

`difference` is the largest relative one, of losses and lengths of gradients, to eager float32: of one update that is
made after others, so that graphs replay, from the first parameters again and with the same batch and noise.

TD-MPC2 learns and plans in walker-walk, a single environment, as published, from batches of 256 short sequences. Beside
`act_ms`, which is one of many decisions that nobody waits for, `decisions_per_s` is how many there are when each brings
its actions to the host, as an environment needs them: the official implementation reports 92 on a 3090.

A fifth field of a case is the number of agents that are trained as one (`experiment.num_seeds`), each with a batch of
its own; `times_one` is then how many times the milliseconds of one agent an update takes.

KERNELS=FOLDER in the environment writes the last update's kernels of every case there, with their microseconds.

    python benchmarks/world_model_gpu.py [--cases dreamer_v3:1m:captured:tf32 ...] [--out results/world_model_gpu.json]

`--device cpu` is for trials of the script: eager and compiled, no kernels.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

STARTED = time.perf_counter()

import torch  # noqa: E402
from harness import RESULTS, markdown_table, provenance  # noqa: E402
from staged import Staged  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402

from rl_lab.config.allow_list import AllowList  # noqa: E402
from rl_lab.config.build import assemble  # noqa: E402
from rl_lab.config.compose import compose  # noqa: E402
from rl_lab.config.targets import Targets  # noqa: E402
from rl_lab.core import HookCall, Phase, Update, seed_everything, tree_map  # noqa: E402
from rl_lab.orchestration.collector import Collector  # noqa: E402

CASES = (
    "dreamer_v3:1m:eager:float32",
    "dreamer_v3:1m:compiled:float32",
    "dreamer_v3:1m:captured:float32",
    "dreamer_v3:1m:captured:tf32",
    "dreamer_v3:1m:captured:bfloat16",
    "dreamer_v3:12m:eager:float32",
    "dreamer_v3:12m:compiled:float32",
    "dreamer_v3:12m:captured:float32",
    "dreamer_v3:12m:captured:tf32",
    "dreamer_v3:12m:captured:bfloat16",
    "dreamer_v3:1m:captured:bfloat16:8",
    "dreamer_v3:12m:captured:bfloat16:8",
    "dreamer_v3_2023:-:captured:tf32",
    "planet:-:captured:tf32",
    "tdmpc2:5m:eager:float32",
    "tdmpc2:5m:compiled:float32",
    "tdmpc2:5m:captured:float32",
    "tdmpc2:5m:captured:tf32",
)
FRESH = ("dreamer_v3:1m:captured:bfloat16", "dreamer_v3:12m:captured:bfloat16")
ALIKE = ("preset", "size", "way", "precision")
PHASE = Phase("train", "online", (HookCall("collect"), HookCall("update_agent")), "steps", 1)
ROWS, ROUNDS = 3_200, 5  # that are collected; of timing
MANY = {"TORCHINDUCTOR_COMPILE_THREADS": "2"}  # of a process that gets ready beside others
PENDULUMS = ("+environment=tensor_pendulum", "environment.num_envs=16")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--cases", nargs="+", default=list(CASES), help="preset:size:way:precision[:agents]")
    parser.add_argument("--fresh", nargs="*", default=list(FRESH), help="cases whose first update is timed")
    parser.add_argument("--seconds", type=float, default=0.5, help="of a round")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds for getting ready")
    parser.add_argument("--out", type=Path, default=RESULTS / "world_model_gpu.json")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        measure(arguments.one, arguments.device, arguments.seconds)
        return
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        ready: list[Staged] = []
        for case in (case for case in arguments.cases if case in arguments.fresh):
            process = Staged(case, command(case, arguments), Path(folder))
            ready += [process] if process.is_ready(time.monotonic() + arguments.patience) else []
        others = [case for case in arguments.cases if case not in arguments.fresh]
        waiting = [Staged(case, command(case, arguments), Path(folder), **MANY) for case in others]
        until = time.monotonic() + arguments.patience
        ready += [process for process in waiting if process.is_ready(until)]
        for process in ready:
            if (row := process.row()) is not None:
                row |= {} if process.name in arguments.fresh else {"first_update_s": None, "ready_s": None}
                rows.append(row)
                print({key: value for key, value in row.items() if key != "losses"}, flush=True)
                write(rows, arguments.out)
    shown = [{key: value for key, value in row.items() if key not in ("losses", "rounds_ms")} for row in rows]
    print(markdown_table(shown))


def command(case: str, arguments: argparse.Namespace) -> list[str]:
    """Return the command of the process of a case."""
    options = ["--device", arguments.device, "--seconds", str(arguments.seconds)]
    return [sys.executable, __file__, "--one", case, *options]


def write(rows: list[dict[str, Any]], path: Path) -> None:
    """Write the rows, each with its distance to the eager one of its kind."""
    for row in rows:
        kind = [other for other in rows if is_exact(other) and is_alike(row, other)]
        if kind:
            pairs = [(row["losses"][name], value) for name, value in kind[0]["losses"].items()]
            row["difference"] = max(abs(mine - theirs) / max(1e-3, abs(theirs)) for mine, theirs in pairs)
        one = [other for other in rows if other["agents"] == 1 and all(row[key] == other[key] for key in ALIKE)]
        if row["agents"] > 1 and one:
            row["times_one"] = round(row["update_ms"] / one[0]["update_ms"], 2)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    path.write_text(json.dumps({**provenance(), "gpu": gpu, "rows": rows}, indent=1) + "\n")


def is_exact(row: dict[str, Any]) -> bool:
    """Return whether others are compared with this row."""
    return (row["way"], row["precision"]) == ("eager", "float32")


def is_alike(row: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two rows are of the same losses."""
    return all(row[key] == other[key] for key in ("preset", "size", "agents"))


def measure(case: str, device: str, seconds: float) -> None:
    """Get one case ready, say so, wait for a line, and print its row."""
    preset, size, way, precision, *agents = case.split(":")
    num_seeds = int(agents[0]) if agents else 1
    agent = Agent(preset, size, way, precision, device, num_seeds)
    agent.update()
    wait()
    first_s = time.perf_counter() - STARTED
    for _ in range(5):
        agent.update()
    agent.decide()
    losses = agent.compared()
    ready_s = time.perf_counter() - STARTED
    print("ready", flush=True)
    sys.stdin.readline()
    rounds = [milliseconds(agent.update, seconds) for _ in range(ROUNDS)]
    update_ms = statistics.median(rounds)
    kernels, kernel_ms = kernel_time(agent.update, case)
    row = {
        "preset": preset,
        "size": size,
        "way": way,
        "precision": precision,
        "agents": num_seeds,
        "update_ms": round(update_ms, 2),
        "kernels": kernels,
        "kernel_ms": round(kernel_ms, 2),
        "kernel_share": round(kernel_ms / update_ms, 2),
        "first_update_s": round(first_s, 1),
        "ready_s": round(ready_s, 1),
        "act_ms": round(milliseconds(agent.act, seconds / 4), 3),
        "envs": agent.num_envs,
        "decisions_per_s": round(1e3 / milliseconds(agent.decide, seconds / 4), 1),
        "parameters": sum(parameter.numel() for parameter in agent.workflow.parameters()),
        "rounds_ms": [round(value, 2) for value in rounds],
        "losses": losses,
    }
    print(json.dumps(row))


class Agent:
    """A workflow with a filled buffer."""

    def __init__(self, preset: str, size: str, way: str, precision: str, device: str, num_seeds: int) -> None:
        options = [
            *scene(preset, size),
            "experiment.name=benchmark",
            "training.total_timesteps=1_000_000",
            f"experiment.device={device}",
            f"experiment.compile={way}",
            f"experiment.precision={precision}",
            f"experiment.num_seeds={num_seeds}",
            "experiment.deterministic=false",
            f"++algorithm.random_steps={ROWS}",  # no plan for what only fills the buffer
            "buffers.replay.capacity=20_000",
        ]
        parts = assemble(compose(options), Targets(AllowList()))
        self.workflow, self.buffer = parts.workflow, parts.context.buffers["replay"]
        collector = Collector(parts.env, 0, lambda name: nullcontext(), num_seeds=num_seeds)
        steps = ROWS * num_seeds // parts.env.num_envs
        found = collector.collect(self.workflow, steps, env_steps=0, should_stop=lambda: False)
        self.buffer.add(found.trajectory)
        self.num_envs = parts.env.num_envs
        self.obs, self.is_first = parts.env.reset(1), torch.zeros(self.num_envs, device=device).bool()
        self.carry = self.workflow.initial_carry(self.num_envs)
        hook = "update_agent" if "update_agent" in self.workflow.hooks() else "update_world_model"
        self._hook = getattr(self.workflow, hook)
        optimizers = parts.context.optimizers
        states = [state.values() for name in optimizers for state in optimizers[name].state.values()]
        self._held = [*self.workflow.state_dict().values(), *(value for state in states for value in state)]
        self._first = [tensor.clone() for tensor in self._held]
        seed_everything(1)

    def update(self) -> dict[str, Any]:
        """Sample, update and write back; return the metrics."""
        update = self._hook(self.buffer.sample(), phase=PHASE)
        if not isinstance(update, Update):
            return update
        self.buffer.write_back(update.write_back)
        return update.metrics

    def compared(self) -> dict[str, float]:
        """Return losses and lengths of gradients of an update from the first parameters, on made-up numbers."""
        for held, first in zip(self._held, self._first, strict=True):
            held.copy_(first)
        batch = tree_map(made_up, self.buffer.sample())
        torch.manual_seed(1)
        update = self._hook(batch, phase=PHASE)
        metrics = update.metrics if isinstance(update, Update) else update
        return {name: float(value) for name, value in metrics.items() if name.endswith(("loss", "norm"))}

    @torch.inference_mode()
    def act(self) -> None:
        """Decide once for all environments."""
        self._act()

    @torch.inference_mode()
    def decide(self) -> None:
        """Decide once for all environments and wait for the actions."""
        self._act().cpu()

    def _act(self) -> torch.Tensor:
        return self.workflow.act(self.obs, self.carry, is_first=self.is_first, explore=True, step=10**9)[0]


def scene(preset: str, size: str) -> list[str]:
    """Return the options of an agent and its environment."""
    if preset == "tdmpc2":
        return ["+experiment=tdmpc2_dmc_walker_walk", f"+model_size=tdmpc2_{size}"]
    return [f"+preset={preset}", *PENDULUMS, *([] if size == "-" else [f"+model_size={size}"])]


def made_up(leaf: torch.Tensor) -> torch.Tensor:
    """Return numbers in [-1, 1] that owe nothing to what was collected; flags are false."""
    if not leaf.is_floating_point():
        return torch.zeros_like(leaf)
    return torch.arange(leaf.numel(), device=leaf.device, dtype=leaf.dtype).mul(0.37).sin().view(leaf.shape)


def milliseconds(call: Any, seconds: float) -> float:
    """Return the mean time of calls that are made for about so long."""
    for _ in range(5):
        call()
    wait()
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        call()
        count += 1
        if count % 20 == 0:  # calls do not wait; without this the loop would run far ahead of the device
            wait()
    wait()
    return 1e3 * (time.perf_counter() - start) / count


def wait() -> None:
    """Return when the GPU, if there is one, has done all it was asked for."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def kernel_time(call: Any, case: str) -> tuple[int, float]:
    """Return the kernels of one call and the milliseconds that they ran."""
    if not torch.cuda.is_available():
        return 0, 0.0
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        call()
        wait()
    kernels = [event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    if folder := os.environ.get("KERNELS"):  # where the time goes
        Path(folder, f"{case}.txt").write_text("\n".join(f"{event.device_time:.1f} {event.name}" for event in kernels))
    return len(kernels), sum(event.device_time for event in kernels) / 1e3


if __name__ == "__main__":
    main()
