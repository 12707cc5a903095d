"""What a workflow is given: config, spec and named resources. Asking for a wrong name lists the right ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from rl_lab.core.buffer import Buffer
from rl_lab.core.errors import ConfigError, unknown_name
from rl_lab.core.ranks import ALONE, Ranks
from rl_lab.core.seeding import RngStreams
from rl_lab.core.seeds import Seeds
from rl_lab.core.spaces import EnvSpec

T = TypeVar("T")
M = TypeVar("M", bound=nn.Module)
F = TypeVar("F", bound=Callable[..., Any])
OptimizerFactory = Callable[..., torch.optim.Optimizer]

RATE_SHARE = "rate_share"  # of an optimiser's group: what is left of the learning rate after it was lowered


class Named(Mapping[str, T]):
    """A read-only dict that answers a wrong name with the right ones and knows which names nobody asked for."""

    def __init__(self, kind: str, items: Mapping[str, T]) -> None:
        self._kind, self._items = kind, dict(items)
        self._unused = set(self._items)

    def __getitem__(self, name: str) -> T:
        if name not in self._items:
            raise ConfigError(unknown_name(self._kind, name, self._items))
        self._unused.discard(name)
        return self._items[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return the item of this name, or `default` when there is none."""
        return self[name] if name in self._items else default

    def reject_unused(self, nobody: str = "the workflow does not use") -> None:
        """Raise when the YAML declares items that nobody ever asked for, and name them."""
        if self._unused:
            used = [name for name in self._items if name not in self._unused]
            unused = ", ".join(repr(name) for name in sorted(self._unused))
            raise ConfigError(f"{nobody} {self._kind} {unused} (used: {used})")

    def __contains__(self, name: object) -> bool:
        return name in self._items

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


class Optimizers(Mapping[str, torch.optim.Optimizer]):
    """The `optimizers:` block: factories from YAML until the workflow names the parameters, optimisers afterwards."""

    def __init__(self, factories: Mapping[str, OptimizerFactory]) -> None:
        self._factories = dict(factories)
        self._built: dict[str, torch.optim.Optimizer] = {}

    def build(self, name: str, params: Iterable[Any], default: OptimizerFactory | None = None) -> torch.optim.Optimizer:
        """Build the optimiser `name` over `params`: as the YAML says, or by `default` when it says nothing."""
        factory = self._factories.get(name, default)
        if factory is None:
            raise ConfigError(unknown_name("optimizers entry", name, self._factories))
        self._built[name] = factory(params)
        return self._built[name]

    def reject_unused(self) -> None:
        """Raise when the YAML declares an optimiser that the workflow never built."""
        for name in self._factories:
            if name not in self._built:
                raise ConfigError(unknown_name("optimizers entry", name, self._built))

    def lower_rates(self, factor: float) -> dict[str, tuple[float, float]]:
        """Multiply all learning rates, and what schedules make of them later; return each before and after.

        The share lies in the optimisers' groups, and so in checkpoints.
        """
        rates = {}
        for name, optimizer in self._built.items():
            before = float(optimizer.param_groups[0]["lr"])
            for group in optimizer.param_groups:
                group[RATE_SHARE] = group.get(RATE_SHARE, 1.0) * factor
                if isinstance(group["lr"], Tensor):
                    group["lr"].mul_(factor)
                else:
                    group["lr"] *= factor
            rates[name] = (before, float(optimizer.param_groups[0]["lr"]))
        return rates

    def __getitem__(self, name: str) -> torch.optim.Optimizer:
        if name not in self._built:
            raise ConfigError(unknown_name("optimizer", name, self._built))
        return self._built[name]

    def __contains__(self, name: object) -> bool:
        return name in self._built

    def __iter__(self) -> Iterator[str]:
        return iter(self._built)

    def __len__(self) -> int:
        return len(self._built)


@dataclass
class Counters:
    """Counted apart, never mixed. `global_step` is env steps."""

    env_steps: int = 0
    updates: int = 0
    episodes: int = 0
    cycles: int = 0

    @property
    def global_step(self) -> int:
        """Return the env steps, the x-axis of every curve."""
        return self.env_steps

    def get_state(self) -> dict[str, int]:
        """Return the four counts."""
        return asdict(self)

    def set_state(self, state: Mapping[str, int]) -> None:
        """Restore the four counts."""
        self.__init__(**state)  # type: ignore[misc]


def as_it_is(function: F) -> F:
    """Return the function."""
    return function


@dataclass(frozen=True)
class WorkflowContext:
    """Frozen and typed: all that `Workflow.initialize` may bind."""

    config: Mapping[str, Any]
    device: torch.device
    spec: EnvSpec
    num_envs: int
    components: Named[nn.Module]
    controllers: Named[nn.Module]
    optimizers: Optimizers
    buffers: Named[Buffer]
    rng: RngStreams
    counters: Counters = field(default_factory=Counters)
    static: Callable[[F], F] = as_it_is  # wraps functions of fixed shapes, so that they can be compiled or captured
    fuse: Callable[[F], F] = as_it_is  # wraps parts of such functions that are compiled apart: the steps of long loops
    seeds: Seeds = field(default_factory=Seeds)  # how many agents are trained as one
    ranks: Ranks = ALONE  # the processes that train this run together

    def component(self, name: str, kind: type[M]) -> M:
        """Return the component of this name, which must be of this kind."""
        found = self.components[name]
        if not isinstance(found, kind):
            raise ConfigError(f"components.{name}: needs a {kind.__name__}")
        return found
