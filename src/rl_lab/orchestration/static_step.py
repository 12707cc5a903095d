"""How a workflow's update functions run: eager, compiled as one graph, or captured as one CUDA graph.

A static function takes and returns trees of tensors of fixed shapes, never waits for the device, and changes parameters
and optimiser state in place. How it runs is part of the run: a checkpoint says it, and a resume keeps to it.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from rl_lab.core.durable import reason
from rl_lab.core.errors import CheckpointError, ConfigError, LabError
from rl_lab.core.trees import Tree, tree_leaves, tree_map

Execution = Literal["eager", "compiled", "captured"]
StaticFunction = Callable[..., Tree]
F = TypeVar("F", bound=StaticFunction)

WARM_UP_CALLS = 3  # eager calls before a capture, which let libraries allocate what they need
FEW_UPDATES = 20_000  # a compilation takes about 20 s and saves about 1 to 3 ms per update on two cores
MESSAGE_WIDTH = 300  # characters of a compiler's complaint


def choose_execution(name: str, device: torch.device, *, num_updates: float, is_compilable: bool) -> Execution:
    """Return what `experiment.compile` means here; `auto` compiles on a CPU when that pays, and captures on a GPU."""
    if name == "auto":
        if device.type == "cuda":
            return "captured"
        return "compiled" if num_updates >= FEW_UPDATES and is_compilable and missing_compiler() is None else "eager"
    if name == "captured" and device.type != "cuda":
        raise ConfigError("experiment.compile: captured needs a GPU (choices: auto, eager, compiled)")
    if name == "compiled":
        if not is_compilable:
            raise ConfigError("experiment.compile: compiled needs optimizers Adam or AdamW (choices: auto, eager)")
        if (lacking := missing_compiler()) is not None:
            raise ConfigError(f"experiment.compile: compiled needs {lacking} (choices: auto, eager)")
    return name  # type: ignore[return-value]


def missing_compiler() -> str | None:
    """Return what torch's compiler lacks on this machine, or None."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        return f"the C++ compiler {compiler!r}"
    headers = Path(sysconfig.get_paths()["include"], "Python.h")
    return None if headers.exists() else f"Python's headers ({headers})"


def keep_compiled() -> str | None:
    """Keep what was compiled in the user's cache: the next process needs seconds, not half a minute.

    Returns why that cannot be: torch then compiles into a temporary directory.
    """
    if "TORCHINDUCTOR_CACHE_DIR" in os.environ:
        return None
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "rl-lab", "compiled")
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f"compiled updates are not kept for the next run: {reason(error)}"
    if not os.access(cache, os.W_OK):
        return f"compiled updates are not kept for the next run: {cache} cannot be written"
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
    return None


def _say_nothing(*, message: str) -> None:
    """Take a warning of a run that has nobody to tell."""


class StaticSteps:
    """Wraps static functions by calling it; all of a run's functions run the same way.

    Args:
        execution: How they run.
        may_fall_back: Whether functions that cannot be compiled run eager, with a warning; else that is an error.
    """

    def __init__(self, execution: Execution = "eager", *, may_fall_back: bool = False) -> None:
        self.execution: Execution = execution
        self.warn: Callable[..., None] = _say_nothing  # gets a `message` of one line
        self.num_functions = 0
        self.first_call_s = 0.0  # what compiling or capturing took
        self._may_fall_back = may_fall_back
        self._has_compiled = False

    def __call__(self, function: F) -> F:
        """Return a function that does the same; how is decided at its first call, after any restore."""
        self.num_functions += 1
        ready: StaticFunction = function
        way: Execution | None = None  # that `ready` runs; the run's own may change when another cannot be compiled

        def run(*args: Tree) -> Tree:
            nonlocal ready, way
            if way == self.execution:
                return ready(*args)
            started = time.perf_counter()
            ready, result = self._first_call(function, args)
            way = self.execution
            self.first_call_s += time.perf_counter() - started
            return result

        return run  # type: ignore[return-value]

    def _first_call(self, function: StaticFunction, args: tuple[Tree, ...]) -> tuple[StaticFunction, Tree]:
        """Return the function as it will run, and what it returned."""
        if self.execution == "captured":
            captured = CapturedFunction(function)
            return captured, captured(*args)
        if self.execution == "compiled":
            try:
                compiled = self._compile(function)
                return compiled, compiled(*args)
            except (torch._dynamo.exc.TorchDynamoException, OSError) as error:  # before anything was computed
                self._give_up(error)
        return function, function(*args)

    def _compile(self, function: StaticFunction) -> StaticFunction:
        if not self._has_compiled:
            if (problem := keep_compiled()) is not None:
                self.warn(message=problem)
            torch._dynamo.reset()  # earlier runs of this process count towards its limit of graphs
            self._has_compiled = True
        torch._dynamo.config.trace_autograd_ops = True  # gradients are taken within the graph
        torch._inductor.config.fallback_random = True  # draw as eager code does
        torch._inductor.config.size_asserts = False  # shapes never change: 5 % of a small update
        return torch.compile(function, fullgraph=True, dynamic=False)

    def _give_up(self, error: Exception) -> None:
        """Run everything eager from now on, or raise where compiled was asked for."""
        said = shorten(f"{type(error).__name__}: {error}", MESSAGE_WIDTH)
        if not self._may_fall_back:
            raise LabError(f"experiment.compile: compiled failed (choices: auto, eager): {said}") from error
        self.execution = "eager"
        self.warn(message=f"updates run eager, they could not be compiled: {said}")

    def get_state(self) -> dict[str, Any]:
        """Return how the functions run."""
        return {"execution": self.execution}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Run them as the checkpoint's run did: only that is exact."""
        execution = state["execution"]
        if execution == "captured" and self.execution != "captured":
            raise CheckpointError(
                f"the checkpoint's updates ran captured, which experiment.compile={self.execution} does not"
            )
        if execution == "compiled" and (lacking := missing_compiler()) is not None:
            raise CheckpointError(f"the checkpoint's updates ran compiled, but {lacking} is missing")
        self.execution, self._may_fall_back = execution, False


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
        if self._calls <= WARM_UP_CALLS:
            return self._warm_up(args)
        if self._inputs is None:
            self._capture(args)
        else:
            for (path, held), (_, given) in zip(tree_leaves(self._inputs), tree_leaves(args), strict=True):
                if held.shape != given.shape:
                    raise LabError(
                        f"captured updates need batches of one shape: {path} was {list(held.shape)} and is now "
                        f"{list(given.shape)} (experiment.compile=eager takes both)"
                    )
                held.copy_(given, non_blocking=True)
        self._graph.replay()
        return tree_map(Tensor.clone, self._outputs)

    def _warm_up(self, args: tuple[Tree, ...]) -> Tree:
        """Run on a side stream, as a capture will."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            result = self._function(*args)
        torch.cuda.current_stream().wait_stream(self._stream)
        return result

    def _capture(self, args: tuple[Tree, ...]) -> None:
        self._inputs = tree_map(Tensor.clone, args)
        torch.cuda.synchronize()
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):  # the environment may step in another
            self._outputs = self._function(*self._inputs)
