"""How far exported policies are from the lab's: the largest difference over 1000 calls, by workflow and format.

The policies are those of the tests (`tests/deploy/building.py`): packaged experiments with weights that were moved,
less where a policy takes many steps in a row: what it does with rounding is then not the file's.
Half of the calls are episodes of the environment, half noise around them. A row that is there is not made again.

    python benchmarks/export_parity.py
    python benchmarks/export_parity.py --experiments ppo_pendulum sac_pendulum --calls 100
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from harness import RESULTS, ROOT, read_rows, write_results

from rl_lab.deploy.formats import FILES, load_format
from rl_lab.deploy.parity import TOLERANCE

sys.path.append(str(ROOT))
from tests.deploy.building import EVERY, LONG, captured, moved_by, parity

NAME = "export_parity"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--experiments", nargs="+", default=[*EVERY, *LONG], choices=[*EVERY, *LONG])
    options.add_argument("--calls", type=int, default=1000)
    args = options.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = [*read_rows(RESULTS / f"{NAME}.csv")]
    done = {row["experiment"] for row in rows}
    for experiment in args.experiments:
        if experiment not in done:
            rows += measured(experiment, args.calls)
            write_results(NAME, rows)


def measured(experiment: str, count: int) -> list[dict[str, Any]]:
    """Return a row for each format of an experiment's policy."""
    policy, env = captured(experiment, scale=moved_by(experiment))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, file in FILES.items():
            found, _ = parity(policy, env, Path(folder) / file, load_format(name), count)
            rows.append(
                {
                    "workflow": type(policy.function.workflow).__name__,
                    "experiment": experiment,
                    "format": name,
                    "weights_moved_by": moved_by(experiment),
                    "calls": count,
                    "max_difference": f"{found.max_difference:.2e}",
                    "unstable": found.unstable,
                    "is_good": found.is_good,
                    "allowed": TOLERANCE,
                }
            )
    return rows


if __name__ == "__main__":
    main()
