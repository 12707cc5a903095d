"""What the hash chain costs: the share of a run's CPU time that is spent in it, and runs with and without, in turn.

The share is measured within runs that have the chain: CPU seconds of its calls, writing included, by those of the
whole training loop. It is the number to trust on a busy machine. The ratio compares whole runs, which differ by some
per cent by themselves. No evaluations, no checkpoints: nothing that would make the share smaller.

    python benchmarks/hash_chain_cost.py
    python benchmarks/hash_chain_cost.py --repeats 1 --name try
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness import markdown_table, write_results
from typer.testing import CliRunner

from rl_lab.cli.main import app
from rl_lab.orchestration.orchestrator import Orchestrator
from rl_lab.tracking.hash_chain import HashChain

RUNS = {  # experiment -> env steps
    "ppo_cartpole": 98_304,
    "sac_pendulum": 1_600,
    "dqn_cartpole": 4_000,
}
PLAIN = (
    *("training.eval_frequency=null", "training.checkpoint_frequency=null", "training.checkpoint_minutes=null"),
    *("logging.terminal=false", "logging.tensorboard=false", "experiment.compile=eager", "experiment.device=cpu"),
)


@contextlib.contextmanager
def timed(owner: type, names: tuple[str, ...]) -> Iterator[list[float]]:
    """Add up the CPU seconds within methods of a class."""
    spent = [0.0]
    before = {name: vars(owner)[name] for name in names}

    def wrapped(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            start = time.process_time()
            try:
                return method(*args, **options)
            finally:
                spent[0] += time.process_time() - start

        return call

    for name, method in before.items():
        setattr(owner, name, wrapped(method))
    try:
        yield spent
    finally:
        for name, method in before.items():
            setattr(owner, name, method)


def train(experiment: str, steps: int, extent: str, run: Path) -> tuple[float, float]:
    """Return the CPU seconds of the training loop and of the chain within it."""
    shutil.rmtree(run, ignore_errors=True)
    words = [f"+experiment={experiment}", f"training.total_timesteps={steps}", f"logging.hash_chain={extent}", *PLAIN]
    with timed(Orchestrator, ("run",)) as whole, timed(HashChain, ("add_steps", "add_update", "flush")) as chain:
        done = CliRunner().invoke(app, ["train", *words, "--run-dir", str(run)])
    assert done.exit_code == 0, done.stderr
    return whole[0], chain[0]


def measure(experiment: str, steps: int, repeats: int, run: Path) -> dict[str, Any]:
    train(experiment, 1_200, "all", run)  # imports and first calls
    without, with_chain = [], []
    for _ in range(repeats):  # in turn, so that what the machine does besides meets both
        without.append(train(experiment, steps, "none", run)[0])
        with_chain.append(train(experiment, steps, "all", run))
    size = sum(file.stat().st_size for file in run.glob("*.chain"))
    share = statistics.median(chain / whole for whole, chain in with_chain)
    least = min(without), min(whole for whole, _ in with_chain)
    return {
        "experiment": experiment,
        "env_steps": steps,
        "share_percent": round(100 * share, 2),
        "cpu_s_without": round(least[0], 2),
        "cpu_s_with": round(least[1], 2),
        "ratio": round(least[1] / least[0], 3),
        "chain_bytes": size,
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--experiments", nargs="+", default=list(RUNS), choices=list(RUNS))
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--name", default="hash_chain_cost", help="of the result files")
    args = options.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for experiment in args.experiments:
            rows.append(measure(experiment, RUNS[experiment], args.repeats, Path(folder, "run")))
            print(rows[-1], flush=True)
            write_results(args.name, rows, seeds=[1])
    print(markdown_table(rows))


if __name__ == "__main__":
    main()
