"""Imports only go down: the table of rooms in ARCHITECTURE.md, read from the syntax trees."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "rl_lab"

BELOW_5 = {
    *("core", "ops", "components", "buffers", "environments", "tracking", "distributed", "robots", "human"),
    *("workflows", "orchestration", "config", "tuning"),
}
MAY_IMPORT = {
    "core": set(),
    "ops": set(),
    "components": {"core", "ops"},
    "buffers": {"core", "ops"},
    "environments": {"core"},
    "tracking": {"core", "ops"},
    "distributed": {"core"},
    "robots": {"core", "ops", "environments"},
    "human": {"core", "ops", "components", "buffers", "environments"},
    "workflows": {"core", "ops", "components"},
    "orchestration": {"core", "tracking", "distributed"},
    "config": {"core", "orchestration", "tracking", "distributed"},
    "tuning": {"core", "ops", "config", "tracking"},
    "launching": {"core", "tracking", "tuning"},
    "deploy": BELOW_5,
    "cli": {*BELOW_5, "deploy", "launching"},
    "dashboard": {*BELOW_5, "deploy"},
}
OPTIONAL_PACKAGES = {
    "mujoco_warp",
    "warp",
    "lerobot",
    "ray",
    "ray.tune",
    "MNN",
    "wandb",
    "optuna",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "ale_py",
    "minigrid",
    "dm_control",
}


def imports_of(path):
    """Yield (line, dotted name) of every import in a file, those inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, "." * node.level + (node.module or "")


def rooms():
    return sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists())


def test_every_room_is_in_the_matrix():
    assert set(rooms()) <= set(MAY_IMPORT)


@pytest.mark.parametrize("room", rooms())
def test_imports_only_go_down(room):
    for path in (PACKAGE / room).rglob("*.py"):
        for line, name in imports_of(path):
            assert not name.startswith("."), f"{path}:{line} imports relatively"
            if name.startswith("rl_lab."):
                other = name.split(".")[1]
                assert other == room or other in MAY_IMPORT[room], f"{path}:{line}: {room} may not import {other}"


PARTS = {  # of a file that would be too long
    "robots/sim/warp_kernels.py": "robots/sim/warp.py",
    "robots/sim/warp_order.py": "robots/sim/warp.py",
}


def test_optional_packages_are_imported_by_one_file_each():
    users = {}
    for path in PACKAGE.rglob("*.py"):
        for _, name in imports_of(path):
            owner = "ray.tune" if name.startswith("ray.tune") else name.split(".")[0]  # Tune is an extra of its own
            if owner in OPTIONAL_PACKAGES:
                name = path.relative_to(PACKAGE).as_posix()
                users.setdefault(owner, set()).add(PARTS.get(name, name))
    assert all(len(files) == 1 for files in users.values()), users


def test_nothing_unpickles_or_evaluates():
    forbidden = re.compile(
        r"\bimport (pickle|dill|cloudpickle|marshal|shelve)\b|weights_only\s*=\s*False|torch\.load\(|\beval\(|\bexec\("
    )
    for path in PACKAGE.rglob("*.py"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            found = forbidden.search(line.replace("workflow.eval(", "").replace("module.eval(", ""))
            assert not found, f"{path}:{number}: {line.strip()}"


def test_the_matrix_is_the_one_in_the_documentation():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for room in rooms():
        row = re.search(rf"^\| \d \| `{room}`.*\|$|^\| \d \| .*`{room}`.*\|$", text, re.M)
        assert row, f"ARCHITECTURE.md has no row for {room}"
        if room in ("cli", "deploy", "dashboard"):
            continue
        allowed = row.group(0).rstrip("|").rsplit("|", 1)[1]
        assert {name.strip() for name in allowed.split(",")} - {"nothing"} == MAY_IMPORT[room]
