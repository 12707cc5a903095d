"""Reads Minari datasets that lie on this machine, in any of Minari's own storage formats.

Gymnasium's pictures [H, W, C] become [C, H, W]; nested dicts and tuples of observations get dotted keys. Nothing is
downloaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from rl_lab.buffers.datasets.files import one_line
from rl_lab.buffers.datasets.format import CHANNELS, Actions, Array, DatasetError, Episode, EpisodeReader
from rl_lab.core.errors import ConfigError

try:
    import minari
except ModuleNotFoundError as error:
    raise ConfigError(f"{error.name} is not installed: pip install 'rl-lab[minari]'") from error

_METADATA = "metadata.json"


class MinariReader(EpisodeReader):
    """`path` is a Minari dataset's directory, the one that holds `data`, or that `data` itself."""

    format = "minari"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data = path / "data" if (path / "data" / _METADATA).exists() else path
        if not (self._data / _METADATA).exists():
            raise DatasetError(f"{path} has no data/{_METADATA}: not a Minari dataset")
        try:
            self._dataset = minari.MinariDataset(self._data)
            numbers = self._dataset.episode_indices
            metadata = list(self._dataset.storage.get_episode_metadata(numbers))
            self.lengths = [int(entry["total_steps"]) for entry in metadata]
        except ImportError as error:
            raise ConfigError(one_line(error)) from error
        except (ValueError, KeyError, TypeError, AssertionError, OSError) as error:
            raise DatasetError(f"{self._data / _METADATA} cannot be used ({one_line(error)})") from error

    def read(self, number: int) -> Episode:
        """Return one episode."""
        where = f"{self.path}, episode {number}"
        try:
            found = self._dataset[number]
        except (ValueError, KeyError, TypeError, OSError, IndexError, StopIteration) as error:
            raise DatasetError(f"{where} cannot be read ({one_line(error)})") from error
        steps = len(found.rewards)
        if steps != self.lengths[number]:
            raise DatasetError(f"{where} has {steps} of {self.lengths[number]} steps")
        observations = dict(_leaves(where, found.observations))
        for key, array in observations.items():
            if len(array) != steps + 1:
                raise DatasetError(f"{where}: observations {key} has {len(array)} rows instead of {steps + 1}")
        terminated = bool(found.terminations[-1])
        infos = {k: _scalars(a, steps) for k, a in _numbers(found.infos)}
        return Episode(
            observations=_as_given({key: array[:-1] for key, array in observations.items()}),
            actions=_actions(where, found.actions, _kinds(self._dataset.action_space)),
            rewards=np.asarray(found.rewards, dtype=np.float32),
            terminated=terminated,
            truncated=not terminated,
            final_observation=_as_given({key: array[-1] for key, array in observations.items()}),
            infos={key: array for key, array in infos.items() if array is not None},
        )


def _leaves(where: str, tree: Any, path: str = "") -> Any:
    """Yield (dotted key, array [T, ...]) of a dict or tuple of observations; one array has the key ""."""
    if isinstance(tree, Mapping):
        parts = [(str(key), part) for key, part in tree.items()]
    elif isinstance(tree, tuple):
        parts = [(str(index), part) for index, part in enumerate(tree)]
    else:
        array = np.asarray(tree)
        if array.dtype.kind not in "fiub":
            raise DatasetError(f"{where}: observations {path} is {array.dtype}; only numbers can be read")
        yield path, _channels_first(array)
        return
    for key, part in parts:
        yield from _leaves(where, part, f"{path}.{key}" if path else key)


def _as_given(observations: dict[str, Array]) -> Any:
    return observations[""] if set(observations) == {""} else observations


def _channels_first(array: Array) -> Array:
    """Return pictures as the environments of the lab show them."""
    shape = array.shape[1:]
    if array.dtype == np.uint8 and len(shape) == 2:
        return array[:, None]
    if array.dtype == np.uint8 and len(shape) == 3 and shape[2] in CHANNELS and shape[0] not in CHANNELS:
        return array.transpose(0, 3, 1, 2)
    return array


def _actions(where: str, actions: Any, kinds: set[bool]) -> Actions:
    """Return actions as the environments take them: parts of one kind side by side, others as a dict."""
    if not isinstance(actions, Mapping | tuple):
        return np.asarray(actions)
    parts = dict(_leaves(where, actions))
    if len(kinds) > 1:
        return parts
    return np.concatenate([array.reshape(len(array), -1) for array in parts.values()], axis=1)


def _kinds(space: Any) -> set[bool]:
    """Return whether the parts of a space are Boxes: both True and False where it mixes numbers and choices."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return {isinstance(space, spaces.Box)}
    parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
    return set().union(*map(_kinds, parts))


def _numbers(infos: Mapping[str, Any], path: str = "") -> Any:
    for key, value in infos.items():
        name = f"{path}.{key}" if path else str(key)
        if isinstance(value, Mapping):
            yield from _numbers(value, name)
        else:
            yield name, np.asarray(value)


def _scalars(array: Array, steps: int) -> Array | None:
    """Return what the steps reported, without what the reset did; None for what is not one number per step."""
    if array.dtype.kind not in "fiub" or array.ndim != 1 or len(array) != steps + 1:
        return None
    return array[1:]
