"""Reference motions: clips of consecutive observations in a file, drawn step by step."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy
import torch
from torch import Tensor

from rl_lab.core import (
    Batch,
    Buffer,
    CheckpointError,
    ConfigError,
    EnvSpec,
    Footprint,
    LabError,
    State,
    Trajectory,
    flat_dim,
    leaves_of,
    unknown_name,
)
from rl_lab.core.ranges import Count

PREFIX = "packaged/"


class MotionBuffer(Buffer):
    """Draws steps (observations, next_observations) uniformly from clips; nothing can be added.

    A checkpoint holds the sampler's state and a sha256 of the clips.

    Args:
        path: An `.npz` or `.safetensors` file, every array of which is a clip [T, D] at the rate of the environment's
            steps, or `packaged/NAME` for one that comes with the lab.
        batch_size: Steps per batch.
        key: Which part of a dict observation a clip shows; of no matter where the observation is one array.
        device: Where batches go; the lab gives it.
        spec: What an observation looks like; the lab gives it.
        seed: Of the sampler; the lab gives it.
    """

    def __init__(
        self,
        path: str,
        batch_size: Count = 256,
        key: str | None = "amp",
        *,
        device: torch.device | str = "cpu",
        spec: EnvSpec | None = None,
        seed: int = 0,
    ) -> None:
        self.path, self.batch_size = path, batch_size
        clips = read_clips(path)
        dim = next(iter(clips.values())).shape[1]
        self._key = None if spec is None else _checked_key(spec, key, dim, path)
        self._sha256 = hashlib.sha256(b"".join(clip.tobytes() for clip in clips.values())).hexdigest()
        before, after = ([clip[part] for clip in clips.values()] for part in (slice(None, -1), slice(1, None)))
        self._steps = torch.from_numpy(np.stack([np.concatenate(before), np.concatenate(after)])).to(device)
        self._generator = torch.Generator(self._steps.device).manual_seed(seed)

    @property
    def size(self) -> int:
        """Return how many steps the clips have."""
        return self._steps.shape[1]

    @property
    def brings_data(self) -> bool:
        """Return True: it has all that it will ever have."""
        return True

    def add(self, trajectory: Trajectory) -> None:
        """Refuse: the clips are on disk."""
        raise LabError(f"the motions {self.path} are read-only: collect into another buffer")

    def is_ready(self) -> bool:
        """Return True."""
        return True

    def sample(self) -> Batch:
        """Return `batch_size` steps."""
        rows = torch.randint(self.size, (self.batch_size,), generator=self._generator, device=self._steps.device)
        return {
            name: self._shown(part[rows])
            for name, part in zip(("observations", "next_observations"), self._steps, strict=True)
        }

    def _shown(self, rows: Tensor) -> Tensor | dict[str, Tensor]:
        return rows if self._key is None else {self._key: rows}

    def footprint(self) -> tuple[Footprint, ...]:
        """Return the size of the clips."""
        return (Footprint(self._steps.nbytes, self.size, self._steps.device, is_in_checkpoints=False),)

    def get_state(self) -> State:
        """Return the sampler's state, and which clips these are."""
        return {"sha256": self._sha256, "rng": self._generator.get_state()}

    def set_state(self, state: State) -> None:
        """Go on drawing where `state` was taken. Raises when the clips are others."""
        if state["sha256"] != self._sha256:
            raise CheckpointError(
                f"the motions {self.path} are not those of the checkpoint: a run resumes with the same"
            )
        self._generator.set_state(torch.as_tensor(state["rng"]).cpu())


def read_clips(path: str) -> dict[str, np.ndarray]:
    """Return the clips [T, D] of a file by name, in the order of their names."""
    file = _packaged(path) if path.startswith(PREFIX) else Path(path)
    if not file.is_file():
        raise ConfigError(f"motions {path}: there is no such file")
    try:
        found = safetensors.numpy.load_file(file) if file.suffix == ".safetensors" else _arrays(file)
    except (OSError, ValueError, zipfile.BadZipFile, safetensors.SafetensorError) as error:
        raise ConfigError(f"motions {path}: neither a readable .npz nor a .safetensors file ({error})") from error
    clips = {name: np.asarray(found[name], np.float32) for name in sorted(found)}
    dims = {clip.shape[1:] for clip in clips.values()}
    if len(dims) != 1 or any(clip.ndim != 2 or len(clip) < 2 for clip in clips.values()):
        raise ConfigError(f"motions {path}: must hold clips [T, D], T of 2 or more and one D")
    if not all(np.isfinite(clip).all() for clip in clips.values()):
        raise ConfigError(f"motions {path}: has numbers that are not finite")
    return clips


def _arrays(file: Path) -> dict[str, np.ndarray]:
    with np.load(file, allow_pickle=False) as data:
        return dict(data)


def _packaged(path: str) -> Path:
    """Return the file of motions that come with the lab."""
    folder = Path(str(files("rl_lab").joinpath("data/motions")))
    name, known = path.removeprefix(PREFIX), [file.stem for file in folder.glob("*.npz")]
    if name not in known:
        raise ConfigError(unknown_name("packaged motions", name, known))
    return folder / f"{name}.npz"


def _checked_key(spec: EnvSpec, key: str | None, dim: int, path: str) -> str | None:
    """Return the key that the clips show, None where the observation is one array."""
    leaves = leaves_of(spec.observation)
    is_dict = isinstance(spec.observation, Mapping)
    if key not in leaves and is_dict:
        raise ConfigError("key: " + unknown_name("observation", key, leaves))
    shown = flat_dim(spec.observation if key is None or not is_dict else leaves[key])
    if shown != dim:
        raise ConfigError(
            f"motions {path}: clips have {dim} numbers, the observation{f' {key!r}' if is_dict else ''} {shown}"
        )
    return key if is_dict else None
