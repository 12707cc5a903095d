"""Actions from the learner, for policies that are too large for the actor: questions there, answers here.

The learner answers between two of its own actions, with the weights of that moment and on a random stream apart: what
it learns is the same as if nobody had asked. An actor asks for several actions at once (a chunk), and for the next
ones before it has done the last: so that a slow answer costs nothing as long as a chunk lasts.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from rl_lab.core.context import WorkflowContext
from rl_lab.core.environment import Actions, Observation
from rl_lab.core.operator import NotReady
from rl_lab.core.seeding import global_rng_state, seed_everything, set_global_rng_state
from rl_lab.core.trees import Tree, tree_map, tree_stack
from rl_lab.core.workflow import Carry, Extras, Workflow
from rl_lab.distributed.transport.interface import Answer, Receiver, Sender, TransportError
from rl_lab.distributed.transport.schema import Schema

_LOOK_S = 0.002
_GLANCE_S = 0.02  # between two looks at the operator while an answer is late


def question_schema(observation: Tree) -> Schema:
    """Return what a question looks like, for observations like this one [1, ...]."""
    return Schema({"observations": observation, "is_first": torch.zeros(1, dtype=torch.bool)})


def answer_schema(actions: Tree, chunk: int) -> Schema:
    """Return what an answer looks like: `chunk` actions like these [1, ...]."""
    return Schema(tree_stack([actions] * chunk))


class Inference:
    """The learner's side: acts for those who ask.

    Args:
        workflow: What learns and acts.
        receiver: Where questions come from.
        observation: An example [1, ...].
        actions: An example [1, ...].
        chunk: Actions of an answer.
        seed: Of the random stream.
        device: Of the workflow.
    """

    def __init__(
        self,
        workflow: Workflow,
        receiver: Receiver,
        observation: Tree,
        actions: Tree,
        *,
        chunk: int,
        seed: int,
        device: torch.device,
    ) -> None:
        self._workflow, self._receiver, self._chunk, self._device = workflow, receiver, chunk, device
        self._questions, self._answers = question_schema(observation), answer_schema(actions, chunk)
        self._seed: int | None = seed
        self._rng: dict[str, Any] = {}
        receiver.serve(self._questions.step_bytes)

    def answer(self, env_steps: int) -> None:
        """Answer all questions that wait; the random streams of the caller stay as they are."""
        waiting = self._receiver.questions()
        if not waiting:
            return
        outside = global_rng_state()
        self._enter()
        try:
            with torch.inference_mode():
                for question in waiting:
                    asked = self._questions.decode(question.payload)
                    question.answer(self._answers.encode(self._act(asked, env_steps)))
        finally:
            self._rng = global_rng_state()
            set_global_rng_state(outside)

    def _enter(self) -> None:
        if self._seed is not None:
            seed_everything(self._seed)
            self._seed = None
        else:
            set_global_rng_state(self._rng)

    def _act(self, asked: Mapping[str, Any], env_steps: int) -> Tree:
        """Return the next actions of an actor; all are decided from what it sees now.

        Each question begins a new plan: what was done of the last one, and by whom, is known to the actor alone.
        """
        obs = tree_map(lambda leaf: leaf.to(self._device), asked["observations"])
        is_first, carry = torch.ones_like(asked["is_first"], device=self._device), self._workflow.initial_carry(1)
        chosen = []
        for _ in range(self._chunk):
            actions, _, carry = self._workflow.act(obs, carry, is_first=is_first, explore=True, step=env_steps)
            chosen.append(tree_map(lambda leaf: leaf.cpu().clone(), actions))
            is_first = torch.zeros_like(is_first)
        return tree_stack(chosen)


class ServedPolicy(Workflow):
    """The actor's side: what the learner says, as a workflow without weights.

    When an answer is late nothing is done (`NotReady`): the robot holds, and it is asked for again. An operator who
    acts need not know what the policy would do: then nothing is asked, and nobody waits.

    Args:
        observation: An example [1, ...].
        actions: An example [1, ...].
        chunk: Actions of an answer.
        prefetch: Actions that are left when the next ones are asked for.
        deadline_s: How long an answer is waited for when there is nothing left to do.
        imitates: As of the workflow that learns.
    """

    def __init__(
        self, observation: Tree, actions: Tree, *, chunk: int, prefetch: int, deadline_s: float, imitates: bool
    ) -> None:
        super().__init__()
        self.imitates = imitates
        self._questions, self._answers = question_schema(observation), answer_schema(actions, chunk)
        self._example, self._prefetch, self._deadline_s = actions, prefetch, deadline_s
        self._sender: Sender | None = None
        self._waiting: Answer | None = None
        self._asked = b""  # the question that waits
        self._steps_since = 0  # steps since the question that waits
        self._left: deque[Actions] = deque()
        self._proposed: Actions = actions
        self._is_led, self._is_wanted = False, _never
        self.num_missed = 0

    def beside(self, *, is_led: bool, is_wanted: Callable[[], bool]) -> None:
        """Hear before each step whether an operator does it; `is_wanted` is asked while an answer is late."""
        self._is_led, self._is_wanted = is_led, is_wanted

    def connect(self, sender: Sender) -> None:
        """Ask through this end from now on."""
        self._sender = sender

    def initialize(self, context: WorkflowContext) -> None:
        """Nothing is learned here."""

    def act(
        self, obs: Observation, carry: Carry, *, is_first: Tensor, explore: bool, step: int
    ) -> tuple[Actions, Extras, Carry]:
        """Return the next action that the learner chose; raises NotReady when there is none in time."""
        if self._sender is None or self._is_led:  # only the shape of a step is asked for, or an operator acts
            self._forget()
            return self._proposed, {}, carry
        if bool(is_first.all()) and not (self._waiting is not None and self._question(obs, is_first) == self._asked):
            self._forget()  # unless this step is asked for again, because its answer was late
        if not self._left:
            self._wait(obs, is_first)
        if len(self._left) <= self._prefetch and self._waiting is None:
            self._ask(obs, is_first)
        self._proposed = self._left.popleft()
        self._steps_since += 1
        return self._proposed, {}, carry

    def took(self, carry: Carry, actions: Actions) -> Carry:
        """Drop the rest of a chunk when somebody else has acted."""
        same = tree_map(lambda a, b: torch.equal(a.cpu(), b.cpu()), actions, self._proposed)
        if not (all(same.values()) if isinstance(same, dict) else same):
            self._forget()
        return carry

    def _forget(self) -> None:
        """Have no plan, and nothing to say."""
        self._left.clear()
        self._waiting, self._proposed = None, self._example

    def _question(self, obs: Observation, is_first: Tensor) -> bytes:
        return self._questions.encode({"observations": obs, "is_first": is_first})

    def _ask(self, obs: Observation, is_first: Tensor) -> None:
        assert self._sender is not None
        self._asked = self._question(obs, is_first)
        lasting = max(self._deadline_s, 10.0)  # an answer that is late for one step is in time for the next
        self._waiting, self._steps_since = self._sender.ask(self._asked, lasting), 0

    def _wait(self, obs: Observation, is_first: Tensor) -> None:
        """Wait for actions; those for steps that have passed since the question are left out."""

        def has_come() -> bool:
            if self._waiting is None:  # there was no learner to ask
                self._ask(obs, is_first)
            return self._waiting is not None and self._waiting.done()

        has_answer = self._waited(has_come)
        payload = self._waiting.payload() if has_answer and self._waiting is not None else None
        self._waiting = None if has_answer else self._waiting
        if payload is None:
            self.num_missed += 1
            raise NotReady
        self._left.extend(self._decoded(payload)[self._steps_since :])

    def _waited(self, has_come: Callable[[], bool]) -> bool:
        """Return whether the answer came before the deadline; an operator who wants to act ends the wait."""
        end = time.monotonic() + self._deadline_s
        while not _within(min(_GLANCE_S, end - time.monotonic()), has_come):
            if self._is_wanted():
                raise NotReady
            if time.monotonic() >= end:
                return False
        return True

    def _decoded(self, payload: bytes) -> list[Actions]:
        try:
            actions = self._answers.decode(payload)
        except TransportError as error:
            raise TransportError(f"the learner's actions do not fit this robot: {error}") from error
        return [tree_map(lambda leaf, i=i: leaf[i], actions) for i in range(len(_first_leaf(actions)))]


def _within(seconds: float, look: Callable[[], bool]) -> bool:
    """Return whether `look` became true in time."""
    end = time.monotonic() + seconds
    while not look():
        if time.monotonic() >= end:
            return False
        time.sleep(_LOOK_S)
    return True


def _never() -> bool:
    return False


def _first_leaf(tree: Actions) -> Tensor:
    return next(iter(tree.values())) if isinstance(tree, dict) else tree
