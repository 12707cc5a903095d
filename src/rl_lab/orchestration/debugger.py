"""The eyes of a debug run: anomaly detection, NaN of modules, sizes of weights and gradients, a profiler's trace."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function

from rl_lab.core.errors import NotFiniteError
from rl_lab.core.seeds import is_batched
from rl_lab.core.trees import tree_leaves
from rl_lab.orchestration.attendant import Attendant
from rl_lab.orchestration.module_statistics import ModuleStatistics

if TYPE_CHECKING:
    from rl_lab.orchestration.orchestrator import Orchestrator

GROUP = "debug"  # of metrics
TRACE = "trace.json.gz"  # in the run's directory
_TRACED_UPDATES, _TRACED_ACTIONS = 2, 100  # the trace ends with the first of them: a longer one takes long to open
_ANOMALY = re.compile(r"Function '(\w+)' returned nan values in its (\d+)th output")
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\w+)\n\s+(.+)')


class Debugger(Attendant):
    """Looks closely at a run, which computes the same as without: nothing random moves on, nothing is changed."""

    def __init__(self, orchestrator: Orchestrator) -> None:
        self._run = orchestrator
        self._statistics: ModuleStatistics | None = None
        self._profiler: profile | None = None
        self._updates = self._actions = 0
        self._heard = ""  # where the forward pass was whose gradient is NaN

    @contextmanager
    def closely(self) -> Iterator[None]:
        """Detect anomalies, watch all modules and trace the first updates."""
        run = self._run
        self._statistics = ModuleStatistics(run.workflow, run.context.optimizers)
        handles = [module.register_forward_hook(_checker(name)) for name, module in run.workflow.named_modules()]
        self._profiler = self._begin_trace()
        try:
            with warnings.catch_warnings(), _labelled(run.workflow, ["act", *run.workflow.hooks()]):
                self._listen()
                with torch.autograd.detect_anomaly(check_nan=True):
                    yield
        except RuntimeError as error:
            if (found := _ANOMALY.search(str(error))) is None:
                raise
            raise NotFiniteError(f"the gradient of {found[1]} is NaN{self._heard}") from error
        finally:
            self._end_trace()
            for handle in handles:
                handle.remove()

    def settle(self) -> None:
        """End the trace after enough actions."""
        self._actions += 1
        if self._actions >= _TRACED_ACTIONS:
            self._end_trace()

    def inspect(self) -> None:
        """Log sizes of weights, gradients and changes; end the trace after enough updates."""
        assert self._statistics is not None, "it goes around the loop"
        self._run.tracker.log(GROUP, self._statistics.measure())
        self._updates += 1
        if self._updates >= _TRACED_UPDATES:
            self._end_trace()

    def _listen(self) -> None:
        """Take what torch says of the operation whose gradient is NaN, in place of a page on the terminal."""
        show = warnings.showwarning

        def hear(message: Warning | str, *args: Any, **kwargs: Any) -> None:
            if str(message).startswith("Error detected in"):
                self._heard = _where(str(message))
            else:
                show(message, *args, **kwargs)

        warnings.filterwarnings("ignore", "Anomaly Detection has been enabled")
        warnings.filterwarnings("always", "Error detected in")
        warnings.showwarning = hear

    def _begin_trace(self) -> profile | None:
        if not self._run.context.ranks.is_first:
            return None
        activities = [ProfilerActivity.CPU]
        if self._run.context.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it says on stderr that it begins and ends
        profiler = profile(activities=activities)
        profiler.start()
        return profiler

    def _end_trace(self) -> None:
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        profiler.stop()
        path = self._run.tracker.run.path / TRACE
        profiler.export_chrome_trace(str(path))
        message = f"trace of {self._updates} updates: {path} (open it at chrome://tracing or ui.perfetto.dev)"
        self._run.tracker.event("trace", message=message, path=TRACE, updates=self._updates)


@contextmanager
def _labelled(workflow: nn.Module, names: list[str]) -> Iterator[None]:
    """Let calls of these methods have their names in the trace."""
    for name in names:
        setattr(workflow, name, record_function(name)(getattr(workflow, name)))
    try:
        yield
    finally:
        for name in names:
            delattr(workflow, name)


def _checker(name: str) -> Callable[[nn.Module, Any, Any], None]:
    """Return a hook that names the module whose output is NaN first; infinity may be meant, as of masked logits."""

    def check(module: nn.Module, inputs: Any, output: Any) -> None:
        if is_batched() or torch.jit.is_tracing():
            return
        leaves = [leaf for _, leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        if any(bool(leaf.detach().isnan().any()) for leaf in leaves):
            given = [leaf for _, leaf in tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
            is_given = any(bool(leaf.detach().isnan().any()) for leaf in given)
            whose = "was given NaN" if is_given else "puts out NaN"
            raise NotFiniteError(f"module {name or 'workflow'} ({type(module).__name__}) {whose}")

    return check


def _where(traceback: str) -> str:
    """Return the innermost line of a forward pass that is not torch's own."""
    frames = [frame for frame in _FRAME.findall(traceback) if "/torch/" not in frame[0]]
    if not frames:
        return ""
    file, line, function, code = frames[-1]
    return f", of `{code.strip()}` in {function} ({file}, line {line})"
