import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "transport_kill.py"


def test_the_benchmark_that_kills_also_fills_disks_and_counts_each_step_once(tmp_path):
    name = tmp_path / "row"
    options = ["--steps", "4500", "--kills", "2", "--name", str(name)]  # an actor that lives so long has a full disk
    done = subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (row,) = json.loads(name.with_suffix(".json").read_text())["rows"]
    assert row["kills"] == 2
    assert row["times a disk was full"] >= 1
    assert [row[key] for key in ("steps", "lost", "duplicated", "out of order")] == [4500, 0, 0, 0]
