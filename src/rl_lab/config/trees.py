"""The directories that hold YAML: the config directory is the registry. Imports no torch: `lab list` is quick."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

ConfigDir = str | Path | Sequence[str | Path] | None
CONFIGS = Path(__file__).resolve().parent.parent / "configs"


def config_trees(config_dir: ConfigDir = None) -> list[Path]:
    """Return the directories that are searched: the user's own, one or several, then the packaged one."""
    if config_dir is None:
        return [CONFIGS]
    given = [config_dir] if isinstance(config_dir, str | Path) else config_dir
    folders = [Path(each).expanduser().resolve() for each in given]
    if missing := [name for name, folder in zip(given, folders, strict=True) if not folder.is_dir()]:
        from rl_lab.core.errors import UsageError

        raise UsageError(f"--config-dir {missing[0]}: no such directory")
    return [*folders, CONFIGS]


def group_names(trees: Sequence[Path]) -> list[str]:
    """Return the config groups: the folders that hold YAML."""
    folders = {path.parent.relative_to(tree) for tree in trees for path in tree.rglob("*.yaml")}
    return sorted(folder.as_posix() for folder in folders if folder != Path())


def group_files(group: str, config_dir: ConfigDir = None) -> dict[str, Path]:
    """Return the options of a group and their files, nested ones as `folder/name`; the user's own come first."""
    found: dict[str, Path] = {}
    for tree in config_trees(config_dir):
        for path in sorted((tree / group).rglob("*.yaml")):
            found.setdefault(path.relative_to(tree / group).with_suffix("").as_posix(), path)
    return found
