"""The training loop: asks the scheduler what comes next, does it, counts, logs and saves. It knows no algorithm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from rl_lab.core.context import WorkflowContext
from rl_lab.core.errors import CheckpointError, LabError
from rl_lab.core.phase import COLLECT, EVALUATE, Phase
from rl_lab.core.seeding import global_rng_state, isolated_rng, set_global_rng_state
from rl_lab.core.workflow import CollectResult, HookInfo, Update, Workflow
from rl_lab.orchestration.agreement import Agreement
from rl_lab.orchestration.attendant import Attendant
from rl_lab.orchestration.cadence import CheckpointCadence
from rl_lab.orchestration.collector import Collector
from rl_lab.orchestration.evaluator import Evaluator
from rl_lab.orchestration.films import Films
from rl_lab.orchestration.finite_guard import CheckFinite, FiniteGuard
from rl_lab.orchestration.hand_off import Parts, ResumeMode, load_weights, whole_weights
from rl_lab.orchestration.optimizer_state import load_optimizers, optimizer_state
from rl_lab.orchestration.phase_scheduler import Action, PhaseScheduler
from rl_lab.orchestration.rescue import rescued
from rl_lab.orchestration.signals import Interrupted, stop_on_signals
from rl_lab.orchestration.static_step import StaticSteps
from rl_lab.orchestration.supervision import Companions
from rl_lab.orchestration.within_memory import WithinMemory
from rl_lab.tracking.checkpoint import CheckpointStore
from rl_lab.tracking.tracker import Tracker


class Orchestrator:
    """Runs a workflow through its phases and can stop and go on at any boundary between two actions."""

    def __init__(
        self,
        *,
        workflow: Workflow,
        context: WorkflowContext,
        scheduler: PhaseScheduler,
        collector: Collector,
        evaluator: Evaluator,
        tracker: Tracker,
        checkpoints: CheckpointStore,
        cadence: CheckpointCadence,
        static: StaticSteps | None = None,
        check_finite: CheckFinite = "rows",
        mixture: Companions | None = None,
        films: Films | None = None,
    ) -> None:
        self.workflow, self.context, self.scheduler = workflow, context, scheduler
        self.collector, self.evaluator, self.films = collector, evaluator, films
        self.tracker, self.checkpoints, self.cadence = tracker, checkpoints, cadence
        self.static, self.mixture = static or StaticSteps(), mixture
        self._within_memory = WithinMemory(workflow, context, tracker)
        self._guard = FiniteGuard(workflow, context, tracker, checkpoints, check_finite)
        self.counters, self._agreement = context.counters, Agreement(context.ranks)
        self.stop, self._asked = self._agreement.stop, self._agreement.heard
        self._hooks, self.attendant = workflow.hooks(), Attendant()  # replaced where alerts or a debug run ask for one
        self._new_best: float | None = None
        self._phase_name: str | None = None
        self._is_saved = self._starts_elsewhere = False  # newest checkpoint is of this point; state is another run's

    def run(self) -> None:
        """Run to the end of the last phase. Raises Interrupted, after a checkpoint, when it is asked to stop before."""
        self.tracker.open(self.scheduler.total_timesteps, self.counters)
        try:
            with self.attendant, self._guard, self.attendant.closely(), np.errstate(over="ignore", invalid="ignore"):
                self._run()
        except LabError as error:
            self.tracker.event("failed", reason=str(error), step=self.counters.env_steps)
            raise
        finally:
            self.tracker.close()

    def _run(self) -> None:
        if self._starts_elsewhere:  # what was taken from another run must not be lost before the first checkpoint
            self.save()
        with stop_on_signals(self._asked, echo_s=self._agreement.echo_s):
            self._film_if_due()  # it was stopped within the film
            while (action := self.scheduler.next_action()) is not None:
                self._perform(action)
                self._film_if_due()
                self._save_if_due()
        if not self._is_saved:
            self.save(is_final=True)
        self.scheduler.leave_if_paused()
        self.tracker.flush(self.counters, self.scheduler.current_phase().name, self._gauges)

    def _save_if_due(self) -> None:
        self.attendant.settle()
        is_due = self._new_best is not None or self.cadence.is_due(self.counters)
        if self._agreement.settle(is_due, self.counters, self.collector.episodes):
            self.save()
        if self.stop.signal is not None:
            raise Interrupted(self.stop.signal)

    def _perform(self, action: Action) -> None:
        phase = self.scheduler.current_phase()
        if phase.name != self._phase_name:
            self._phase_name = phase.name
            self.tracker.event("phase", name=phase.name, step=self.counters.env_steps)
        if action.hook == COLLECT:
            self._collect(action, phase)
        elif action.hook == EVALUATE:
            self._evaluate(action, phase)
        elif self._hooks[action.hook].is_update:
            self._update(action, phase)
        else:
            self._look(action, phase)
        self._is_saved = False

    def _write_due(self, action: Action, phase: Phase) -> None:
        """Write a row when one is due: of a rollout together with its update, and never of a part of a rollout."""
        if action.hook != COLLECT or not any(call.is_update for call in phase.hooks):
            self.tracker.write_due(self.counters, phase.name, self._gauges)

    def _gauges(self) -> dict[str, float]:
        """Return how every buffer stands."""
        buffers = self.context.buffers.items()
        return {f"buffer/{name}/{key}": value for name, buffer in buffers for key, value in buffer.statistics().items()}

    def _collect(self, action: Action, phase: Phase) -> None:
        own = self.workflow.collect_step(self.counters.env_steps, phase=phase)
        result = self._step_environment(action, phase) if own is None else own
        self.tracker.chain.add_steps(result.trajectory, self.counters.env_steps, result.steps)
        if result.trajectory is not None and phase.buffer is not None:
            self.context.buffers[phase.buffer].receive(result.trajectory, result.seen)
        self.tracker.log("collect", result.metrics)
        is_whole = result.vector_steps >= action.repeats
        if is_whole:  # what is summed over a rollout is the same, however it was cut
            self.tracker.log("collect", self.collector.drain_metrics())
            self._agreement.count(self.counters, self.collector.episodes)
        self.scheduler.advance(action, repeats=result.vector_steps, steps=result.steps)
        if is_whole:
            self._write_due(action, phase)

    def _step_environment(self, action: Action, phase: Phase) -> CollectResult:
        """Collect what the action asks for, or up to where a checkpoint is due or a stop is asked for."""
        env_steps, mixture = self.counters.env_steps, self.mixture
        until_due = self.cadence.steps_until_due(self.counters)
        limit = action.repeats if until_due is None else max(1, -(-until_due // self.collector.steps_at_once))
        policy = self.workflow if mixture is None else mixture.during(phase, env_steps)
        wanted, buffer = min(action.repeats, limit), self.context.buffers[phase.buffer] if phase.buffer else None
        with rescued(self.collector, mixture, buffer):
            result = self.collector.collect(policy, wanted, env_steps=env_steps, should_stop=self.stop)
        return result if mixture is None or result.trajectory is None else mixture.recorded(result)

    def _evaluate(self, action: Action, phase: Phase) -> None:
        best = self.evaluator.best
        self.tracker.check_finite()
        self.collector.settle()  # evaluation runs on global streams of its own
        with self.tracker.timer("evaluate"):
            metrics = self.evaluator.evaluate(self.workflow, step=self.counters.env_steps, should_stop=self._asked)
        if metrics is None:  # asked to stop: it begins anew after the resume
            return
        self.scheduler.advance(action)
        self.tracker.write("eval", metrics, self.counters, phase.name)
        self._write_due(action, phase)
        if self.evaluator.best != best:
            self._new_best = self.evaluator.best

    def _film_if_due(self) -> None:
        """Film the policy when it is time, and never within a rollout, whose steps may be cut in another way."""
        films, env_steps = self.films, self.counters.env_steps
        if films is not None and films.is_due(env_steps) and not self.scheduler.is_within_action:
            self.collector.settle()
            films.shoot(self.workflow, env_steps, self.tracker, self._asked)

    def _hook(self, action: Action) -> tuple[Callable[..., Any], HookInfo]:
        """Return the workflow's method that an action names, which was checked at start, and how it is called."""
        return getattr(self.workflow, action.hook), self._hooks[action.hook]

    def _update(self, action: Action, phase: Phase) -> None:
        hook, info = self._hook(action)
        buffer = self.context.buffers[phase.buffer or ""] if info.needs_batch else None
        if buffer is None:
            self.collector.settle()  # such a hook may borrow the random streams, as an evaluation does
        elif not self._agreement.is_ready(buffer):
            self._skip(action, phase)
            return
        with self.tracker.timer("update"):
            batch = () if buffer is None else (buffer.draw(self.workflow.num_rows(action.hook)),)
            if self.attendant.passes_over():  # and the batch goes by unused
                self.scheduler.advance(action, skipped=1)
                self._write_due(action, phase)
                return
            self._guard.begin(action.hook, phase, *batch)
            update = self._within_memory(hook, *batch, phase=phase)
            if buffer is not None and isinstance(update, Update):
                buffer.write_back(update.write_back)
        is_rollout = buffer is not None and buffer.is_on_policy
        self.scheduler.advance(action, updates=int(update is not None))
        if update is not None:  # else nothing was done yet
            self.tracker.log(info.group, update.metrics if isinstance(update, Update) else update)
            self.tracker.chain.add_update(self.workflow.held, self.counters, is_long=is_rollout)
            self.attendant.inspect()
        self._guard.end(is_rollout=is_rollout)
        self._write_due(action, phase)

    def _look(self, action: Action, phase: Phase) -> None:
        """Run a hook that changes nothing: on random streams of its own, with a row and a seed as an evaluation has."""
        hook, info = self._hook(action)
        buffer = self.context.buffers[phase.buffer or ""] if info.needs_batch else None
        if buffer is None or buffer.is_ready():
            seed = self.context.rng.seed(action.hook, self.counters.env_steps, self.counters.updates)
            was_training = self.workflow.training
            self.tracker.check_finite()
            self.workflow.eval()
            self.collector.settle()
            with self.tracker.timer("evaluate"), isolated_rng(seed), torch.no_grad():
                metrics = hook(phase=phase) if buffer is None else hook(buffer.peek(seed), phase=phase)
            self.workflow.train(was_training)
            self.tracker.write(info.group, metrics, self.counters, phase.name)
        elif phase.type != "online":
            holds = buffer.shortage()
            raise LabError(f"phase {phase.name!r}: {action.hook} finds nothing in buffer {phase.buffer!r} ({holds})")
        self.scheduler.advance(action)
        self._write_due(action, phase)

    def _skip(self, action: Action, phase: Phase) -> None:
        if phase.type == "offline":
            holds = self.context.buffers[phase.buffer or ""].shortage()
            why = f"buffer {phase.buffer!r} is not ready, nothing collects ({holds})"
            raise LabError(f"phase {phase.name!r} can never update: {why}")
        self.scheduler.advance(action, skipped=1)
        self._write_due(action, phase)

    def save(self, *, is_final: bool = False) -> None:
        """Write a checkpoint. One that cannot be written is reported and training goes on, except at the end."""
        self._guard.check()
        score, self._new_best = self._new_best, None
        self.cadence.mark(self.counters)
        phase, counters = self.scheduler.current_phase().name, self.counters.get_state()
        try:
            with self.tracker.timer("checkpoint"):
                path = self.checkpoints.save(self.get_state(), counters=counters, phase=phase, score=score)
        except CheckpointError as error:
            self.tracker.event("checkpoint_failed", reason=str(error), step=self.counters.env_steps)
            if is_final or self.stop():
                raise
        else:
            self._is_saved = True
            self.tracker.event("checkpoint", path=path.name, step=self.counters.env_steps, score=score)

    def get_state(self) -> dict[str, Any]:
        """Return everything a new process needs to go on to the bit."""
        return {
            "counters": self.counters.get_state(),
            "scheduler": self.scheduler.get_state(),
            "workflow": whole_weights(self.workflow),
            "workflow_state": self.workflow.get_state(),
            "static": self.static.get_state(),
            "optimizers": {name: optimizer_state(optimizer) for name, optimizer in self.context.optimizers.items()},
            "buffers": {name: buffer.get_state() for name, buffer in self.context.buffers.items()},
            "collector": self.collector.get_state(),
            "evaluator": self.evaluator.get_state(),
            "tracker": self.tracker.get_state(),
            "rng": global_rng_state(),
            **self.attendant.get_state(),
            **({} if self.mixture is None else {"teacher": self.mixture.get_state()}),
            **({} if self.films is None else {"films": self.films.get_state()}),
        }

    def restore(
        self, state: Mapping[str, Any], mode: ResumeMode = "exact", *, is_own: bool = True, parts: Parts = None
    ) -> None:
        """Go on from `state`; warm starts take weights, or weights and optimisers; a fork all but options and alerts.

        `is_own` says that the state is from a checkpoint of this very run, `parts` which modules' weights are taken.
        """
        self._starts_elsewhere = not is_own or mode != "exact"
        load_weights(self.workflow, state["workflow"], parts)
        if mode != "warm_start":
            load_optimizers(self.context.optimizers, state["optimizers"], with_options=mode == "exact")
        if mode not in ("exact", "fork"):
            return
        if self.mixture is not None:
            self.mixture.check_state(state["teacher"])
        self._is_saved = is_own
        self.counters.set_state(state["counters"])
        self.workflow.set_state(state["workflow_state"])
        self.static.set_state(state.get("static", {"execution": "eager"}))  # early checkpoints knew no other way
        for name, buffer in self.context.buffers.items():
            buffer.set_state(state["buffers"][name])
        self.collector.set_state(state["collector"])
        self.evaluator.set_state(state["evaluator"])
        self.tracker.set_state(state["tracker"])
        self.scheduler.set_state(state["scheduler"])
        if mode == "exact":  # a fork begins with the learning rates that it is given
            self.attendant.set_state(state)
        self._phase_name = self.scheduler.current_phase().name
        if self.films is not None:
            self.films.set_state(state.get("films"), self.counters.env_steps)
        self.cadence.mark(self.counters)
        set_global_rng_state(state["rng"])  # last, so that nothing draws in between
