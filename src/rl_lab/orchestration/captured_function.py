"""A function as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rl_lab.core.errors import LabError
from rl_lab.core.trees import Tree, tree_leaves, tree_map

StaticFunction = Callable[..., Tree]

WARM_UP_CALLS = 3  # eager calls before a capture, which let libraries allocate what they need


class CapturedFunction:
    """Runs eagerly a few times, then captures the function once and replays it.

    The tensors of a batch are copied into those that were captured; results are copies that stay as they are.
    """

    def __init__(self, function: StaticFunction) -> None:
        self._function = function
        self._calls = 0
        self._stream = torch.cuda.Stream()
        self._graph = torch.cuda.CUDAGraph()
        self._inputs: Tree = None
        self._outputs: Tree = None

    def __call__(self, *args: Tree) -> Tree:
        """Return what the function returns."""
        self._calls += 1
        self._take(args)
        if self._calls <= WARM_UP_CALLS:
            return self._warm_up()
        if self._calls == WARM_UP_CALLS + 1:
            self._capture()
        self._graph.replay()
        return tree_map(Tensor.clone, self._outputs)

    def _take(self, args: tuple[Tree, ...]) -> None:
        """Copy the arguments to where the function reads them, from its first call on: what is compiled sees them."""
        if self._calls == 1:
            self._inputs = tree_map(Tensor.clone, args)
            return
        for (path, held), (now, given) in zip(tree_leaves(self._inputs), tree_leaves(args), strict=True):
            if held is None and given is None:  # a carry that there is not
                continue
            if (path, held.shape, held.dtype) != (now, given.shape, given.dtype):
                raise LabError(
                    f"captured functions need tensors of one kind: {path}, {list(held.shape)}, {held.dtype} is now "
                    f"{now}, {list(given.shape)}, {given.dtype} (experiment.compile=eager takes both)"
                )
            held.copy_(given, non_blocking=True)

    def _warm_up(self) -> Tree:
        """Run on a side stream, as a capture will."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            result = self._function(*self._inputs)
        torch.cuda.current_stream().wait_stream(self._stream)
        return tree_map(Tensor.clone, result)  # some of it may be an input, which the next call changes

    def _capture(self) -> None:
        torch.cuda.synchronize()
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):  # the environment may step in another
            self._outputs = self._function(*self._inputs)
