"""A run of an older lab brought into today's layout on the disk; as it was it is kept beside that."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import yaml

from rl_lab.config.freeze import migrate
from rl_lab.config.resume import COMPOSED, load_yaml
from rl_lab.core.trees import tree_leaves
from rl_lab.tracking.atomic import temporary_sibling
from rl_lab.tracking.checkpoint import CheckpointStore
from rl_lab.tracking.checkpoint_files import SCHEMA_VERSION
from rl_lab.tracking.checkpoint_migrations import untranslated
from rl_lab.tracking.checkpoint_rewrite import bring_back, is_older, put_aside, rewrite
from rl_lab.tracking.run_directory import RunDirectory

BEFORE = "before_migration"  # in a run: what it was, which its own code can read
CONFIGS = ("config.yaml", COMPOSED)


@dataclass(frozen=True)
class Migration:
    """What would change in a run.

    Attributes:
        files: Config files by name, in today's layout.
        keys: Options that these did not have, or have elsewhere or otherwise now.
        checkpoints: Those that are written anew, by name.
        kept: Why a checkpoint stays as it is, by name.
    """

    run: RunDirectory
    files: dict[str, str]
    keys: list[str]
    checkpoints: list[str]
    kept: dict[str, str]


def plan_migration(run: RunDirectory) -> Migration:
    """Return what is not in today's layout; nothing is changed."""
    files: dict[str, str] = {}
    keys: dict[str, None] = {}
    for path in (run.path / name for name in CONFIGS):
        tree = load_yaml(path.read_text(), path) if path.is_file() else {}
        today = migrate(tree, str(path)) if tree else {}
        if today != tree:
            was, is_now = (dict(tree_leaves(each)) for each in (tree, today))
            keys |= dict.fromkeys(key for key in {**was, **is_now} if was.get(key, keys) != is_now.get(key, keys))
            files[path.name] = yaml.safe_dump(today, sort_keys=False)
    entries = [entry for entry in CheckpointStore(run.checkpoints).entries() if entry.schema_version < SCHEMA_VERSION]
    older = [entry.path.name for entry in entries if is_older(entry.schema_version)]
    older += put_aside(_aside(run))  # by one that was killed
    lost = {entry.path.name: untranslated(entry.schema_version) for entry in entries}
    kept = {name: f"{what} cannot be said in today's layout" for name, what in lost.items() if what}
    return Migration(run, files, list(keys), sorted(older), kept)


def migrate_run(run: RunDirectory) -> Migration:
    """Do what is planned, as the owner of the run, and return it; killed at any moment, the same again goes on."""
    with run.lock():
        bring_back(run.checkpoints, _aside(run))
        planned = plan_migration(run)
        _keep(run)
        for name in planned.checkpoints:
            rewrite(run.checkpoints / name, _aside(run))
        for name, text in planned.files.items():
            run.write_text(name, text)
    return planned


def _aside(run: RunDirectory) -> Path:
    return run.path / BEFORE / run.checkpoints.name


def as_written(run: RunDirectory, scratch: Path) -> RunDirectory:
    """Return what the run's own code reads of it: the run, or a copy in `scratch` of its files before migration."""
    if not (run.path / BEFORE).is_dir():
        return run
    shutil.copytree(run.path / BEFORE, scratch, ignore=shutil.ignore_patterns("checkpoints"))
    return RunDirectory.open(scratch)


def _keep(run: RunDirectory) -> None:
    """Copy the small files that change, once: what was there first is what the run's own code knows."""
    before = run.path / BEFORE
    if before.is_dir():
        return
    fresh = temporary_sibling(before)
    fresh.mkdir()
    for name in (*CONFIGS, run.manifest_file.name):
        if (run.path / name).is_file():
            shutil.copy2(run.path / name, fresh / name)
    os.rename(fresh, before)
