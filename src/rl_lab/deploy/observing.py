"""A policy that begins at the sensors: the environment's observer before the workflow, as one workflow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from rl_lab.core.context import WorkflowContext
from rl_lab.core.environment import Actions, Observation, State, Step, VectorEnv
from rl_lab.core.observer import Observer
from rl_lab.core.spaces import EnvSpec
from rl_lab.core.workflow import Carry, Extras, Workflow


class Observing(Workflow):
    """Decides by readings what a workflow decides by observations; histories are part of the carry.

    Args:
        workflow: What decides.
        observer: Of its environment.
        spec: Of the environment, as the workflow knows it: what it does not know is not observed.
    """

    def __init__(self, workflow: Workflow, observer: Observer, spec: EnvSpec) -> None:
        super().__init__()
        self.workflow, self.observer = workflow, observer
        self._known = set(spec.observation) if isinstance(spec.observation, Mapping) else None
        self.spec = replace(spec, observation=dict(observer.space), mirror=None)

    def initialize(self, context: WorkflowContext) -> None:
        """Do nothing: the workflow is bound already."""

    def initial_carry(self, num_envs: int) -> Carry:
        """Return what the observer and the policy keep."""
        own = self.workflow.initial_carry(num_envs)
        seen = self.observer.initial_carry(num_envs)
        return {"seen": seen} | ({} if own is None else {"policy": own})

    def act(
        self, obs: Observation, carry: Carry, *, is_first: Tensor, explore: bool, step: int
    ) -> tuple[Actions, Extras, Carry]:
        """Return the decision."""
        actions, carry = self.decide(obs, carry, is_first)
        return actions, {}, carry

    def decide(self, obs: Observation, carry: Carry, is_first: Tensor) -> tuple[Actions, Carry]:
        """Observe, and decide by that."""
        assert isinstance(obs, dict)
        seen, frames = self.observer(obs, carry["seen"], is_first)
        if self._known is not None:
            seen = {name: leaf for name, leaf in seen.items() if name in self._known}
        actions, own = self.workflow.decide(seen, carry.get("policy"), is_first)
        return actions, {"seen": frames} | ({} if own is None else {"policy": own})


class Readings(VectorEnv):
    """An environment that shows the readings which its observations are made of."""

    def __init__(self, env: VectorEnv, observer: Observer, spec: EnvSpec) -> None:
        self._env, self._observer = env, observer
        self.spec, self.num_envs, self.device = spec, env.num_envs, env.device

    def reset(self, seed: int) -> Observation:
        """Start anew."""
        return self._observer.readings(self._env.reset(seed))

    def step(self, actions: Actions) -> Step:
        """Step."""
        step, read = self._env.step(actions), self._observer.readings
        seen, final = read(step.observations), read(step.final_observations)
        return step._replace(observations=seen, final_observations=final)

    def get_state(self) -> State:
        """Return the environment's own state."""
        return self._env.get_state()

    def set_state(self, state: State) -> None:
        """Go on from it."""
        self._env.set_state(state)


def from_sensors(workflow: Workflow, spec: EnvSpec, env: VectorEnv) -> tuple[Workflow, EnvSpec, VectorEnv]:
    """Return policy, spec and environment that begin at the sensors, where the environment has an observer."""
    observer = env.observer()
    if observer is None:
        return workflow, spec, env
    observing = Observing(workflow, observer, spec)
    return observing, observing.spec, Readings(env, observer, observing.spec)
