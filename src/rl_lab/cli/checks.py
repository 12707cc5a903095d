"""The checks of `lab doctor`. Each returns what it found and, when that is not good, what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Literal, NamedTuple

TESTED = {  # package -> first and last tested version; the second is exclusive
    "torch": ("2.11", "2.14"),
    "numpy": ("2.2", "3"),
    "hydra-core": ("1.3.8", "1.4"),
    "pydantic": ("2.10", "3"),
    "gymnasium": ("1.2", "1.5"),
    "safetensors": ("0.5", "1"),
}
OPTIONAL = {"mujoco": ("3.17", "3.18"), "dm_control": ("1.0.50", "1.0.51"), "mujoco-warp": ("3.17", "3.18")}
NEEDED_GIB = 2.0
_RENDER = """
import gymnasium
env = gymnasium.make("HalfCheetah-v5", render_mode="rgb_array", width=64, height=64)
env.reset(seed=0)
print(env.render().shape)
env.close()
"""


class Check(NamedTuple):
    """One finding."""

    name: str
    status: Literal["ok", "warning", "broken"]
    detail: str
    fix: str = ""


def run_checks(root: str | Path, *, render: bool) -> list[Check]:
    """Run every check."""
    checks = [check_python(), *check_versions(), check_disk(Path(root)), check_threads(), check_runtime_dir()]
    return [*checks, check_rendering()] if render else checks


def check_python() -> Check:
    """Name the interpreter; pip refuses to install the lab for one that is too old."""
    return Check("python", "ok", ".".join(map(str, sys.version_info[:3])))


def check_versions() -> list[Check]:
    """Compare installed packages with the tested ones."""
    return [_check_version(name, *span, required=True) for name, span in TESTED.items()] + [
        _check_version(name, *span, required=False) for name, span in OPTIONAL.items()
    ]


def _check_version(name: str, first: str, end: str, *, required: bool) -> Check:
    wanted = f"pip install '{name}>={first},<{end}'"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return (
            Check(name, "broken", "not installed", wanted)
            if required
            else Check(name, "ok", "not installed (optional)")
        )
    if _numbers(first) <= _numbers(version) < _numbers(end):
        return Check(name, "ok", version)
    return Check(name, "warning", f"{version} is not tested (tested: >={first}, <{end})", wanted)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".") if part.isdigit())


def check_disk(root: Path) -> Check:
    """Check that runs can be written and that there is room for them."""
    place = root.absolute()
    while not place.exists():
        place = place.parent
    if not os.access(place, os.W_OK):
        return Check("disk", "broken", f"cannot write in {place}", "set LAB_EXPERIMENTS to a writable directory")
    free = shutil.disk_usage(place).free / 2**30
    if free < NEEDED_GIB:
        fix = "free some space, or set LAB_EXPERIMENTS to another disk"
        return Check("disk", "warning", f"{free:.1f} GiB free at {place}", fix)
    return Check("disk", "ok", f"{free:.1f} GiB free at {place}")


def check_threads() -> Check:
    """Check that thread settings of the shell do not exceed the cores."""
    cores = len(os.sched_getaffinity(0))
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked) > cores:
        return Check(
            "threads", "warning", f"OMP_NUM_THREADS={asked} on {cores} cores", f"export OMP_NUM_THREADS={cores}"
        )
    return Check("threads", "ok", f"{cores} cores; a run uses experiment.num_threads of them")


def check_runtime_dir() -> Check:
    """Check the directory that pygame and EGL look for."""
    folder = os.environ.get("XDG_RUNTIME_DIR", "")
    if not folder or not Path(folder).is_dir():
        detail = f"{folder or 'not set'}; pygame warns about it"
        return Check("XDG_RUNTIME_DIR", "warning", detail, f"export XDG_RUNTIME_DIR={tempfile.gettempdir()}")
    return Check("XDG_RUNTIME_DIR", "ok", folder)


def check_rendering() -> Check:
    """Draw a picture with MuJoCo in a process of its own: a wrong GL library can crash it."""
    backend = os.environ.get("MUJOCO_GL", "")
    missing = [name for name in ("mujoco", "imageio") if not _is_installed(name)]
    if missing:
        return Check("rendering", "ok", f"not checked: {missing[0]} is not installed (optional)", "")
    if not backend and not os.environ.get("DISPLAY"):
        if _renders("egl"):
            return Check("rendering", "ok", "no display; MUJOCO_GL=egl works and is what the lab chooses by itself")
        fix = "apt-get install libegl1 libosmesa6, then export MUJOCO_GL=egl (or osmesa)"
        return Check("rendering", "warning", "no display, and MUJOCO_GL=egl does not work", fix)
    if _renders(backend):
        return Check("rendering", "ok", f"MUJOCO_GL={backend or 'default'} works")
    return Check("rendering", "warning", f"MUJOCO_GL={backend or 'default'} does not work", "export MUJOCO_GL=egl")


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _renders(backend: str) -> bool:
    environment = os.environ | ({"MUJOCO_GL": backend} if backend else {})
    try:
        done = subprocess.run(
            [sys.executable, "-c", _RENDER], env=environment, capture_output=True, timeout=60, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
