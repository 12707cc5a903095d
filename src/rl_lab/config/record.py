"""What a run's directory tells of how the run was made."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from rl_lab.config.allow_list import ALLOWED, AllowList
from rl_lab.config.build import Parts
from rl_lab.config.freeze import config_hash
from rl_lab.config.resume import Start, config_files, exactness
from rl_lab.core.errors import RunDirectoryError
from rl_lab.tracking.code_snapshot import write_code_snapshot
from rl_lab.tracking.manifest import build_manifest
from rl_lab.tracking.run_directory import RunDirectory


def record_start(run: RunDirectory, parts: Parts, start: Start | None) -> None:
    """Write config, manifest and code of a run that begins; of one that goes on, only the config if it changed."""
    continues = start is not None and start.source.path == run.path
    if continues and start is not None and not start.changes:
        return
    for name, text in config_files(parts).items():
        run.write_text(name, text)
    fields: dict[str, object] = {"config_hash": config_hash(parts.config)}
    if not continues:
        fields = _manifest(parts, start) | fields
        _snapshot(run, parts.targets.allow_list)
    run.write_manifest(fields)


def _manifest(parts: Parts, start: Start | None) -> dict[str, object]:
    return build_manifest(
        seed=parts.config["experiment"]["seed"],
        device=str(parts.context.device),
        exact_resume=exactness(parts),
        updates=parts.static.execution,
        parent=None if start is None else str(start.checkpoint or start.source.path),
    )


def _snapshot(run: RunDirectory, allow_list: AllowList) -> None:
    try:
        write_code_snapshot(run.code, plugin_sources(allow_list))
    except OSError as error:
        raise RunDirectoryError(f"cannot write the code snapshot in {run.code}: {error.strerror or error}") from error


def plugin_sources(allow_list: AllowList) -> list[Path]:
    """Return the file or package directory of every plugin that the user declared."""
    sources: list[Path] = []
    for name in allow_list.prefixes[len(ALLOWED) :]:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            sources.extend(Path(folder) for folder in spec.submodule_search_locations)
        elif spec is not None and spec.origin:
            sources.append(Path(spec.origin))
    return sources
