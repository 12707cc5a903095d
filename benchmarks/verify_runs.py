"""`lab runs verify` on 25 tiny runs of all workflows, which must come out again, and on runs that were tampered with.

Those are copies of the first one: another seed in its config, a changed line in its code, one bit of a parameter in a
checkpoint (with new checksums, as if the run had computed it). With `--resumed`: runs that went on halfway from a
checkpoint with one bit of a parameter changed, of which nothing is left but what they did from then on. Each must be
found.

    python benchmarks/verify_runs.py
    python benchmarks/verify_runs.py --resumed --experiments ppo_cartpole sac_pendulum --name verify_resumed
    python benchmarks/verify_runs.py --experiments ppo_cartpole --name try
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from harness import markdown_table, write_results
from typer.testing import CliRunner

from rl_lab.cli.main import app
from rl_lab.tracking.checkpoint import CheckpointStore

EXPERIMENTS = (  # every workflow at least once
    *("ppo_cartpole", "sac_pendulum", "td3_pendulum", "dqn_cartpole", "sql_pendulum", "random_cartpole", "bc_pusht"),
    *("diffusion_two_roads", "tdmpc2_cartpole", "ppo_amp_circle", "planet_cartpole", "dreamer_cartpole"),
    *("world_models_cartpole", "ppo_pendulum", "ppo_cartpole_recurrent", "sac_pendulum_prioritized", "sac_reach_her"),
    *("rainbow_cartpole", "fast_td3_pendulum_tensor", "ppo_identity_multidiscrete"),
    *("rlpd_insertion", "hiors_insertion", "sft_insertion", "reward_classifier_insertion", "sac_pi0_insertion"),
)


def lab(*words: str) -> Any:
    """Run a command here; only what it starts itself is a process of its own."""
    return CliRunner().invoke(app, list(words))


def other_seed(run: Path) -> None:
    for name in ("config.yaml", "composed.yaml"):
        text = (run / name).read_text()
        assert "  seed: 1\n" in text
        (run / name).write_text(text.replace("  seed: 1\n", "  seed: 2\n"))


def other_line(run: Path) -> None:
    """Discount by 1.001 times as much."""
    archive, changed = run / "code" / "source.zip", run / "code" / "changed.zip"
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(changed, "w") as new:
        for name in old.namelist():
            text = old.read(name)
            if name == "rl_lab/ops/returns.py":
                text = text.replace(b"gamma * ", b"1.001 * gamma * ")
                assert b"1.001" in text
            new.writestr(name, text)
    changed.replace(archive)


def other_bit(run: Path, place: int = 0) -> None:
    """Flip the lowest bit of the first number of the first parameter, in the oldest checkpoint or another."""
    entry = CheckpointStore(run / "checkpoints").entries()[place]
    state = CheckpointStore.load(entry.path).state
    weight = next(value for value in state["workflow"].values() if value.dtype == torch.float32)
    weight.view(-1)[:1].view(torch.int32)[0] ^= 1
    path = CheckpointStore(run / "rewritten").save(state, counters=entry.counters, phase=entry.phase, score=entry.score)
    shutil.rmtree(entry.path)
    shutil.move(path, entry.path)


TAMPERING: dict[str, Callable[[Path], None]] = {
    "another seed": other_seed,
    "a changed line of code": other_line,
    "one bit of a parameter": other_bit,
}


def verified(experiment: str, what: str, run: Path) -> dict[str, Any]:
    """Return the row of a run."""
    start = time.perf_counter()
    result = lab("runs", "verify", str(run), "--json")
    told = json.loads(result.stdout) if result.stdout.startswith("{") else {}
    difference = told.get("divergence") or {}
    return {
        "experiment": experiment,
        "run": what,
        "as_expected": result.exit_code == (1 if difference else 0) and bool(difference) == ("untouched" not in what),
        "vector_steps": told.get("vector_steps", ""),
        "updates": told.get("updates", ""),
        "rows": told.get("rows", ""),
        "checkpoints": told.get("checkpoints", ""),
        "steps": told.get("step", ""),
        "first_difference": f"{difference['step']}, {difference['stream']}: {difference['detail']}"
        if difference
        else "",
        "wall_s": round(time.perf_counter() - start, 1),
        "error": result.stderr.strip()[-300:],
    }


def continued(experiment: str, folder: Path, *, flip: bool) -> dict[str, Any]:
    """Let a run go on from a checkpoint halfway, as after a crash, and verify it when that is gone."""
    run = folder / f"{experiment}_continued_{flip}"
    words = ("training.checkpoint_frequency=64", "training.keep_last=9", "--run-dir", str(run))
    whole = lab("train", *tiny(experiment), *words)
    assert whole.exit_code == 0, whole.stderr
    for entry in CheckpointStore(run / "checkpoints").entries():
        if entry.counters["env_steps"] > 64:
            shutil.rmtree(entry.path)
    if flip:
        other_bit(run, -1)
    resumed = lab("resume", str(run))
    assert resumed.exit_code == 0, resumed.stderr
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").mkdir()
    what = "one bit of a parameter" if flip else "untouched"
    return verified(experiment, f"{what} at env step 64, then resumed", run)


def tiny(experiment: str) -> list[str]:
    return [f"+experiment={experiment}", "budget=tiny", "experiment.seed=1"]


def measure(experiment: str, folder: Path, *, tamper: bool) -> list[dict[str, Any]]:
    run = folder / experiment
    trained = lab("train", *tiny(experiment), "--run-dir", str(run), "--json")
    if trained.exit_code:
        return [{"experiment": experiment, "run": "untouched", "as_expected": False, "error": trained.stderr[-300:]}]
    rows = [verified(experiment, "untouched", run)]
    for what, change in TAMPERING.items() if tamper else ():
        copy = folder / what.replace(" ", "_")
        shutil.copytree(run, copy)
        change(copy)
        rows.append(verified(experiment, what, copy))
    return rows


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--experiments", nargs="+", default=list(EXPERIMENTS))
    options.add_argument("--resumed", action="store_true", help="only the runs that went on from a changed checkpoint")
    options.add_argument("--name", default="verify_runs", help="of the result files")
    args = options.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for experiment in args.experiments:
            if args.resumed:
                rows += [continued(experiment, Path(folder), flip=flip) for flip in (False, True)]
            else:
                rows += measure(experiment, Path(folder), tamper=experiment == args.experiments[0])
            print(rows[-1], flush=True)
            write_results(args.name, rows, seeds=[1])
    print(markdown_table(rows))


if __name__ == "__main__":
    main()
