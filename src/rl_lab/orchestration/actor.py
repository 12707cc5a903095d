"""The control loop beside the robot: the policy acts with the newest weights, and every step is recorded.

It never waits for the learner to be there. Without one it goes on with the last weights that it has, and records.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from rl_lab.core.context import Counters
from rl_lab.core.errors import CheckpointError
from rl_lab.core.phase import Phase
from rl_lab.core.trees import tree_map
from rl_lab.core.workflow import BehaviourPolicy, CollectResult, Workflow
from rl_lab.distributed.transport.interface import NoRoom, Sender, TransportError, Weights
from rl_lab.orchestration.bulletin import Bulletin, unpack
from rl_lab.orchestration.collector import Collector
from rl_lab.orchestration.hand_off import load_broadcast, load_parts, load_weights
from rl_lab.orchestration.notes import packed_note
from rl_lab.orchestration.serving import ServedPolicy
from rl_lab.orchestration.streams import PHASE, name_of
from rl_lab.orchestration.supervision import Companions, Supervision

_ROOM_S = 0.05  # how long a full spool may keep the robot waiting before it holds
_LOOK_S, _REPORT_S = 0.02, 10.0
logger = logging.getLogger(__name__)


class Actor:
    """Steps an environment with a workflow whose weights come from a learner.

    A phase of the run begins for an actor with its next episode. In a phase that collects nothing it waits.

    Args:
        workflow: What acts; it does not learn here.
        companions: Teacher and operator, if there are any.
        collector: Of the robot.
        sender: To the learner.
        phases: Of the run, which the learner goes through.
        counters: Of the run, as far as this actor knows.
        name: Of this actor.
        publish: Modules whose weights come; None: what the workflow broadcasts.
        max_lead: Steps that it may be ahead of a learner that is there.
        tells: Whether who watched a step and when it was taken go with it.
    """

    def __init__(
        self,
        *,
        workflow: Workflow,
        companions: Companions | None,
        collector: Collector,
        sender: Sender,
        phases: Sequence[Phase],
        counters: Counters,
        name: str,
        publish: Sequence[str] | None = None,
        max_lead: int | None = None,
        tells: bool = True,
    ) -> None:
        self.workflow, self.collector, self.sender = workflow, collector, sender
        self._companions, self._phases, self._counters = companions, tuple(phases), counters
        self._stream, self._publish, self._max_lead = name_of(name, sender.run), publish, max_lead
        self._tells = tells
        self.told, self.version = Bulletin(), 0
        self._begun = sender.status().acknowledged  # by learners of earlier processes, perhaps of other runs
        self._phase = 0  # of the episode that runs
        self._reported = time.monotonic()
        self._is_holding = False  # while it waits
        self._unsent: dict[str, Any] | None = None  # the step in hand: taken, and not recorded yet
        self.num_steps = 0

    def run(self, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Act until the learner says that the run is over, or a stop is asked for; what is recorded stays."""
        while not should_stop() and not self.told.is_over:
            if not self.step():
                time.sleep(_LOOK_S)
            self._report()

    def step(self) -> bool:
        """Take and record one control step; return whether there was one to take."""
        self._refresh()  # first: the learner may say that it is over while a step waits for room
        if self._unsent is not None:
            return self._record(self._unsent)
        if self._must_wait():
            return self._hold()
        lead, phase = self._lead(), self._phases[self._phase]
        self._counters.env_steps = env_steps = self.told.env_steps + lead
        policy: BehaviourPolicy = self.workflow
        if self._companions is not None:
            policy = self._companions.during(phase, env_steps)
        result = self.collector.collect(policy, 1, env_steps=env_steps, should_stop=lambda: True)
        if result.trajectory is None:  # an operator pauses, or an answer is late
            return self._hold()
        self._is_holding = False
        result = result if self._companions is None else self._companions.recorded(result)
        return self._record(sent_step(result, self._phase, tells=self._tells))

    def get_state(self) -> dict[str, Any]:
        """Return where it stands, for an actor that lives in the learner's process."""
        told = self.told
        return {
            "collector": self.collector.get_state(),
            "weights": {name: tensor.clone() for name, tensor in self.workflow.state_dict().items()},
            "told": [told.env_steps, told.phase, told.is_over, dict(told.taken)],
            "phase": self._phase,
            "companions": {} if self._companions is None else self._companions.get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`."""
        self.collector.set_state(state["collector"])
        load_weights(self.workflow, state["weights"])
        self.told, self._phase = Bulletin(*state["told"]), state["phase"]
        if self._companions is not None:
            self._companions.check_state(state["companions"])

    def close(self) -> None:
        """Stop sending and let go of the robot; what the learner does not have stays in the spool."""
        with ExitStack() as closing:  # the last first, all of them whatever fails
            if isinstance(self._companions, Supervision):
                closing.callback(self._companions.close)
            closing.callback(self.collector.close)
            closing.callback(self.sender.close)
            self._record_last()

    def _record_last(self) -> None:
        """Record the step in hand if there is one, once."""
        step, self._unsent = self._unsent, None
        try:
            if step is not None:
                self.sender.send(step, 0.0, is_last=True)
        except NoRoom as error:
            logger.error("the last step is lost: %s", error)
        except TransportError as error:  # it says whether the step was recorded
            logger.error("the last step: %s", error)

    def _record(self, step: dict[str, Any]) -> bool:
        """Record a step and return whether it was; while there is no room the robot holds, with the step in hand."""
        self._unsent = None
        try:
            self.sender.send(step, _ROOM_S)
        except NoRoom as error:
            if not self._is_holding:
                logger.warning("the robot holds until there is room: %s", error)
            self._unsent = step
            return self._hold()
        self._is_holding = False
        self.num_steps += 1
        return True

    def _refresh(self) -> None:
        """Take the newest weights, and begin a new phase with a new episode."""
        if (newest := self.sender.newest_weights()) is not None:
            self._load(newest)
        if self.collector.is_between_episodes:
            self._phase = min(self.told.phase, len(self._phases) - 1)

    def _load(self, newest: Weights) -> None:
        weights, told = unpack(newest.tensors)
        try:
            whole = [name for name in self.workflow.state_dict() if "." in name]  # of a learner that took it over
            if self._publish is None and weights.keys() == set(whole) != self.workflow.broadcast().keys():
                load_parts(self.workflow, weights, list(dict.fromkeys(name.split(".")[0] for name in whole)))
            elif self._publish is None:
                load_broadcast(self.workflow, weights)
            else:
                load_parts(self.workflow, weights, self._publish, key="transport.publish")
        except CheckpointError as error:
            if self.version == 0:
                raise
            logger.warning("weights %d are not used: %s", newest.version, error)
            return
        if newest.is_stored and told.is_over:  # another run's, or this one's before it was extended
            told = Bulletin()
        self.told, self.version = told, newest.version

    def _lead(self) -> int:
        """Return how many steps were recorded that the learner has not taken, as far as is known."""
        return max(0, self.sender.status().next_seq - self.told.taken.get(self._stream, self._begun))

    def _must_wait(self) -> bool:
        if self.collector.is_between_episodes and self._phases[self._phase].type != "online":
            return True
        is_ahead = self._max_lead is not None and self._lead() >= self._max_lead
        return is_ahead and self.sender.status().is_connected

    def _hold(self) -> bool:
        """Let the robot stand still when a wait begins; its last command may be a speed. There is no step to take."""
        if not self._is_holding:
            self.collector.env.instruct("hold")
            self._is_holding = True
        return False

    def _report(self) -> None:
        if time.monotonic() - self._reported < _REPORT_S:
            return
        self._reported, status = time.monotonic(), self.sender.status()
        there = "connected" if status.is_connected else f"no learner ({status.error})"
        waiting = status.next_seq - status.acknowledged
        missed = f", {self.workflow.num_missed} answers late" if isinstance(self.workflow, ServedPolicy) else ""
        logger.info("step %d, weights %d, %d not sent, %s%s", status.next_seq, self.version, waiting, there, missed)


def sent_step(result: CollectResult, phase: int, *, tells: bool) -> dict[str, Any]:
    """Return the one step of a trajectory [1, 1, ...] as it is sent: [1, ...], with its phase, and who and when."""
    step: dict[str, Any] = tree_map(lambda leaf: leaf[0].cpu(), result.trajectory)
    return {**step, PHASE: torch.tensor([phase]), **(packed_note(step, result.seen) if tells else {})}
