"""How the running episode of a layer that is not ours is read and written: named attributes as plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

LayerState = dict[str, Any]  # arrays, numbers, strings, None, lists and dicts of them


class Adapter(NamedTuple):
    """Reads and writes the running episode of one foreign type."""

    read: Callable[[Any], LayerState]
    write: Callable[[Any, Mapping[str, Any]], None]
    fits: Callable[[Any], bool] = lambda layer: True  # whether it suffices for this one, as it was made


def attributes(*names: str) -> Adapter:
    """Return the adapter of a type whose running episode is these attributes."""

    def read(layer: Any) -> LayerState:
        values = vars(layer)
        return {name: plain(values[name]) for name in names if name in values}

    def write(layer: Any, state: Mapping[str, Any]) -> None:
        for name in names:
            if name in state:
                setattr(layer, name, unplain(state[name]))
            else:
                vars(layer).pop(name, None)  # the saved one had not set it yet

    return Adapter(read, write)


def plain(value: Any) -> Any:
    """Return a copy that a checkpoint can hold; `unplain` brings NumPy scalars, tuples and dicts back as such."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, np.generic):
        return {"scalar": np.array(value)}
    if isinstance(value, tuple):
        return {"tuple": [plain(part) for part in value]}
    if isinstance(value, list):
        return [plain(part) for part in value]
    if isinstance(value, Mapping):
        return {"dict": {key: plain(part) for key, part in value.items()}}
    assert value is None or isinstance(value, bool | int | float | str), f"{type(value)} has no plain form"
    return value


def has_plain_form(value: Any) -> bool:
    """Return whether `plain` can take it."""
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "biuf"
    if isinstance(value, tuple | list):
        return all(has_plain_form(part) for part in value)
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and has_plain_form(part) for key, part in value.items())
    return value is None or isinstance(value, bool | int | float | str)


def unplain(value: Any) -> Any:
    """Return what `plain` was given."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, list):
        return [unplain(part) for part in value]
    if isinstance(value, Mapping):
        (kind, inner), *_ = value.items()
        if kind == "scalar":
            return inner[()]
        if kind == "dict":
            return {key: unplain(part) for key, part in inner.items()}
        return tuple(unplain(part) for part in inner)
    return value
