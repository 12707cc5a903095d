"""What a state tree has beyond another one: a buffer filled from files saves only what the files cannot give back."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_lab.core import Segment, Tree

Digest = Any  # a tree like the state, with something small in place of each leaf
_REPLACE, _INSIDE = "replace", "inside"


def digest(tree: Tree) -> Digest:
    """Return a tree in which every leaf is replaced by what tells it from others."""
    if isinstance(tree, Mapping):
        return {key: digest(part) for key, part in tree.items()}
    if isinstance(tree, tuple | list):
        return [digest(part) for part in tree]
    if isinstance(tree, Segment):
        return f"segment {tree.key}"
    if isinstance(tree, Tensor):
        flat = torch.empty(tree.numel(), dtype=tree.dtype).copy_(tree.detach().reshape(-1))
        return f"{tree.dtype} {tuple(tree.shape)} {_sha256(flat.view(torch.uint8).numpy())}"
    if isinstance(tree, np.ndarray):
        return f"{tree.dtype} {tree.shape} {_sha256(np.ascontiguousarray(tree).view(np.uint8))}"
    return repr(tree)


def difference(base: Digest, tree: Tree) -> dict[str, Any] | None:
    """Return what must be changed in the tree behind `base` to get `tree`; None: nothing."""
    if isinstance(tree, Mapping) and isinstance(base, Mapping) and base.keys() == tree.keys():
        parts = {key: difference(base[key], part) for key, part in tree.items()}
        inside = {key: part for key, part in parts.items() if part is not None}
        return {_INSIDE: inside} if inside else None
    return None if digest(tree) == base else {_REPLACE: tree}


def apply_difference(tree: Tree, change: Mapping[str, Any] | None) -> Tree:
    """Return the tree with what `difference` found put into it."""
    if change is None:
        return tree
    if _REPLACE in change:
        return change[_REPLACE]
    inside = change[_INSIDE]
    return {key: apply_difference(part, inside.get(key)) for key, part in tree.items()}


def _sha256(array: np.ndarray[Any, Any]) -> str:
    return hashlib.sha256(array.data).hexdigest()
