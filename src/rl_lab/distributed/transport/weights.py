"""Versions of the policy's tensors on their way to the actors: safetensors, whole and verified or not at all."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from rl_lab.core.durable import fsync_directory, reason
from rl_lab.distributed.transport.interface import TransportError, Weights

_NAME = re.compile(r"weights-(\d{12})-([0-9a-f]{64})\.safetensors")
_INCOMING = re.compile(r"([0-9a-f]{16})-(\d{1,20})-([0-9a-f]{64})")  # log, version, sha256
logger = logging.getLogger(__name__)


class Version(NamedTuple):
    """A published version, which lies in a file."""

    number: int
    sha256: str
    size: int
    path: Path


class WeightsStore:
    """The learner's newest version, on disk, so that its successor goes on counting.

    What an earlier process published is not offered: its news, such as that the run is over, may not hold any more.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._changed = threading.Condition()
        directory.mkdir(parents=True, exist_ok=True)
        self._number = max((int(m[1]) for p in directory.iterdir() if (m := _NAME.fullmatch(p.name))), default=0)
        self._newest: Version | None = None

    @property
    def newest(self) -> Version | None:
        """Return the newest version that this process has published."""
        return self._newest

    def publish(self, tensors: Mapping[str, Tensor]) -> int:
        """Write a new version and return its number; the one before stays for who is reading it."""
        data = save_tensors({name: t.detach().cpu().contiguous() for name, t in tensors.items()})
        number, digest = self._number + 1, hashlib.sha256(data).hexdigest()
        path = self._directory / f"weights-{number:012d}-{digest}.safetensors"
        try:
            _commit(path, data)
        except OSError as error:
            raise TransportError(f"weights cannot be written: {reason(error)}") from error
        with self._changed:
            self._number, self._newest = number, Version(number, digest, len(data), path)
            self._changed.notify_all()
        for old in self._directory.iterdir():
            if (match := _NAME.fullmatch(old.name)) and int(match[1]) < number - 1:
                old.unlink(missing_ok=True)
        return number

    def newer(self, than: int, timeout_s: float) -> Version | None:
        """Return the newest version if its number is above `than`, or becomes so in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._newest is not None and self._newest.number > than, timeout_s)
            return self._newest if self._newest is not None and self._newest.number > than else None


class WeightsInbox:
    """The actor's side: collects the pieces of a version in a file, verifies the whole and offers it once.

    What was whole last stays on disk, so that an actor that starts again has it before any learner answers. It is asked
    for again all the same, because only a learner that is there knows what holds now. What came in part stays too, and
    is gone on with.
    """

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self._directory, self._max_bytes = directory, max_bytes
        self._guard = threading.Lock()
        self._offer: Weights | None = None
        self._source, self._version = "", 0  # of what came whole since: the learner's log, and the number within it
        directory.mkdir(parents=True, exist_ok=True)
        self._read_whole()

    def progress(self, source: str) -> tuple[int, int, int]:
        """Return which version of this log has come whole, which one in part, and how many bytes of that one."""
        since = self._version if source == self._source else 0
        for path in self._directory.glob("*.part"):
            if (match := _INCOMING.fullmatch(path.stem)) and match[1] == source:
                return since, int(match[2]), path.stat().st_size
        return since, 0, 0

    def add(self, source: str, version: int, sha256: str, size: int, offset: int, data: bytes) -> bool:
        """Take the next piece of a version and return whether that is whole now; what is wrong is thrown away."""
        if not 0 < size <= self._max_bytes:
            raise TransportError(f"weights of {size} bytes are refused: at most {self._max_bytes} are allowed")
        path = self._directory / f"{source}-{version}-{sha256}.part"
        if not _INCOMING.fullmatch(path.stem):
            raise TransportError("weights are refused: their version, sha256 or log is none")
        there = path.stat().st_size if path.exists() else 0
        if there == 0:
            self._remove("*.part")
        if offset != there or there + len(data) > size:
            path.unlink(missing_ok=True)
            raise TransportError(f"a piece of weights at byte {offset} does not follow byte {there} of {size}")
        with open(path, "ab") as file:
            file.write(data)
        if there + len(data) < size:
            return False
        self._finish(path)
        return True

    def take(self) -> Weights | None:
        """Return the newest whole version, once."""
        with self._guard:
            offer, self._offer = self._offer, None
            return offer

    def _finish(self, part: Path) -> None:
        try:
            source, weights = _verified(part)
        except TransportError:
            part.unlink()
            raise
        whole = part.with_suffix(".whole")
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        os.replace(part, whole)
        fsync_directory(self._directory)
        self._remove("*.whole", but=whole)
        with self._guard:
            self._offer, self._source, self._version = weights, source, weights.version

    def _read_whole(self) -> None:
        """Offer what an earlier process had; of two, it was killed before it deleted the older one."""
        for path in sorted(self._directory.glob("*.whole"), key=lambda path: -path.stat().st_mtime_ns):
            try:
                self._offer = _verified(path)[1]._replace(is_stored=True)
                return
            except TransportError as error:
                logger.warning("%s is not used: %s", path, error)

    def _remove(self, pattern: str, but: Path | None = None) -> None:
        for path in self._directory.glob(pattern):
            if path != but:
                path.unlink()


def _verified(path: Path) -> tuple[str, Weights]:
    """Return the source and the weights of a file whose name says what it holds."""
    match = _INCOMING.fullmatch(path.stem)
    if match is None:
        raise TransportError("the name of the file is wrong")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != match[3]:
        raise TransportError(f"weights {match[2]} are refused: their sha256 is not what was announced")
    return match[1], Weights(int(match[2]), _parse(content))


def _parse(content: bytes) -> dict[str, Tensor]:
    try:
        return load_tensors(content)
    except SafetensorError as error:
        raise TransportError(f"weights are refused: no safetensors ({error})") from error


def _commit(path: Path, data: bytes) -> None:
    """Give `path` a new content in one durable step."""
    temporary = path.with_name(f".tmp-{path.name}")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)
