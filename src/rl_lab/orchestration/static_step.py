"""How a workflow's update functions run: eager, compiled as one graph, or captured as one CUDA graph.

A static function takes and returns trees of tensors of fixed shapes, never waits for the device, and changes parameters
and optimiser state in place. One with long loops over time is too much for a single compilation: it names the parts
that are worth it, such as the steps of its loops, and those are compiled apart, also within a capture. How functions
run is part of the run: a checkpoint says it, and a resume keeps to it.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal, TypeVar

import torch

from rl_lab.core.durable import reason
from rl_lab.core.errors import CheckpointError, ConfigError, LabError
from rl_lab.core.seeds import is_batched
from rl_lab.core.trees import Tree
from rl_lab.orchestration.captured_function import CapturedFunction, StaticFunction
from rl_lab.orchestration.signals import ChildShield

Execution = Literal["eager", "compiled", "captured"]
Products = Literal["torch", "onednn"]
F = TypeVar("F", bound=StaticFunction)

FEW_UPDATES = 20_000  # a compilation takes about 20 s and saves about 1 to 3 ms per update on two cores
FEW_LONG_UPDATES = 2_000  # those of updates in parts take about 40 s and save 50 ms and more
MOST_GRAPHS = 64  # of one function: parts of many shapes, with and without gradients
UNCOMPILABLE = (torch._dynamo.exc.TorchDynamoException, OSError)  # what compiling may raise
CHATTER = (  # of torch, about what is meant to be so
    "The .grad attribute of a Tensor that is not a leaf",
    "\\s*Online softmax is disabled",
    "TensorFloat32 tensor cores",
    "torch.searchsorted\\(\\): input value tensor is non-contiguous",
    "The AccumulateGrad node's stream does not match",  # a capture has its own, and waits for others by itself
)
CPU_INFO = Path("/proc/cpuinfo")
MESSAGE_WIDTH = 300  # characters of a compiler's complaint


def choose_execution(name: str, device: torch.device, *, num_updates: float, has_parts: bool) -> Execution:
    """Return what `experiment.compile` means here; `auto` compiles on a CPU when that pays, and captures on a GPU."""
    if name == "auto":
        if device.type == "cuda":
            return "captured"
        pays = num_updates >= (FEW_LONG_UPDATES if has_parts else FEW_UPDATES)
        return "compiled" if pays and missing_compiler() is None else "eager"
    if name == "captured" and device.type != "cuda":
        raise ConfigError("experiment.compile: captured needs a GPU (choices: auto, eager, compiled)")
    if name == "compiled" and (lacking := missing_compiler()) is not None:
        raise ConfigError(f"experiment.compile: compiled needs {lacking} (choices: auto, eager)")
    return name  # type: ignore[return-value]


def choose_products() -> Products:
    """Return the library of compiled matrix products: torch's (MKL) has AVX-512 for Intel's processors alone."""
    has_both = torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available()
    is_wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return "onednn" if has_both and is_wide and not _is_intel() else "torch"


def _is_intel() -> bool:
    return not CPU_INFO.is_file() or "GenuineIntel" in CPU_INFO.read_text()


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
        autocast: Makes the precision of matrix products; None: it is that of the parameters.
    """

    def __init__(
        self,
        execution: Execution = "eager",
        *,
        may_fall_back: bool = False,
        autocast: Callable[[], torch.autocast] | None = None,
    ) -> None:
        self.execution: Execution = execution
        self.warn: Callable[..., None] = _say_nothing  # gets a `message` of one line
        self.num_functions = self.num_parts = 0
        self.first_call_s = 0.0  # what compiling or capturing took
        self._may_fall_back, self._autocast = may_fall_back, autocast
        self._has_compiled, self._generation = False, 0
        self._products = choose_products()
        self._fuses: bool | None = None  # whether parts are compiled; None: no part was called yet

    def __call__(self, function: F) -> F:
        """Return a function that does the same; how is decided at its first call, after any restore."""
        self.num_functions += 1
        given = self._in_precision(function)
        ready: StaticFunction = given
        made: tuple[Execution, int] | None = None  # how `ready` runs: the run's own way may change, or be made anew

        def run(*args: Tree) -> Tree:
            nonlocal ready, made
            if made == (self.execution, self._generation):
                return ready(*args)
            started = time.perf_counter()
            ready, way, result = self._first_call(given, args)
            made = (way, self._generation)
            self.first_call_s += time.perf_counter() - started
            return result

        return run  # type: ignore[return-value]

    def _in_precision(self, function: StaticFunction) -> StaticFunction:
        """Return the function with matrix products in the run's precision."""
        if (autocast := self._autocast) is None:
            return function

        def run(*args: Tree) -> Tree:
            with autocast():
                return function(*args)

        return run

    def fuse(self, function: F) -> F:
        """Return a part of static functions that is compiled apart, where anything is; they are not compiled whole."""
        self.num_parts += 1
        compiled: StaticFunction | None = None

        def run(*args: Tree) -> Tree:
            nonlocal compiled
            if self.execution == "eager" or is_batched() or not self._can_fuse():
                return function(*args)
            compiled = compiled or self._compile(function)
            try:
                return compiled(*args)
            except UNCOMPILABLE as error:
                self._give_up(error)
                return function(*args)

        return run  # type: ignore[return-value]

    def _can_fuse(self) -> bool:
        """Return whether parts are compiled; a captured run of a machine without a compiler does without."""
        if self._fuses is None:
            lacking = missing_compiler()
            if lacking is not None:
                self.warn(message=f"parts of updates are not compiled: {lacking} is missing")
            self._fuses = lacking is None
        return self._fuses

    def _first_call(self, function: StaticFunction, args: tuple[Tree, ...]) -> tuple[StaticFunction, Execution, Tree]:
        """Return the function as it will run, how that is, and what it returned."""
        if self.execution == "captured":
            _hush()
            captured = CapturedFunction(function)
            return captured, "captured", captured(*args)
        if self.execution == "compiled" and not self.num_parts:
            try:
                compiled = self._compile(function)
                return compiled, "compiled", compiled(*args)
            except UNCOMPILABLE as error:  # before anything was computed
                self._give_up(error)
        result = function(*args)  # which may find that its parts cannot be compiled
        return function, self.execution, result

    def _compile(self, function: StaticFunction) -> StaticFunction:
        if not self._has_compiled:
            if (problem := keep_compiled()) is not None:
                self.warn(message=problem)
            torch._dynamo.reset()  # earlier runs of this process count towards its limit of graphs
            _shield_compilers()
            _hush()
            self._has_compiled = True
        torch._dynamo.config.trace_autograd_ops = True  # gradients are taken within the graph
        torch._inductor.config.fallback_random = True  # draw as eager code does
        torch._inductor.config.size_asserts = False  # shapes never change: 5 % of a small update
        torch._dynamo.config.recompile_limit = MOST_GRAPHS
        return torch.compile(function, fullgraph=True, dynamic=False, options=self._options())

    def _options(self) -> dict[str, Any]:
        if self._products == "torch":
            return {}
        from rl_lab.orchestration.onednn_products import OneDnnProducts

        return {"post_grad_custom_post_pass": OneDnnProducts()}

    def _give_up(self, error: Exception) -> None:
        """Compile nothing from now on, or raise where compiled was asked for; what is captured stays so."""
        said = shorten(f"{type(error).__name__}: {error}", MESSAGE_WIDTH)
        if not self._may_fall_back:
            raise LabError(f"experiment.compile: compiling failed (choices: auto, eager): {said}") from error
        self._fuses = False
        self.execution = "captured" if self.execution == "captured" else "eager"
        self.warn(message=f"updates run {self.execution}, they could not be compiled: {said}")

    def renew(self) -> None:
        """Capture functions anew at their next call: a number that they hold, such as a learning rate, has changed."""
        self._generation += self.execution == "captured"  # compilers notice it by themselves

    def get_state(self) -> dict[str, Any]:
        """Return how the functions run, whether parts of them are compiled, and whose matrix products they have."""
        return {"execution": self.execution, "fuses": self._fuses, "products": self._products}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Run them as the checkpoint's run did: only that is exact."""
        execution = state["execution"]
        if execution == "captured" and self.execution != "captured":
            raise CheckpointError(
                f"the checkpoint's updates ran captured, which experiment.compile={self.execution} does not"
            )
        fuses = state.get("fuses", False)  # None: not decided yet; captured runs of early checkpoints compiled nothing
        if (execution == "compiled" or fuses) and (lacking := missing_compiler()) is not None:
            raise CheckpointError(f"the checkpoint's updates ran compiled, but {lacking} is missing")
        products = state.get("products", "torch")  # early checkpoints knew no others
        if products == "onednn" and not torch.backends.mkldnn.is_available():
            raise CheckpointError("the checkpoint's updates took matrix products of oneDNN, which this torch lacks")
        self.execution, self._fuses, self._products, self._may_fall_back = execution, fuses, products, False


def _shield_compilers() -> None:
    """Who stops a run must not decide how its updates are computed by killing a compiler."""
    shield, compilations = ChildShield(), torch._dynamo.callback.callback_handler
    compilations.register_start_callback(lambda _: shield.begin())
    compilations.register_end_callback(lambda _: shield.end())


def _hush() -> None:
    for message in CHATTER:
        warnings.filterwarnings("ignore", message)
