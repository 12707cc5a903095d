"""Times the official TD-MPC2 (https://github.com/nicklashansen/tdmpc2), size 5, of a clone whose path is given.

It says "ready" when all is compiled, waits for a line and prints one of JSON: milliseconds of `_update`, of a batch
that lies on the device, and decisions per second of `act`, which plans and brings the action to the host. How far it
is goes to stderr. Its code wants `cuda:0`; for a trial on a CPU a changed copy of its sources is used. Needs torch and
tensordict, nothing else of its requirements.

    echo go | python benchmarks/workers/tdmpc2_official.py '{"path": "tdmpc2", "device": "cuda", "precision": "tf32",
        "is_compiled": true, "observation": 24, "action": 6, "episode_steps": 500, "seconds": 1.0}'
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

STARTED = time.perf_counter()
os.environ["TORCHDYNAMO_INLINE_INBUILT_NN_MODULES"] = "1"  # as its train.py does

import torch  # noqa: E402
import yaml  # noqa: E402

SIZE, ROUNDS = 5, 5  # millions of weights; of timing
STATE = "state"  # the key of its observations


def main() -> None:
    task = json.loads(sys.argv[1])
    root = Path(task["path"]).resolve()
    sources = root / "tdmpc2" if (root / "tdmpc2").is_dir() else root
    is_cuda = task["device"] == "cuda"
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high" if task["precision"] == "tf32" else "highest")
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, str(sources if is_cuda else on_cpu(sources, Path(folder))))
        from common import MODEL_SIZE
        from tdmpc2 import TDMPC2

        with redirect_stdout(sys.stderr):  # it says something about itself
            agent = TDMPC2(options(sources, MODEL_SIZE[SIZE], task))
        measured = measure(agent, task)
        print(json.dumps({"commit": commit(root), **measured}))


def options(sources: Path, sizes: dict[str, int], task: dict[str, Any]) -> Any:
    """Return its config for one task, as its parser makes it."""
    read = yaml.safe_load((sources / "config.yaml").read_text())
    values = {key: number(value) for key, value in read.items() if key not in ("defaults", "hydra")} | sizes
    values |= {
        "model_size": SIZE,
        "compile": task["is_compiled"],
        "multitask": False,
        "task_dim": 0,
        "obs_shape": {STATE: (task["observation"],)},
        "action_dim": task["action"],
        "episode_length": task["episode_steps"],
        "bin_size": (values["vmax"] - values["vmin"]) / (values["num_bins"] - 1),
    }
    return dataclasses.make_dataclass("Config", list(values))(**values)  # what its compiler does not stumble over


def number(value: Any) -> Any:
    """Return a number where YAML 1.1 reads `3e-4` as text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def on_cpu(sources: Path, folder: Path) -> Path:
    """Return a copy of its sources that runs without a GPU."""
    for path in sources.rglob("*.py"):
        text = path.read_text().replace("cuda:0", "cpu").replace("capturable=True", "capturable=False")
        target = folder / path.relative_to(sources)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return folder


def measure(agent: Any, task: dict[str, Any]) -> dict[str, Any]:
    """Return times of updates and decisions."""
    cfg, device = agent.cfg, agent.device
    lead = (cfg.horizon, cfg.batch_size)
    batch = (
        torch.randn(cfg.horizon + 1, cfg.batch_size, task["observation"], device=device),
        torch.rand(*lead, task["action"], device=device) * 2.0 - 1.0,
        torch.rand(*lead, 1, device=device),
        torch.zeros(*lead, 1, device=device),
    )
    seen = torch.randn(task["observation"])

    def update() -> None:
        torch.compiler.cudagraph_mark_step_begin()
        agent._update(*batch)

    def decide() -> None:
        torch.compiler.cudagraph_mark_step_begin()
        agent.act(seen)

    calls = {"first decision": lambda: agent.act(seen, t0=True), "update": update, "later decision": decide}
    took: dict[str, float] = {}
    for name in ("update", "first decision", "later decision", *calls):  # compiled again where a flag has changed
        call, started = calls[name], time.perf_counter()
        call()
        wait()
        took[name] = took.get(name, 0.0) + time.perf_counter() - started
        print(f"{name}: {took[name]:.1f} s", file=sys.stderr, flush=True)
    ready_s = time.perf_counter() - STARTED
    print("ready", flush=True)
    sys.stdin.readline()
    updates = [milliseconds(update, task["seconds"]) for _ in range(ROUNDS)]
    decisions = [milliseconds(decide, task["seconds"] / 2) for _ in range(ROUNDS)]
    decision_ms = statistics.median(decisions)
    return {
        "update_ms": statistics.median(updates),
        "decision_ms": decision_ms,
        "decisions_per_s": 1e3 / decision_ms,
        "ready_s": ready_s,
        "first_calls_s": took,
        "rounds_ms": updates,
        "decision_rounds_ms": decisions,
        "parameters": agent.model.total_params,
        "torch": torch.__version__,
    }


def milliseconds(call: Any, seconds: float) -> float:
    """Return the mean time of calls that are made for about so long."""
    for _ in range(5):
        call()
    wait()
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        call()
        count += 1
        if count % 20 == 0:
            wait()
    wait()
    return 1e3 * (time.perf_counter() - start) / count


def wait() -> None:
    """Return when the GPU, if there is one, has done all it was asked for."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def commit(root: Path) -> str | None:
    """Return the clone's commit, or None where only its files are."""
    command = ["git", "-C", str(root), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None if (root / ".git").exists() else None


if __name__ == "__main__":
    main()
