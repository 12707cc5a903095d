"""Ends a run whose losses or state are no numbers any more, or whose environment failed, and saves what is needed."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple

from torch import Tensor
from torch.nn.utils import get_total_norm

from rl_lab.core.buffer import Batch
from rl_lab.core.context import WorkflowContext
from rl_lab.core.errors import CheckpointError, EnvironmentFault, NotFiniteAction, NotFiniteError
from rl_lab.core.phase import Phase
from rl_lab.core.seeding import global_rng_state
from rl_lab.core.trees import tree_leaves, tree_map
from rl_lab.core.workflow import Workflow
from rl_lab.orchestration.optimizer_state import optimizer_state
from rl_lab.orchestration.signals import Interrupted
from rl_lab.tracking.checkpoint import CheckpointStore
from rl_lab.tracking.tracker import Tracker

CheckFinite = Literal["rows", "every_update"]


class Begun(NamedTuple):
    """The newest update, as it began."""

    hook: str
    phase: str
    batch: Batch | None
    before: dict[str, Any] | None  # weights, optimisers and random streams; only where every update is checked


class FiniteGuard:
    """Looks at metrics whenever they are fetched, and at what was learned before it is saved; waits only then.

    As a context it turns the error of a poisoned run, whatever was raised, into one line that names the term, the last
    good checkpoint and the dump: a directory like that of a checkpoint, with the batch of the newest update. Where an
    environment fails, there is nothing wrong with what was learned, which is saved instead.

    Args:
        workflow: Whose weights and statistics are looked at.
        context: Its counters and optimisers, whose state is looked at too.
        tracker: Whose running means are looked at; the dump lies in its run, under `crash/`.
        checkpoints: The good ones.
        check: rows (when rows or checkpoints are written, and after updates from rollouts) or every_update.
    """

    def __init__(
        self,
        workflow: Workflow,
        context: WorkflowContext,
        tracker: Tracker,
        checkpoints: CheckpointStore,
        check: CheckFinite,
    ) -> None:
        self._workflow, self._context, self._tracker, self._checkpoints = workflow, context, tracker, checkpoints
        self._is_strict = check == "every_update"
        self._begun: Begun | None = None

    def begin(self, hook: str, phase: Phase, batch: Batch | None = None) -> None:
        """Remember what an update begins with."""
        self._begun = Begun(hook, phase.name, batch, self._state() if self._is_strict else None)

    def end(self, *, is_rollout: bool) -> None:
        """Check an update where every one is checked; one from a rollout always, which is not kept any longer."""
        if is_rollout or self._is_strict:
            self.check()
        if is_rollout and self._begun is not None:  # it is large, and the next one needs the room
            self._begun = self._begun._replace(batch=None)

    def check(self) -> None:
        """Raise NotFiniteError when a metric since the last row, or a number that was learned, is not finite."""
        self._tracker.check_finite()
        leaves = [(name, leaf) for name, leaf in tree_leaves(self._learned()) if _has_numbers(leaf)]
        for device in {leaf.device for _, leaf in leaves}:  # all in one number: to wait for each would take long
            if not get_total_norm([leaf for _, leaf in leaves if leaf.device == device], inf).isfinite():
                name = next(name for name, leaf in leaves if not leaf.isfinite().all())
                raise NotFiniteError(f"{name} holds NaN or infinity")

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if not isinstance(error, Exception) or isinstance(error, Interrupted):
            return
        names_term = isinstance(error, NotFiniteError) and not isinstance(error, NotFiniteAction)
        found = None if names_term else self._find()
        if found is None and isinstance(error, NotFiniteError):
            found = error
        if found is not None:
            raise NotFiniteError(self._report(str(found))) from error
        if isinstance(error, EnvironmentFault) and (place := self._save_learned(str(error))):
            raise EnvironmentFault(f"{error}; {place}") from error

    def _find(self) -> NotFiniteError | None:
        """Return what is not finite: NaN actions or probabilities show as errors of those who were given them."""
        try:
            self.check()
        except NotFiniteError as error:
            return error
        except RuntimeError:  # a device that failed answers nothing any more; what was raised first says why
            return None
        return None

    def _report(self, term: str) -> str:
        counters, saved = self._context.counters, self._checkpoints.entries()
        good = saved[-1].path if saved else None
        last = "no checkpoint was saved before" if good is None else f"last good checkpoint: {good}"
        return (
            f"{term} after update {counters.updates} (env step {counters.env_steps}); {last}; "
            f"{self._dump(term, None if good is None else good.name)}"
        )

    def _dump(self, term: str, checkpoint: str | None) -> str:
        """Write the dump and say where it is; one that cannot be written is no reason to hide what happened."""
        begun = self._begun._asdict() if self._begun is not None else {}
        counters, metrics = self._context.counters.get_state(), self._tracker.running_means()
        rng = global_rng_state()
        state = {"term": term, "metrics": metrics, "counters": counters, "checkpoint": checkpoint, "rng": rng, **begun}
        try:
            return f"dump: {self._write(state, begun.get('phase', ''))}"
        except (CheckpointError, TypeError) as error:
            return f"no dump: {error}"

    def _save_learned(self, fault: str) -> str:
        """Save weights and optimisers of a run whose environment failed, unless a checkpoint has them; say where.

        It is no checkpoint to resume from exactly: what the environment was doing is lost.
        """
        counters, saved = self._context.counters.get_state(), self._checkpoints.entries()
        if counters["updates"] == (saved[-1].counters["updates"] if saved else 0):
            return ""
        if self._workflow.shards is not None:  # to bring them together takes the other ranks, which know of no fault
            return "what was learned since the last checkpoint is lost: no process has all of its weights"
        try:
            path = self._write({**self._learned(), "counters": counters, "fault": fault}, "")
        except (CheckpointError, TypeError) as error:
            return f"what was learned since the last checkpoint could not be saved: {error}"
        return f"what was learned is in {path} (training.resume_path, with resume_mode=warm_start_optimizer)"

    def _write(self, state: Mapping[str, Any], phase: str) -> Path:
        """Write a directory like that of a checkpoint under `crash/`, in place of an earlier one; return it."""
        own = self._tracker.run.crash / self._context.ranks.folder
        store = CheckpointStore(own, keep_last=1, keep_best=0)
        return store.save(state, counters=self._context.counters.get_state(), phase=phase)

    def _learned(self) -> dict[str, Any]:
        """Return what updates change, under the names it has in a checkpoint."""
        return {
            "workflow": dict(self._workflow.state_dict()),
            "workflow_state": self._workflow.get_state(),
            "optimizers": {name: optimizer_state(optimizer) for name, optimizer in self._context.optimizers.items()},
        }

    def _state(self) -> dict[str, Any]:
        """Return copies of what an update depends on beside its batch."""
        state = {**self._learned(), "rng": global_rng_state()}
        return tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, state)


def _has_numbers(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.numel() > 0
