"""A workflow's decisions as one function of tensors: nothing in it is kept from one call to the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from rl_lab.core.environment import Actions
from rl_lab.core.spaces import ACTION_MASK, EnvSpec, leaves_of
from rl_lab.core.trees import Tree, tree_leaves, tree_map
from rl_lab.core.workflow import Workflow
from rl_lab.deploy.draws import NEUTRAL, Draws
from rl_lab.deploy.ports import Arrays, Port, next_name, port_of_draw, port_of_leaf, port_of_state, to_arrays

Noise = Literal["input", "neutral"]
NOISES: dict[str, Noise] = {"input": "input", "neutral": "neutral"}
IS_FIRST = Port("is_first", "is_first", (1,), holds="bool", low=0, high=1)


class PolicyFunction(nn.Module):
    """Observations, recurrent state and noise -> actions and next state, all of them flat, for a batch of one.

    Args:
        workflow: Whose `decide` it is.
        spec: Of the environment, as the workflow knows it.
        noise: Whether random draws are inputs, or neutral: means and most likely choices take their place.
        inputs: Names of the inputs there are; the others keep what they are at an episode's start. None: all.
    """

    def __init__(
        self, workflow: Workflow, spec: EnvSpec, noise: Noise = "input", inputs: Iterable[str] | None = None
    ) -> None:
        super().__init__()
        self.workflow, self.spec, self._noise = workflow, spec, noise
        observed = {join("observation", key): leaf for key, leaf in leaves_of(spec.observation).items()}
        self._observation = {name: port_of_leaf(name, "observation", leaf) for name, leaf in observed.items()}
        self._carry = workflow.initial_carry(1)
        state = [(join("state", path), leaf) for path, leaf in tree_leaves(self._carry) if leaf is not None]
        self._state = {name: port_of_state(name, leaf) for name, leaf in state}
        self._defaults = {name: torch.zeros(port.shape) for name, port in self._observation.items()}
        if (mask := join("observation", ACTION_MASK)) in self._defaults:
            self._defaults[mask].fill_(1.0)  # every choice is allowed
        self._defaults |= {name: self._state[name].write(leaf) for name, leaf in state} | {"is_first": torch.ones(1)}
        self._draws = self._find_draws()
        every = [*self._observation.values(), *self._state.values(), IS_FIRST, *self._draws]
        drawn = {port.name for port in self._draws} if noise == "neutral" else set()
        wanted = {port.name for port in every} - drawn if inputs is None else set(inputs)
        self.inputs = [port for port in every if port.name in wanted]
        self._actions = {
            name: port_of_leaf(name, "action", leaf)
            for name, leaf in ((join("action", key), leaf) for key, leaf in leaves_of(spec.action).items())
        }
        kept = [port for name, port in self._state.items() if name in wanted]
        self.outputs = [*self._actions.values(), *(replace(port, name=next_name(port.name)) for port in kept)]

    def _find_draws(self) -> list[Port]:
        """Return the draws of a first step; later steps draw the same or, where a plan goes on, nothing."""
        with Draws() as draws, torch.no_grad():
            self._decide({})
        for index, draw in enumerate(draws.found):
            self._defaults[f"noise.{index}"] = torch.full(draw.shape, NEUTRAL[draw.distribution])
        return [port_of_draw(index, draw) for index, draw in enumerate(draws.found)]

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs of these inputs, both in the order of the ports."""
        named = {port.name: tensor for port, tensor in zip(self.inputs, given, strict=True)}
        with Draws([named.get(port.name, self._defaults[port.name]) for port in self._draws]):
            actions, carry = self._decide(named)
        decided = {join("action", path): leaf for path, leaf in tree_leaves(actions)}
        decided |= {next_name(join("state", path)): leaf for path, leaf in tree_leaves(carry) if leaf is not None}
        return tuple(port.write(decided[port.name]) for port in self.outputs)

    def _decide(self, named: Mapping[str, Tensor]) -> tuple[Actions, Tree]:
        def value(port: Port) -> Tensor:
            return port.read(named.get(port.name, self._defaults[port.name]))

        leaves = {name: value(port) for name, port in self._observation.items()}
        is_dict = isinstance(self.spec.observation, Mapping)
        obs = {name.partition(".")[2]: leaf for name, leaf in leaves.items()} if is_dict else leaves["observation"]
        states = iter([value(port) for port in self._state.values()])
        carry = tree_map(lambda _: next(states), self._carry)
        return self.workflow.decide(obs, carry, value(IS_FIRST))

    @torch.no_grad()
    def call(self, inputs: Arrays) -> Arrays:
        """Return the outputs by name, as the policy itself computes them in the lab."""
        outputs = self(*(torch.from_numpy(inputs[port.name]) for port in self.inputs))
        return to_arrays({port.name: tensor for port, tensor in zip(self.outputs, outputs, strict=True)})

    def examples(self) -> tuple[Tensor, ...]:
        """Return inputs of the first step of an episode."""
        return tuple(self._defaults[port.name] for port in self.inputs)

    def to_environment(self, outputs: Arrays) -> Actions:
        """Return the actions among the outputs as the environment takes them."""
        leaves = {name: port.read(torch.from_numpy(outputs[name])) for name, port in self._actions.items()}
        if isinstance(self.spec.action, Mapping):
            return {name.partition(".")[2]: leaf for name, leaf in leaves.items()}
        return leaves["action"]

    def restricted(self, names: Iterable[str]) -> PolicyFunction:
        """Return the same function of these inputs alone."""
        return PolicyFunction(self.workflow, self.spec, self._noise, names)


def join(kind: str, path: str) -> str:
    """Return the name of the port of a leaf."""
    return f"{kind}.{path}" if path else kind
