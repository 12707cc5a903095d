"""The code a run was made with: commit, uncommitted changes and sources. Reads the working tree, never writes it."""

from __future__ import annotations

import io
import os
import subprocess
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import rl_lab
from rl_lab.tracking.atomic import replace_file

_SUFFIXES = {".py", ".yaml", ".yml"}
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same sources give the same bytes
_GIT_TIMEOUT_S = 60
_MAX_DIFF_BYTES = 64 << 20
NO_COMMIT = "unknown"


def write_code_snapshot(target: Path, extra_sources: Sequence[Path | str] = ()) -> None:
    """Write commit, diff.patch and source.zip (the lab and the plugins at `extra_sources`) into `target`."""
    target.mkdir(parents=True, exist_ok=True)
    replace_file(target / "commit", git_commit() + "\n")
    replace_file(target / "diff.patch", _diff())
    replace_file(target / "source.zip", _zip([Path(rl_lab.__file__).parent, *map(Path, extra_sources)]))


def git_commit() -> str:
    """Return the commit of the repository that holds the lab, else of the current directory, else `unknown`."""
    repository = _repository()
    output = _git(repository, "rev-parse", "HEAD") if repository else None
    return output.decode().strip() if output else NO_COMMIT


def _repository() -> Path | None:
    for directory in (Path(rl_lab.__file__).parent, Path.cwd()):
        top = _git(directory, "rev-parse", "--show-toplevel")
        if top:
            return Path(os.fsdecode(top).rstrip("\n"))
    return None


def _diff() -> bytes:
    repository = _repository()
    # No drivers and filters of the repository's own: a snapshot runs nobody's programs.
    patch = _git(repository, "diff", "--binary", "--no-ext-diff", "--no-textconv", "HEAD") if repository else None
    if patch is not None and len(patch) > _MAX_DIFF_BYTES:
        return f"# left out: {len(patch)} bytes of uncommitted changes\n".encode()
    return patch or b""


def _git(directory: Path, *arguments: str) -> bytes | None:
    """Return the output of a reading git command, or None without git, repository or commit."""
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(directory), *arguments]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}  # do not even refresh the index
    try:
        result = subprocess.run(command, capture_output=True, env=environment, timeout=_GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout if result.returncode == 0 else None


def _zip(roots: Sequence[Path]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        written: set[str] = set()
        for root in roots:
            for name, path in _sources(root.absolute()):
                if name not in written:
                    written.add(name)
                    info = zipfile.ZipInfo(name, _EPOCH)
                    info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                    archive.writestr(info, path.read_bytes())
    return buffer.getvalue()


def _sources(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield (name in the archive, file) of a package directory or of one file."""
    if root.is_file():
        yield root.name, root
    for directory, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
        for name in sorted(files):
            path = Path(directory, name)
            if path.suffix in _SUFFIXES and path.is_file():
                yield path.relative_to(root.parent).as_posix(), path
