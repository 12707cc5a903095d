"""Updates that run out of memory: begun again in smaller parts where the workflow can, else a line of advice."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rl_lab.core.buffer import Batch
from rl_lab.core.context import WorkflowContext
from rl_lab.core.errors import LabError
from rl_lab.core.phase import Phase
from rl_lab.core.workflow import Workflow
from rl_lab.tracking.tracker import Tracker

_REFUSED = "can't allocate memory"  # torch's words for the host's memory


class WithinMemory:
    """Calls update hooks.

    An update that was refused memory before it changed a parameter is begun again as it began, in more parts. How many
    is part of the workflow's state, so that a resume goes on alike.
    """

    def __init__(self, workflow: Workflow, context: WorkflowContext, tracker: Tracker) -> None:
        self._workflow, self._context, self._tracker = workflow, context, tracker
        self._can_retry = workflow.accumulates and context.ranks.size == 1  # other ranks would wait for this one
        self._parameters, self._statistics = list(workflow.parameters()), list(workflow.buffers())

    def __call__(self, hook: Callable[..., Any], *batch: Batch, phase: Phase) -> Any:
        """Return what the hook returns."""
        while True:
            begun = self._begun() if self._can_retry else None
            try:
                return hook(*batch, phase=phase)
            except (RuntimeError, MemoryError) as error:
                if not _is_shortage(error):
                    raise
                num_parts = None if begun is None else self._begin_again(*begun)
                if num_parts is None:
                    raise LabError(self._advice(phase, error)) from error
            text = f"an update ran out of memory: gradients of {num_parts} parts of a batch are added up from now on"
            self._tracker.event("less_memory", message=text, num_parts=num_parts, step=self._context.counters.env_steps)
            if self._context.device.type == "cuda":  # by now the error, which held the update's tensors, is gone
                torch.cuda.empty_cache()

    def _begun(self) -> tuple[int, list[Tensor], dict[str, Any], list[Tensor]]:
        statistics = [buffer.clone() for buffer in self._statistics]  # an update follows them before it steps
        return self._versions(), statistics, self._workflow.get_state(), _drawn_from()

    def _begin_again(
        self, versions: int, statistics: list[Tensor], state: dict[str, Any], rng: list[Tensor]
    ) -> int | None:
        """Be as the update began, and return in how many parts it can be taken now; None: it cannot."""
        if versions != self._versions():
            return None
        for buffer, before in zip(self._statistics, statistics, strict=True):
            buffer.copy_(before)
        self._workflow.set_state(state)
        torch.set_rng_state(rng[0])
        if rng[1:]:
            torch.cuda.set_rng_state_all(rng[1:])
        return self._workflow.split_further()

    def _versions(self) -> int:
        """Return how often all parameters have been written: half a step cannot be taken again."""
        return sum(parameter._version for parameter in self._parameters)

    def _advice(self, phase: Phase, error: BaseException) -> str:
        node = self._context.config.get("buffers", {}).get(phase.buffer or "") or {}
        size = f" (now {node['batch_size']})" if "batch_size" in node else ""
        said = re.split(r"\. (?:GPU|Error code)", str(error).rpartition("DefaultCPUAllocator: ")[2])[0]
        where = f"buffers.{phase.buffer}.batch_size{size}" if phase.buffer else "the sizes of its components"
        return f"phase {phase.name!r}: an update ran out of memory on {self._context.device} ({said}); lower {where}"


def _drawn_from() -> list[Tensor]:
    """Return the state of the streams that workflows draw from: torch's, and those of GPUs."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else ())]


def _is_shortage(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or _REFUSED in str(error)
