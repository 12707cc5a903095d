"""The code a run was made with: commit, uncommitted changes and sources. Reads the working tree, never writes it."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import rl_lab
from rl_lab.core.errors import RunDirectoryError, UsageError
from rl_lab.tracking.atomic import replace_file, temporary_sibling
from rl_lab.tracking.scratch import scratch_directory

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


def changed_sources(code: Path, extra_sources: Sequence[Path | str] = ()) -> list[str]:
    """Return the files in which the installed code differs from a snapshot; of plugins, those that are in both."""
    with _opened(code) as archive:
        before = {entry.filename: entry.CRC for entry in archive.infolist()}
    roots = [Path(rl_lab.__file__).parent, *map(Path, extra_sources)]
    now = {name: zlib.crc32(path.read_bytes()) for root in roots for name, path in _sources(root.absolute())}
    shared = {_top(name) for name in before} & {_top(name) for name in now}
    names = sorted(name for name in before.keys() | now.keys() if _top(name) in shared)
    return [name for name in names if before.get(name) != now.get(name)]


def lay_out(code: Path, target: Path) -> None:
    """Write the sources of a snapshot into a new or empty directory: all of them, or none."""
    target = target.absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target} is not an empty directory: give a new or an empty one")
    with _opened(code) as archive, scratch_directory(temporary_sibling(target)) as scratch:
        archive.extractall(scratch.path)
        for name in ("commit", "diff.patch"):
            if (code / name).is_file():
                shutil.copyfile(code / name, scratch.path / name)
        os.rename(scratch.path, target)


def _opened(code: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(code / "source.zip")
    except (OSError, zipfile.BadZipFile) as error:
        raise RunDirectoryError(f"no code snapshot in {code}: {error}") from error


def _top(name: str) -> str:
    return name.partition("/")[0]


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
