"""Diffusion and flow policies on PushT beside published scores, and how long a decision takes on one core.

Trains by `lab train`, evaluates by `lab evaluate` on episodes that no run has seen, and writes every seed to
`results/diffusion_pusht.csv` and `.json`. The score is the mean over episodes of the most of the goal that was covered
(of the 95 % that count as success and end the episode), as published; success is the share of episodes that ended so.

    python benchmarks/diffusion_pusht.py                                           # a GPU: 30,000 updates each
    python benchmarks/diffusion_pusht.py --heads flow_pusht --minutes 6 --precision bfloat16
    python benchmarks/diffusion_pusht.py --heads diffusion_pusht_small --updates 20000 --precision float32
    CLONES="--updates 20000 --precision float32 --parallel 2 --name bc_pusht"
    python benchmarks/diffusion_pusht.py --heads bc_pusht --seeds 1 2 3 $CLONES
    python benchmarks/diffusion_pusht.py --heads bc_pusht_single bc_pusht_whole bc_pusht_act bc_pusht_young $CLONES
    python benchmarks/diffusion_pusht.py --latency                                 # results/diffusion_latency.csv

`--minutes` first measures the speed by a short run of the same config, and trains as many updates as fit: the learning
rate falls to 0 at the last one.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import product
from pathlib import Path
from typing import Any

from harness import LAB, ROOT, markdown_table, read_rows, run, run_json, write_results

RUNS = ROOT / "experiments" / "benchmarks"
EVALUATION_SEED = 1_000_003
HEADS = ("diffusion_pusht", "flow_pusht", "diffusion_transformer_pusht")
PUBLISHED = {  # most of the goal covered: of the best checkpoint / of the last ten
    "diffusion_pusht": "0.95 / 0.91 (Chi et al., 2023: U-Net on vectors, 90 demonstrations)",
    "diffusion_transformer_pusht": "0.95 / 0.79 (Chi et al., 2023: transformer on vectors, 90 demonstrations)",
    "diffusion_pusht_pixels": "0.957 and 64.2 % success (the authors' code), 0.959 and 63.8 % (lerobot), 500 episodes",
}
VARIANTS = {  # experiment and overrides: the same network, whose chunks are done in another way
    "bc_pusht_single": ("bc_pusht", "algorithm.action_horizon=1"),
    "bc_pusht_whole": ("bc_pusht", "algorithm.action_horizon=16"),
    "bc_pusht_act": ("bc_pusht", "algorithm.action_horizon=1", "algorithm.ensemble_decay=0.01"),
    "bc_pusht_young": ("bc_pusht", "algorithm.action_horizon=1", "algorithm.ensemble_decay=-0.3"),
}
PROBE_UPDATES = 600
LATENCIES = {  # experiment and overrides: what a decision takes
    "U-Net 256-512-1024, DDIM 16": ("diffusion_pusht", "sampler=ddim", "num_sampling_steps=16"),
    "U-Net 256-512-1024, flow 10": ("flow_pusht",),
    "U-Net 32-64-128, DDIM 16": ("diffusion_pusht_small",),
    "transformer 8 x 256, DDIM 16": ("diffusion_transformer_pusht", "sampler=ddim", "num_sampling_steps=16"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", nargs="+", default=list(HEADS), help="experiments, or variants of them")
    parser.add_argument("--parallel", type=int, default=1, help="runs at a time, of a CPU's cores")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--updates", type=int, default=30_000)
    parser.add_argument("--minutes", type=float, help="of training; instead of --updates")
    parser.add_argument("--episodes", type=int, default=200, help="of the evaluation")
    parser.add_argument("--precision", default="bfloat16", help="float32, tf32 or bfloat16")
    parser.add_argument("--evaluations", type=int, default=1, help="during training, the last at its end")
    parser.add_argument("--override", nargs="*", default=[], help="further options of lab train")
    parser.add_argument("--latency", action="store_true", help="measure decisions on one core of this machine instead")
    parser.add_argument("--name", help="of the results (diffusion_pusht, diffusion_latency)")
    arguments = parser.parse_args()
    if arguments.latency:
        latency(arguments.name or "diffusion_latency")
    else:
        scores(arguments, arguments.name or "diffusion_pusht")


def scores(arguments: argparse.Namespace, name: str) -> None:
    """Train and evaluate every head with every seed; rows of others that were measured before stay."""
    jobs = list(product(arguments.heads, arguments.seeds))
    with ThreadPoolExecutor(arguments.parallel) as pool:
        for future in as_completed([pool.submit(measure, head, seed, arguments) for head, seed in jobs]):
            row = future.result()
            before = read_rows(ROOT / "benchmarks" / "results" / f"{name}.csv")
            same = {"experiment": row["experiment"], "seed": str(row["seed"])}
            kept = [other for other in before if {key: other[key] for key in same} != same]
            write_results(name, [*kept, row], episodes=arguments.episodes)
            print(markdown_table([*kept, row]), flush=True)


def measure(head: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the row of one run."""
    updates = arguments.updates
    if arguments.minutes:
        _, speed = train(head, seed, PROBE_UPDATES, arguments, RUNS / f"{head}_probe", evaluates=False)
        updates = int(60 * arguments.minutes * speed) // 1000 * 1000
    directory = RUNS / f"{head}_s{seed}"
    wall_s, speed = train(head, seed, updates, arguments, directory, evaluates=True)
    command = [*LAB, "evaluate", str(directory), "--episodes", str(arguments.episodes), "--seed", str(EVALUATION_SEED)]
    started = time.perf_counter()
    found = run_json([*command, "--json"])
    return {
        "experiment": head,
        "seed": seed,
        "updates": updates,
        "max_overlap": round(float(found["info/episode.max_reward"]), 4),
        "success": round(float(found["info/is_success"]), 4),
        "published": PUBLISHED.get(head, "none"),
        "precision": arguments.precision,
        "train_s": round(wall_s),
        "updates_per_s": round(speed, 1),
        "evaluate_s": round(time.perf_counter() - started),
    }


