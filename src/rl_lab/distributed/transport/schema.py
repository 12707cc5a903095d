"""The schema of a step: which arrays it has, of which type and shape. It is all that a peer may send.

A step is written as its arrays' bytes, the widest types first, without any description: its size is known before a byte
is read, and there is nothing in it to interpret.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rl_lab.core.trees import Tree, tree_leaves, tree_map
from rl_lab.distributed.transport.interface import TransportError

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    )
}
MAX_TEXT = 1 << 16  # characters of a peer's schema
_SHOWN = 4  # differences in a message


class Field(NamedTuple):
    """One array of a step."""

    path: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Return its size."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{_name(self.dtype)} {list(self.shape)}"


class Schema:
    """The arrays of a step, taken from an example of one: the row that a Collector records."""

    def __init__(self, example: Tree) -> None:
        leaves = [(path, leaf) for path, leaf in tree_leaves(example) if leaf is not None]
        for path, leaf in leaves:
            if not isinstance(leaf, Tensor) or leaf.dtype not in DTYPES.values():
                kind = leaf.dtype if isinstance(leaf, Tensor) else type(leaf).__name__
                raise TransportError(f"{path} of a step is {kind}; only tensors of {', '.join(DTYPES)} are sent")
        self.fields = tuple(Field(path, leaf.dtype, tuple(leaf.shape)) for path, leaf in leaves)
        numbers = iter(range(len(leaves)))
        self._skeleton = tree_map(lambda _: next(numbers), example)
        self._order = sorted(range(len(leaves)), key=lambda i: -self.fields[i].dtype.itemsize)  # all are aligned
        self.step_bytes = sum(field.num_bytes for field in self.fields)
        self.text = json.dumps([[f.path, _name(f.dtype), list(f.shape)] for f in self.fields], separators=(",", ":"))
        self.sha256 = hashlib.sha256(self.text.encode()).hexdigest()

    def encode(self, step: Tree) -> bytes:
        """Return a step as bytes; one that does not fit the schema is refused by name."""
        leaves = [(path, leaf) for path, leaf in tree_leaves(step) if leaf is not None]
        if len(leaves) != len(self.fields):
            raise TransportError(f"a step has {len(leaves)} arrays instead of {len(self.fields)}")
        parts: list[Any] = [None] * len(leaves)
        for number, ((path, leaf), field) in enumerate(zip(leaves, self.fields, strict=True)):
            if not isinstance(leaf, Tensor) or Field(path, leaf.dtype, tuple(leaf.shape)) != field:
                given = Field(path, leaf.dtype, tuple(leaf.shape)) if isinstance(leaf, Tensor) else type(leaf).__name__
                raise TransportError(f"{path} of a step is {given} instead of {field.path}: {field}")
            flat = leaf.detach().cpu().contiguous().reshape(-1)
            parts[number] = flat.view(torch.uint8).numpy().data if flat.numel() else b""
        return b"".join(parts[number] for number in self._order)

    def check(self, payload: bytes | memoryview) -> None:
        """Raise TransportError when these bytes are no step: of another size, or a bool that is neither 0 nor 1."""
        if len(payload) != self.step_bytes:
            raise TransportError(f"a step has {len(payload)} bytes instead of {self.step_bytes}")
        at = 0
        for number in self._order:
            field = self.fields[number]
            if field.dtype == torch.bool and bytes(payload[at : at + field.num_bytes]).strip(b"\0\1"):
                raise TransportError(f"{field.path} of a step is neither true nor false")
            at += field.num_bytes

    def decode(self, payload: bytes | memoryview) -> Tree:
        """Return the step of these bytes, in memory of its own."""
        self.check(payload)
        memory, leaves, at = bytearray(payload), {}, 0
        for number in self._order:
            _, dtype, shape = self.fields[number]
            count = math.prod(shape)
            flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=at) if count else torch.empty(0)
            leaves[number] = flat.to(dtype).reshape(shape)
            at += count * dtype.itemsize
        return tree_map(lambda number: leaves[number], self._skeleton)

    def difference(self, text: str) -> str:
        """Return in one line how a peer's schema differs from this one; raises TransportError when it is none."""
        mine, theirs = {f.path: str(f) for f in self.fields}, _fields(text)
        found = [f"{path} is {theirs.get(path, 'missing')} there and {mine.get(path, 'missing')} here"
                 for path in sorted(mine.keys() | theirs.keys()) if mine.get(path) != theirs.get(path)]  # fmt: skip
        rest = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        return "; ".join(found[:_SHOWN]) + rest or "the order of the arrays"


def _fields(text: str) -> Mapping[str, str]:
    try:
        rows: Any = json.loads(text) if len(text) <= MAX_TEXT else None
        return {str(path)[:200]: str(Field("", DTYPES[name], tuple(map(int, shape)))) for path, name, shape in rows}
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise TransportError("the peer's schema cannot be read") from error


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
