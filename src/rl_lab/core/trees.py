"""Nested dicts and lists of leaves: the one shape of observations, carries, batches and checkpoint state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Tree = Any  # a leaf, or a dict or list or tuple of trees


def tree_map(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply `function` to the leaves of one or several trees of the same shape; None stays None."""
    if isinstance(tree, Mapping):
        return {key: tree_map(function, tree[key], *(other[key] for other in others)) for key in tree}
    if isinstance(tree, tuple | list):
        return type(tree)(tree_map(function, *parts) for parts in zip(tree, *others, strict=True))
    return None if tree is None else function(tree, *others)


def tree_stack(trees: Sequence[Tree]) -> Tree:
    """Stack trees of tensors along a new first dimension."""
    return tree_map(lambda *leaves: torch.stack(leaves), *trees)


def tree_cat(trees: Sequence[Tree], dim: int = 0) -> Tree:
    """Concatenate trees of tensors along an existing dimension."""
    return trees[0] if len(trees) == 1 else tree_map(lambda *leaves: torch.cat(leaves, dim), *trees)


def tree_where(mask: Tensor, chosen: Tree, otherwise: Tree) -> Tree:
    """Pick rows of `chosen` where `mask` [N] is True, else of `otherwise`."""
    return tree_map(lambda a, b: torch.where(mask.view(-1, *[1] * (a.ndim - 1)), a, b), chosen, otherwise)


def tree_leaves(tree: Tree, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted path, leaf) in order."""
    if isinstance(tree, Mapping):
        for key in tree:
            yield from tree_leaves(tree[key], f"{path}.{key}" if path else str(key))
    elif isinstance(tree, tuple | list):
        for index, part in enumerate(tree):
            yield from tree_leaves(part, f"{path}.{index}" if path else str(index))
    else:
        yield path, tree
