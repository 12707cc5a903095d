"""An exported policy on disk: the file of each format, `policy.json` that tells all about it, and golden calls."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rl_lab.core.errors import LabError
from rl_lab.deploy.formats import FILES, Runtime, load_format
from rl_lab.deploy.parity import TOLERANCE, Calls, Parity, compare
from rl_lab.deploy.ports import Port

SCHEMA_VERSION = 1
METADATA, GOLDEN = "policy.json", "golden.npz"
NUM_GOLDEN = 16
_NOT_EMBEDDED = ("files", "sha256")  # what is known only after a file was written


def load_file(name: str, folder: Path, metadata: Mapping[str, Any]) -> Runtime:
    """Return what runs the file of a format."""
    inputs, outputs = ([Port.from_json(each) for each in metadata[key]] for key in ("inputs", "outputs"))
    return load_format(name).load(folder / FILES[name], inputs, outputs)


def embedded(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return what a file carries itself: each field of `policy.json` as JSON."""
    return {key: json.dumps(value) for key, value in metadata.items() if key not in _NOT_EMBEDDED}


def write_golden(calls: Calls, path: Path) -> None:
    """Write calls for later checks."""
    arrays = {f"inputs/{name}": array for name, array in calls.inputs.items()}
    arrays |= {f"outputs/{name}": array for name, array in calls.outputs.items()}
    np.savez(path, **arrays)  # type: ignore[arg-type]


def read_golden(path: Path) -> Calls:
    """Return the calls that `write_golden` wrote."""
    arrays = dict(np.load(path, allow_pickle=False))
    parts = ({k.removeprefix(p): v for k, v in arrays.items() if k.startswith(p)} for p in ("inputs/", "outputs/"))
    return Calls(*parts)


def write_metadata(metadata: Mapping[str, Any], folder: Path) -> None:
    """Write `policy.json`, signed with the hash of its content."""
    (folder / METADATA).write_text(json.dumps({**metadata, "sha256": _hash_of(metadata)}, indent=1) + "\n")


def read_metadata(folder: Path) -> dict[str, Any]:
    """Return `policy.json`; raises when it is missing, changed or from a newer lab."""
    path = folder / METADATA
    if not path.is_file():
        raise LabError(f"no {METADATA} in {folder.absolute()}: not an export of the lab")
    try:
        metadata = json.loads(path.read_text())
        version, signed = metadata["schema_version"], metadata["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise LabError(f"{path} is damaged: {type(error).__name__}") from error
    if version != SCHEMA_VERSION:
        raise LabError(f"{path} has schema_version {version}; this lab reads {SCHEMA_VERSION}")
    if signed != _hash_of(metadata):
        raise LabError(f"{path} is not as it was exported: its hash differs")
    return dict(metadata)


def _hash_of(metadata: Mapping[str, Any]) -> str:
    unsigned = {key: value for key, value in metadata.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(unsigned, sort_keys=True).encode()).hexdigest()


def file_hash(path: Path) -> str:
    """Return the sha256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check(path: Path) -> dict[str, Parity]:
    """Verify an export, or one file of it: hashes, metadata within the files, and the golden calls."""
    folder = path if path.is_dir() else path.parent
    metadata = read_metadata(folder)
    files: dict[str, Any] = metadata["files"]
    wanted = [name for name in files if path.is_dir() or path.name in (METADATA, GOLDEN, files[name]["file"])]
    if not wanted:
        raise LabError(f"{path} is none of the files of {folder / METADATA}: {', '.join(_names(files))}")
    _check_hash(folder / GOLDEN, metadata["golden"]["sha256"])
    for name in wanted:
        _check_hash(folder / files[name]["file"], files[name]["sha256"])
        _check_embedded(name, folder / files[name]["file"], metadata)
    return {name: check_golden(name, folder, metadata) for name in wanted}


def _names(files: Mapping[str, Mapping[str, str]]) -> Sequence[str]:
    return [each["file"] for each in files.values()]


def _check_hash(path: Path, wanted: str) -> None:
    if not path.is_file():
        raise LabError(f"{path} is missing")
    if file_hash(path) != wanted:
        raise LabError(f"{path} is not as it was exported: its hash differs")


def _check_embedded(name: str, path: Path, metadata: Mapping[str, Any]) -> None:
    """Refuse a file that is another policy's."""
    entries, found = embedded(metadata), load_format(name).read_metadata(path)
    if found is not None and (different := [key for key in entries if found.get(key) != entries[key]]):
        raise LabError(f"{path} says otherwise than {METADATA} about {', '.join(different)}")


def check_golden(name: str, folder: Path, metadata: Mapping[str, Any]) -> Parity:
    """Run the golden calls; raises when the answers are others."""
    golden = read_golden(folder / GOLDEN)
    parity = compare(None, golden, load_file(name, folder, metadata)(golden.inputs))
    if not parity.is_good:
        raise LabError(
            f"{folder / FILES[name]} does not give the golden outputs: it is off by {parity.max_difference:.2g} "
            f"(allowed: {TOLERANCE:g})"
        )
    return parity