def train(
    head: str, seed: int, updates: int, arguments: argparse.Namespace, directory: Path, *, evaluates: bool
) -> tuple[float, float]:
    """Train anew; return the seconds it took and the updates per second of its later half."""
    shutil.rmtree(directory, ignore_errors=True)
    every = max(1, updates // max(1, arguments.evaluations))
    hooks = f"[update_policy, {{evaluate: {{every_updates: {every}}}}}]" if evaluates else "[update_policy]"
    experiment, *options = VARIANTS.get(head, (head,))
    command = [*LAB, "train", f"+experiment={experiment}", f"experiment.seed={seed}", *options]
    command += ["--run-dir", str(directory)]
    command += [f"experiment.precision={arguments.precision}", f"training.phases.0.duration_updates={updates}"]
    command += [f"training.phases.0.workflow_hooks={hooks}", f"training.checkpoint_updates={updates}"]
    command += [f"logging.every_updates={max(1, updates // 30)}", *arguments.override]
    done = run(command)
    rows = [json.loads(line) for line in (directory / "perf.jsonl").read_text().splitlines()]
    speeds = [row["perf/updates_per_s"] for row in rows if row.get("perf/share_update", 0.0) > 0.5]
    later = sorted(speeds[len(speeds) // 2 :])
    return done.wall_s, later[len(later) // 2]


def latency(name: str) -> None:
    """Write what one decision takes on one core, and what that is per step of the environment."""
    import torch

    from rl_lab.config.allow_list import AllowList
    from rl_lab.config.build import assemble
    from rl_lab.config.compose import compose
    from rl_lab.config.targets import Targets

    torch.set_num_threads(1)
    rows = []
    for label, (head, *options) in LATENCIES.items():
        overrides = [f"components.generator.{option}" for option in options]
        parts = assemble(
            compose([f"+experiment={head}", *overrides, "experiment.device=cpu", "experiment.compile=eager"]),
            Targets(AllowList()),
        )
        workflow, obs = parts.workflow, parts.env.reset(0)
        obs = {key: value[:1] for key, value in obs.items()}
        first, times, spent = torch.ones(1, dtype=torch.bool), [], []
        with torch.inference_mode():
            for _ in range(23):
                started, began = time.perf_counter(), time.thread_time()
                workflow.act(obs, workflow.initial_carry(1), is_first=first, explore=False, step=0)
                times.append(1e3 * (time.perf_counter() - started))
                spent.append(1e3 * (time.thread_time() - began))
        parts.env.close()
        times, spent = sorted(times[3:]), sorted(spent[3:])
        parameters = sum(p.numel() for p in workflow.policy.parameters())
        rows.append(
            {
                "policy": label,
                "parameters": parameters,
                "plan_ms": round(times[len(times) // 2], 1),
                "plan_cpu_ms": round(spent[len(spent) // 2], 1),
                "cpu_ms_per_env_step": round(spent[len(spent) // 2] / workflow.action_horizon, 1),
                "env_step_ms": 100,
            }
        )
    note = "one core, one environment; a plan is made every 8 env steps; cpu: without the time that others had the core"
    write_results(name, rows, note=note)
    print(markdown_table(rows))


if __name__ == "__main__":
    main()
