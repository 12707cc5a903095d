"""The contract of an algorithm: how to act, and how a batch becomes a gradient step. No loop, no input or output."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, NamedTuple, Protocol, TypeVar, overload

from torch import Tensor, nn

from rl_lab.core.buffer import BatchKind, Trajectory, Witness
from rl_lab.core.context import WorkflowContext
from rl_lab.core.environment import Actions, Observation
from rl_lab.core.metrics import Metrics
from rl_lab.core.phase import Phase
from rl_lab.core.shards import Shards

Extras = dict[str, Any]  # recorded in the trajectory beside the action, leading dimension num_envs
Carry = Any  # recurrent state: a tree of tensors with leading dimension num_envs, or None

ALL_STEPS = 1 << 62  # env steps after which nothing is on its way any more: warm-up, schedules

F = TypeVar("F", bound=Callable[..., Any])


class HookInfo(NamedTuple):
    """How the orchestrator calls a hook."""

    needs_batch: bool  # called with a batch of the phase's buffer
    group: str  # metric prefix
    is_update: bool = True  # else it only looks: nothing learns from it, nothing random moves on, nothing is counted


@dataclass
class CollectResult:
    """What collecting brought."""

    steps: int  # env steps of each agent: vector steps times its environments
    vector_steps: int = 1
    trajectory: Trajectory | None = None  # None: nothing for the buffer
    metrics: dict[str, Any] = field(default_factory=dict)
    seen: Witness | None = None  # of the trajectory's steps


class Update(NamedTuple):
    """An update's metrics together with what goes back into the buffer."""

    metrics: Metrics
    write_back: Mapping[str, Tensor]


@overload
def hook(function: F) -> F: ...
@overload
def hook(*, batch: bool = True, group: str = "train", is_update: bool = True) -> Callable[[F], F]: ...
def hook(function: Any = None, *, batch: bool = True, group: str = "train", is_update: bool = True) -> Any:
    """Make a workflow method schedulable by its name in `training.phases[*].workflow_hooks`.

    It returns metrics or an `Update`; None says that nothing was done yet, and then nothing is counted.
    """

    def mark(method: Any) -> Any:
        method.__hook__ = HookInfo(batch, group, is_update)
        return method

    return mark if function is None else mark(function)


class BehaviourPolicy(Protocol):
    """What environments are stepped with: a workflow, or a workflow beside its teacher."""

    def initial_carry(self, num_envs: int) -> Carry:
        """Return the recurrent state at an episode's start."""

    def act(
        self, obs: Observation, carry: Carry, *, is_first: Tensor, explore: bool, step: int
    ) -> tuple[Actions, Extras, Carry]:
        """Return actions, what to record beside them, and the next carry."""


class Workflow(nn.Module):
    """One algorithm in one file. Modules and optimisers are checkpointed by themselves, the rest by `get_state`."""

    batches_seeds = False  # whether it can train several agents as one (`context.seeds`)
    reduces_over_ranks = False  # whether several processes can train it as one (`context.ranks`)
    accumulates = False  # whether it can add up the gradients of parts of a batch (`split_further`)
    imitates = False  # whether it learns what to do from `actions`: beside a teacher these are then the teacher's

    @abstractmethod
    def initialize(self, context: WorkflowContext) -> None:
        """Bind components and build optimisers. Called once, before the first phase and before a restore."""

    def initial_carry(self, num_envs: int) -> Carry:
        """Return the recurrent state at an episode's start."""
        return None

    @abstractmethod
    def act(
        self, obs: Observation, carry: Carry, *, is_first: Tensor, explore: bool, step: int
    ) -> tuple[Actions, Extras, Carry]:
        """Return actions, what to record beside them, and the next carry. Called without gradients."""

    def decide(self, obs: Observation, carry: Carry, is_first: Tensor) -> tuple[Actions, Carry]:
        """Return the actions that leave the lab with an exported policy, and the next carry.

        Exporting records the tensor operations of one call: what depends on their values may not branch.
        """
        actions, _, carry = self.act(obs, carry, is_first=is_first, explore=False, step=ALL_STEPS)
        return actions, carry

    def took(self, carry: Carry, actions: Actions) -> Carry:
        """Return the carry when `actions` were taken instead of what `act` said; for those that remember actions."""
        return carry

    def collect_step(self, step: int, *, phase: Phase) -> CollectResult | None:
        """Bring data in another way than by stepping the environment with `act`; None leaves it to the Collector."""
        return None

    @property
    def batch_kinds(self) -> tuple[BatchKind, ...]:
        """Return what it can learn from, once it is initialised; nothing: that is not said."""
        return ()

    @classmethod
    def hooks(cls) -> dict[str, HookInfo]:
        """Return the schedulable methods in the order of their definition, base classes first."""
        found: dict[str, HookInfo] = {}
        for base in reversed(cls.__mro__):
            for name, member in vars(base).items():
                if isinstance(member, FunctionType) and "__hook__" in vars(member):
                    found[name] = vars(member)["__hook__"]
        return found

    def num_rows(self, hook: str) -> int | None:
        """Return how many single rows of its buffer an update reads; None: batches as the buffer makes them."""
        return None

    def broadcast(self) -> dict[str, Tensor]:
        """Return the tensors that an actor built from the same config needs: all, unless most of them never change."""
        return dict(self.state_dict())

    def receive(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what `broadcast` returned elsewhere; names and shapes have been compared."""
        self.load_state_dict(tensors)

    @property
    def shards(self) -> Shards | None:
        """Return the part of the weights that this rank holds; None: it holds them all."""
        return None

    @property
    def held(self) -> nn.Module:
        """Return the parameters that this rank holds: its own, or its part of them."""
        return self if self.shards is None else nn.ParameterList(self.shards.parameters)

    def whole(self) -> AbstractContextManager[None]:
        """Return a context that all ranks enter together, so that sharded weights act and are put out whole."""
        return nullcontext() if self.shards is None else self.shards.whole()

    def split_further(self) -> int | None:
        """Take gradients of more and smaller parts of a batch from now on; return how many, None: there are no more."""
        return None

    def get_state(self) -> dict[str, Any]:
        """Return what is neither a module's parameter or buffer nor an optimiser's state."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `get_state` returned."""


WorldModelWorkflow = Workflow  # the name the first RL Lab used
