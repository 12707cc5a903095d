"""Large matrix products of compiled functions by oneDNN, for processors on which torch's own library is slow.

Importing this takes a second, as the compiler does; only what compiles needs it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

FEWEST_MULTIPLICATIONS = 1_500_000  # of one product: setting a smaller one up costs more than it saves
NAME = "rl_lab::product"

aten = torch.ops.aten

torch.library.define(NAME, "(Tensor left, Tensor right) -> Tensor")


@torch.library.impl(NAME, "CPU")
def product(left: Tensor, right: Tensor) -> Tensor:
    """Return the product of two matrices; the left one lies in memory row by row."""
    return torch.ops.mkldnn._linear_pointwise.default(left, right.t(), None, "none", [], "")


@torch.library.register_fake(NAME)
def _(left: Tensor, right: Tensor) -> Tensor:
    return left.new_empty((left.shape[0], right.shape[1]))


class OneDnnProducts(CustomGraphPass):
    """Replaces the large float32 products of a graph; batches of them become one product after the other."""

    def __call__(self, graph: fx.Graph) -> None:
        """Change the graph in place."""
        for operation in (aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default):
            for node in list(graph.find_nodes(op="call_function", target=operation)):
                *added, left, right = node.args
                if not node.kwargs and _is_worth_it(left.meta["val"], right.meta["val"]):
                    with graph.inserting_before(node):
                        new = _products(left, right)
                        new = _call(aten.add.Tensor, new, *added) if added else new
                    node.replace_all_uses_with(new)
                    graph.erase_node(node)

    def uuid(self) -> bytes:
        """Return what tells graphs that went through this from others in the cache of compiled ones."""
        return get_hash_for_files((__file__,))


def _is_worth_it(left: Tensor, right: Tensor) -> bool:
    is_float32 = left.device.type == "cpu" and left.dtype == right.dtype == torch.float32
    return is_float32 and left.shape[-2] * left.shape[-1] * right.shape[-1] >= FEWEST_MULTIPLICATIONS


def _products(left: fx.Node, right: fx.Node) -> fx.Node:
    multiply, shape = torch.ops.rl_lab.product.default, left.meta["val"].shape
    if left.meta["val"].stride(-1) != 1:
        left = _call(aten.clone.default, left, memory_format=torch.contiguous_format)
    if len(shape) == 2:
        return _call(multiply, left, right)
    pairs = [[_call(aten.select.int, side, 0, index) for side in (left, right)] for index in range(shape[0])]
    rows = _call(aten.cat.default, [_call(multiply, *pair) for pair in pairs])
    return _call(aten.view.default, rows, [*shape[:2], right.meta["val"].shape[-1]])


def _call(operation: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """Return a new node of the graph of its arguments; the compiler wants to know what comes out of it."""
    first = args[0][0] if isinstance(args[0], list) else args[0]
    made = first.graph.call_function(operation, args, kwargs)
    made.meta["val"] = operation(*fx.map_arg(args, lambda node: node.meta["val"]), **kwargs)
    return made
