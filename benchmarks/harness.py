"""What every benchmark needs: run a command, and write results together with what made them."""

from __future__ import annotations

import csv
import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
LAB = (sys.executable, "-m", "rl_lab")  # the command of the environment this script runs in
PACKAGES = ("rl-lab", "torch", "numpy", "gymnasium", "mujoco")


class Completed(NamedTuple):
    """A command that came to its end."""

    stdout: str
    wall_s: float


def run(command: Sequence[str], *, timeout_s: float | None = None, **variables: str) -> Completed:
    """Run a command in the repository; one that fails raises with the end of what it wrote."""
    start = time.perf_counter()
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | variables, timeout=timeout_s, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        text = (done.stdout + done.stderr)[-2000:]
        raise RuntimeError(f"exit code {done.returncode} of {shlex.join(command)}:\n{text}")
    return Completed(done.stdout, time.perf_counter() - start)


def run_json(command: Sequence[str], **options: Any) -> dict[str, Any]:
    """Run a command that prints one JSON object, and return that."""
    text = run(command, **options).stdout
    return json.loads(text[text.index("{") :])


def provenance() -> dict[str, Any]:
    """Return the command, date, versions, hardware and commit behind a result."""
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "command": shlex.join(["python", *sys.argv]),
        "date": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        "git_commit": git_commit(),
        "python": platform.python_version(),
        "versions": versions(PACKAGES),
        "hardware": f"{cpu_model()}, {os.cpu_count()} cores, {memory_gb:.0f} GB",
        "load_average": os.getloadavg()[0],
    }


def git_commit() -> str:
    """Return the commit, marked when the working tree differs from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    installed = {distribution.name.lower() for distribution in importlib.metadata.distributions()}
    return {name: importlib.metadata.version(name) for name in packages if name in installed}


def cpu_model() -> str:
    """Return the name of the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file, none when it is not there."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write_results(name: str, rows: Sequence[Mapping[str, Any]], **facts: Any) -> Path:
    """Write `results/<name>.csv`, and `.json` with the same rows, `facts` and the provenance; return the CSV's path."""
    path = write_csv(name, rows)
    content = {**provenance(), **facts, "rows": [dict(row) for row in rows]}
    path.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")
    return path


def write_csv(name: str, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write `results/<name>.csv` whole: a reader never sees half of it."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.csv"
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return temporary.replace(path)


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as a Markdown table; its columns are the keys of the first one."""
    if not rows:
        return "(no rows)"
    lines = [list(rows[0]), ["---"] * len(rows[0]), *([show(row[key]) for key in rows[0]] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def show(value: Any) -> str:
    """Return a number with as many digits as a reader wants."""
    return f"{value:.2f}" if isinstance(value, float) else str(value)
