"""One checkpoint directory: written so that it is whole or absent, and read only when every byte is as it was written.

`tensors.safetensors`, `state.json`, `segment-<key>` for each segment and, last, `MANIFEST.json` with size and sha256
of the others and of itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import stat
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch

import rl_lab
from rl_lab.core.durable import fsync_directory, reason
from rl_lab.core.errors import CheckpointError
from rl_lab.tracking.atomic import write_durable
from rl_lab.tracking.checkpoint_migrations import to_today
from rl_lab.tracking.segments import PREFIX, Stored, key_of, place_segment, read_segments, segment_name
from rl_lab.tracking.state_codec import Segments, Tensors, decode
from rl_lab.tracking.tensor_file import read_tensors, write_tensors

SCHEMA_VERSION = 2  # of files and state; what differed before is in `checkpoint_migrations`
MANIFEST, TENSORS, STATE = "MANIFEST.json", "tensors.safetensors", "state.json"
_MAX_MANIFEST_BYTES = 1 << 25  # about 170 bytes for each segment


class DamagedError(ValueError):
    """A checkpoint that is not as it was written; the message says what is wrong with it."""


class Content(NamedTuple):
    """A state tree as it goes into files."""

    tensors: Tensors
    structure: Any
    segments: Segments


def write_files(
    directory: Path, content: Content, header: Mapping[str, Any], stored: Mapping[str, Stored] = MappingProxyType({})
) -> None:
    """Fill a new directory, the manifest last, and force all of it to the disk; `stored` segments are only linked."""
    sha256, size = write_tensors(directory / TENSORS, content.tensors)
    state = json.dumps(content.structure, separators=(",", ":"), allow_nan=False).encode()
    write_durable(directory / STATE, state)
    files: dict[str, dict[str, Any]] = {
        TENSORS: {"sha256": sha256, "bytes": size},
        STATE: {"sha256": hashlib.sha256(state).hexdigest(), "bytes": len(state)},
    }
    for key, segment in content.segments.items():
        placed = place_segment(directory, segment, stored.get(key))
        files[placed.path.name] = {"sha256": placed.sha256, "bytes": placed.num_bytes, "mtime_ns": placed.mtime_ns}
    manifest = {"schema_version": SCHEMA_VERSION, **header, "files": files, "versions": _versions()}
    manifest["sha256"] = self_hash(manifest)
    write_durable(directory / MANIFEST, json.dumps(manifest, indent=1).encode())
    fsync_directory(directory)


def read_state(directory: Path, manifest: Mapping[str, Any]) -> Any:
    """Return the state tree in today's layout. Raises DamagedError when a byte of a listed file is not as written."""
    for name, entry in manifest["files"].items():
        _verify(directory / name, entry)
    try:
        structure = json.loads((directory / STATE).read_bytes())
        state = decode(structure, read_tensors(directory / TENSORS), read_segments(directory, manifest["files"]))
        return to_today(state, manifest["schema_version"])
    except OSError as error:
        raise DamagedError(reason(error)) from error
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, OverflowError) as error:
        raise DamagedError(f"{STATE} and {TENSORS} do not fit together ({_one_line(error)})") from error


def stored_segments(directory: Path, manifest: Mapping[str, Any]) -> dict[str, Stored]:
    """Return the segments that a checkpoint lists, by key."""
    found = {key: entry for name, entry in manifest["files"].items() if (key := key_of(name)) is not None}
    return {
        key: Stored(directory / segment_name(key), entry["sha256"], entry["bytes"], entry.get("mtime_ns"))
        for key, entry in found.items()
    }


def read_manifest(directory: Path) -> dict[str, Any]:
    """Return the checked manifest. Raises DamagedError, or CheckpointError when a newer lab wrote it."""
    path = directory / MANIFEST
    _require_plain(path, None)
    try:
        manifest = json.loads(path.read_bytes())
    except OSError as error:
        raise DamagedError(f"{MANIFEST}: {reason(error)}") from error
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{MANIFEST} is not JSON") from error
    _check_schema(manifest, path)
    if manifest.get("sha256") != self_hash(manifest):
        raise DamagedError(f"{MANIFEST} was changed (its own sha256 differs)")
    return manifest


def _check_schema(manifest: Any, path: Path) -> None:
    version = manifest.get("schema_version") if isinstance(manifest, dict) else None
    if type(version) is not int or version < 1:
        raise DamagedError(f"{MANIFEST} has no schema_version")
    if version > SCHEMA_VERSION:  # before the hash: a newer lab may hash in another way
        raise CheckpointError(f"{path} has schema_version {version}; this lab reads up to {SCHEMA_VERSION}: update it")
    _check_fields(manifest)


def _check_fields(manifest: Mapping[str, Any]) -> None:
    """Refuse what `write_files` cannot have written, above all names that lead out of the directory."""
    wanted = {"counters": dict, "phase": str, "score": float | int | None, "serial": int}
    for key, kind in wanted.items():
        if key not in manifest or not isinstance(manifest[key], kind):
            raise DamagedError(f"{MANIFEST} has no valid {key}")
    files = manifest.get("files")
    if not isinstance(files, dict) or not {TENSORS, STATE} <= set(files):
        raise DamagedError(f"{MANIFEST} does not list {TENSORS} and {STATE}")
    for name, entry in files.items():
        if name in ("", ".", "..") or "/" in name or "\\" in name or "\0" in name:
            raise DamagedError(f"{MANIFEST} lists {name!r}, which is not a plain file name")
        if name.startswith(PREFIX) and key_of(name) is None:
            raise DamagedError(f"{MANIFEST} lists {name!r}, which is not the name of a segment")
        if not isinstance(entry, dict) or type(entry.get("bytes")) is not int or type(entry.get("sha256")) is not str:
            raise DamagedError(f"{MANIFEST} has no bytes and sha256 for {name!r}")


def _verify(path: Path, entry: Mapping[str, Any]) -> None:
    _require_plain(path, entry["bytes"])
    try:
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DamagedError(f"{path.name}: {reason(error)}") from error
    if digest != entry["sha256"]:
        raise DamagedError(f"{path.name} was changed (its sha256 differs)")


def _require_plain(path: Path, size: int | None) -> None:
    """Refuse links, pipes and wrong sizes before anything is read."""
    try:
        info = os.lstat(path)
    except OSError as error:
        raise DamagedError(
            f"{path.name} is missing" if isinstance(error, FileNotFoundError) else reason(error)
        ) from error
    if not stat.S_ISREG(info.st_mode):
        raise DamagedError(f"{path.name} is not a regular file")
    if size is None and info.st_size > _MAX_MANIFEST_BYTES:
        raise DamagedError(f"{path.name} is {info.st_size} bytes long, too long for a manifest")
    if size is not None and info.st_size != size:
        raise DamagedError(f"{path.name} has {info.st_size} bytes instead of {size}")


def self_hash(manifest: Mapping[str, Any]) -> str:
    """Return the sha256 of a manifest's content."""
    content = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _versions() -> dict[str, str]:
    return {
        "rl_lab": rl_lab.__version__,
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
