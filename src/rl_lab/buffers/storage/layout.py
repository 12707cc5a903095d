"""How a tree of tensors lies in memory as one row of 8-byte words, so that a whole row is fetched at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl_lab.core import EnvSpec, LabError, State, Tree, tree_leaves, tree_map
from rl_lab.core.spaces import Box, Leaf, MultiDiscrete, Space

Path = tuple[str | int, ...]  # of a leaf within a tree

WORD = torch.int64
WORD_BYTES = 8
NUMPY_TYPES = {
    getattr(torch, name): np.dtype(name)
    for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
}


class Field(NamedTuple):
    """Where one leaf lies within a row, counted in its own type."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int

    @property
    def numbers(self) -> int:
        """Return how many numbers it has."""
        return math.prod(self.shape)

    @property
    def strides(self) -> tuple[int, ...]:
        """Return how far apart its numbers lie, dimension by dimension."""
        return tuple(math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape)))


class Layout:
    """The fields of a row. Reading returns views: no byte is copied after the rows have been fetched."""

    def __init__(self, skeleton: Tree, fields: tuple[Field, ...]) -> None:
        self.skeleton = skeleton  # the tree, with the number of its field in place of each leaf
        self.fields = fields
        end = max((_end(field) for field in fields), default=0)
        self.words = -(-end // WORD_BYTES)
        used = [number for _, number in tree_leaves(skeleton) if number is not None]
        self._views = tuple((number, *fields[number], fields[number].strides) for number in used)
        self._dtypes = tuple(dict.fromkeys(fields[number].dtype for number in used))
        self._blocks = _blocks(fields, used)

    @classmethod
    def of(cls, tree: Tree, lead: int = 2) -> Layout:
        """Return the layout of rows like those of `tree`, whose leaves have `lead` leading dimensions."""
        leaves = [leaf for _, leaf in tree_leaves(tree) if leaf is not None]
        # Wide types first: all are aligned. Fields of a type lie together: they are written at once.
        order = sorted(range(len(leaves)), key=lambda i: (-leaves[i].element_size(), str(leaves[i].dtype)))
        fields: list[Any] = [None] * len(leaves)
        end = 0
        for index in order:
            leaf = leaves[index]
            fields[index] = Field(leaf.dtype, tuple(leaf.shape[lead:]), end // leaf.element_size())
            end = _end(fields[index])
        numbers = iter(range(len(leaves)))
        return cls(tree_map(lambda _: next(numbers), tree), tuple(fields))

    @property
    def row_bytes(self) -> int:
        """Return the size of a row."""
        return self.words * WORD_BYTES

    def read(self, words: Tensor) -> Tree:
        """Return the tree of rows [..., words] as views of them."""
        return _filled(self.skeleton, self.columns(words))

    def columns(self, words: Tensor) -> dict[int, Tensor]:
        """Return field number -> view of rows [..., words]: one torch call for each type and each field."""
        typed = {}
        for dtype in self._dtypes:
            view = words.view(dtype)
            typed[dtype] = (view, view.stride()[:-1], view.storage_offset())
        lead = words.shape[:-1]
        leaves = {}
        for number, dtype, shape, start, strides in self._views:
            view, steps, offset = typed[dtype]
            leaves[number] = view.as_strided(lead + shape, steps + strides, offset + start)
        return leaves

    def write(self, words: Tensor, tree: Tree, *, is_partial: bool = False) -> None:
        """Write a tree with leaves [..., *shape] into rows [..., words]; a partial one leaves the rest alone."""
        lead = words.shape[:-1]
        matched = self.match(tree, lead, is_partial=is_partial)  # all of it fits, or nothing is written
        if words.is_cpu and all(self.fields[number].dtype in NUMPY_TYPES for number in matched):
            self._write_on_host(words, matched, lead)
            return
        blocks = self._blocks if len(matched) == len(self._views) else [_block(self.fields, [n]) for n in matched]
        for dtype, start, sizes in blocks:
            values = [matched[number].reshape(*lead, size) for number, size in sizes.items()]
            target = words.view(dtype).narrow(-1, start, sum(sizes.values()))
            target.copy_(values[0] if len(values) == 1 else torch.cat(values, -1))

    def pick(self, names: Mapping[str, str]) -> Layout:
        """Return the layout that reads, of the same rows, only the entries `names` maps, under their new names."""
        return Layout({new: self.skeleton[old] for old, new in names.items()}, self.fields)

    def get_state(self) -> State:
        """Return it as plain values."""
        fields = [[str(f.dtype).removeprefix("torch."), list(f.shape), f.start] for f in self.fields]
        return {"skeleton": self.skeleton, "fields": fields}

    @classmethod
    def from_state(cls, state: State) -> Layout:
        """Return what `get_state` described."""
        fields = tuple(Field(vars(torch)[name], tuple(shape), start) for name, shape, start in state["fields"])
        return cls(state["skeleton"], fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and (self.skeleton, self.fields) == (other.skeleton, other.fields)

    def __hash__(self) -> int:
        return hash(self.fields)

    def _write_on_host(self, words: Tensor, matched: Mapping[int, Tensor], lead: tuple[int, ...]) -> None:
        """Write with NumPy: its small copies cost a third of torch's."""
        raw = words.numpy()
        for number, value in matched.items():
            dtype, shape, start = self.fields[number]
            size = math.prod(shape)
            raw.view(NUMPY_TYPES[dtype])[..., start : start + size] = value.detach().cpu().numpy().reshape(*lead, size)

    def match(self, tree: Tree, lead: tuple[int, ...], *, is_partial: bool = False) -> dict[int, Tensor]:
        """Return field number -> value of every leaf [*lead, *shape] of `tree`, or say what does not fit."""
        found: dict[int, Tensor] = {}
        self._match(found, lead, self.skeleton, tree, (), is_partial)
        return found

    def _match(
        self, found: dict[int, Tensor], lead: tuple[int, ...], skeleton: Tree, tree: Tree, at: Path, is_partial: bool
    ) -> None:
        if isinstance(skeleton, int):
            field = self.fields[skeleton]
            if tree.shape != lead + field.shape or tree.dtype != field.dtype:
                given, wanted = f"{tree.dtype} {list(tree.shape)}", f"{field.dtype} {list(lead + field.shape)}"
                raise LabError(f"a buffer was given {_name(at)} as {given} instead of {wanted}")
            found[skeleton] = tree
        elif isinstance(skeleton, dict):
            if skeleton.keys() != tree.keys():
                _reject_keys(skeleton, tree, at, is_partial)
            for key in tree:
                self._match(found, lead, skeleton[key], tree[key], (*at, key), is_partial)
        elif skeleton is not None:
            for index, (part, value) in enumerate(zip(skeleton, tree, strict=True)):
                self._match(found, lead, part, value, (*at, index), is_partial)


def expected_row(spec: EnvSpec) -> dict[str, Any]:
    """Return zeros like one step that the collector records, [1, 1, ...], without what `act` may add."""
    flag, number = torch.zeros(1, 1, dtype=torch.bool), torch.zeros(1, 1)
    obs = _zeros(spec.observation)
    return {
        "observations": obs,
        "actions": _zeros(spec.action),
        "rewards": number,
        "terminated": flag,
        "truncated": flag,
        "final_observations": obs,
        "is_first": flag,
    }


def _zeros(space: Space) -> Tree:
    if isinstance(space, Mapping):
        return {name: _leaf_zeros(leaf) for name, leaf in space.items()}
    return _leaf_zeros(space)


def _leaf_zeros(space: Leaf) -> Tensor:
    if isinstance(space, Box):
        return torch.zeros(1, 1, *space.shape, dtype=space.dtype)
    return torch.zeros(1, 1, *((len(space.nvec),) if isinstance(space, MultiDiscrete) else ()), dtype=torch.int64)


Block = tuple[torch.dtype, int, dict[int, int]]  # type, start, and the size of each field: they lie side by side


def _block(fields: tuple[Field, ...], numbers: list[int]) -> Block:
    first = fields[numbers[0]]
    return first.dtype, first.start, {number: fields[number].numbers for number in numbers}


def _blocks(fields: tuple[Field, ...], numbers: list[int]) -> list[Block]:
    """Return the blocks that these fields form."""
    found: list[list[int]] = []
    for number in sorted(numbers, key=lambda n: (str(fields[n].dtype), fields[n].start)):
        before = fields[found[-1][-1]] if found else None
        field = fields[number]
        if before is not None and before.dtype == field.dtype and before.start + before.numbers == field.start:
            found[-1].append(number)
        else:
            found.append([number])
    return [_block(fields, part) for part in found]


def _end(field: Field) -> int:
    return (field.start + field.numbers) * field.dtype.itemsize


def _reject_keys(skeleton: Mapping[str, Tree], tree: Mapping[str, Tree], at: Path, is_partial: bool) -> None:
    if unknown := sorted(tree.keys() - skeleton.keys()):
        name = _name((*at, unknown[0]))
        raise LabError(f"a buffer was given {name}, which its first rows had not ({sorted(skeleton)})")
    if not is_partial and (missing := sorted(skeleton.keys() - tree.keys())):
        raise LabError(f"a buffer was not given {_name((*at, missing[0]))}, which its first rows had")


def _name(path: Path) -> str:
    return repr(".".join(str(part) for part in path))


def _filled(skeleton: Tree, leaves: Mapping[int, Tensor]) -> Tree:
    """Return the skeleton with its leaves, as `tree_map` would, at half the cost."""
    if isinstance(skeleton, int):
        return leaves[skeleton]
    if isinstance(skeleton, dict):
        return {key: _filled(part, leaves) for key, part in skeleton.items()}
    return None if skeleton is None else type(skeleton)(_filled(part, leaves) for part in skeleton)
