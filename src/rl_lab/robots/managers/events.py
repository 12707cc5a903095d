"""Calls events when their mode says so: at the start of all, at resets, at random intervals, or at every step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from rl_lab.core import ConfigError, unknown_name
from rl_lab.robots.managers.terms import Function, Term, functions_of, interval, not_negative, positive, read_terms
from rl_lab.robots.mdp import events
from rl_lab.robots.mdp.state import RobotFacts
from rl_lab.robots.mdp.world import NEEDS, Needs, World, any_of

MODES = ("startup", "reset", "interval", "step")


class EventManager:
    """The events by mode. Those of intervals have a timer in every world."""

    def __init__(self, config: Mapping[str, Any], facts: RobotFacts, num_envs: int) -> None:
        options = {"mode": None, "interval_s": None}
        path, known = "environment.events", functions_of([events])
        self._terms = read_terms(path, config, known, facts, options=options, leading=2)
        self._by_mode: dict[str, list[Term]] = {mode: [] for mode in MODES}
        self._every: list[tuple[float, float]] = []
        for term in self._terms:
            mode = term.options["mode"]
            if mode not in MODES:
                raise ConfigError(f"{path}.{term.name}: " + unknown_name("mode", mode, MODES))
            self._by_mode[mode].append(term)
            if mode in ("interval", "step") and NEEDS.get(term.function, Needs()).recompute:
                raise ConfigError(
                    f"{path}.{term.name}.mode: constants of the model follow from it (choices: startup, reset)"
                )
            if mode == "interval":
                where = f"{path}.{term.name}.interval_s"
                if term.options["interval_s"] is None:
                    raise ConfigError(f"{where}: an event of mode interval needs it, such as [5, 10]")
                low, high = interval(where, term.options["interval_s"])
                positive(where, low)
                self._every.append((low / facts.dt, high / facts.dt))
            if term.function is events.action_lag and "range" in term.params:
                not_negative(f"{path}.{term.name}.params.range", term.params["range"][0])
        self._left = torch.zeros(len(self._every), num_envs, device=facts.default_pos.device)  # control steps

    @property
    def fields(self) -> list[str]:
        """The model fields that need a value per world."""
        return _fields(self._terms)

    @property
    def functions(self) -> dict[str, Function]:
        """What draws, by the event's name."""
        return {term.name: term.function for term in self._terms}

    @property
    def longest_lag(self) -> float:
        """The longest actuator delay that may be drawn, in seconds."""
        ranges = [term.params.get("range", (0.0, 0.02)) for term in self._terms if term.function is events.action_lag]
        return max((float(high) for _, high in ranges), default=0.0)

    @property
    def _later(self) -> list[Term]:
        """The events of which neither a startup nor a reset draws anew."""
        return [*self._by_mode["interval"], *self._by_mode["step"]]

    def announce(self, world: World) -> None:
        """Let later events be known by zeros, before they have drawn anything."""
        for term in self._later:
            self._call(term, world, torch.zeros(world.sim.num_envs, dtype=torch.bool, device=world.sim.device))

    def start(self, world: World) -> None:
        """Let every world be as the model says, whatever was drawn in it before, and run the startup events."""
        world.begin(_fields(self._later))
        self._run("startup", world, torch.ones(world.sim.num_envs, dtype=torch.bool, device=world.sim.device))

    def restart(self, world: World, mask: Tensor) -> None:
        """Run the reset events in the worlds of `mask`, and wind their timers."""
        world.push = torch.where(mask.unsqueeze(-1), 0.0, world.push)  # of the last episode
        self._run("reset", world, mask)
        for index, (low, high) in enumerate(self._every):
            self._left[index] = torch.where(mask, world.uniform(low, high), self._left[index])

    def advance(self, world: World) -> None:
        """Run what happens in every step, and the interval events whose time has come."""
        everywhere = torch.ones(world.sim.num_envs, dtype=torch.bool, device=world.sim.device)
        self._run("step", world, everywhere)
        for index, term in enumerate(self._by_mode["interval"]):
            left = self._left[index] - 1.0
            due = left <= 0.0
            if not any_of(due):
                self._left[index] = left
                continue
            self._call(term, world, due)
            self._left[index] = torch.where(due, world.uniform(*self._every[index]), left)

    def _run(self, mode: str, world: World, mask: Tensor) -> None:
        terms = self._by_mode[mode]
        for term in terms:
            self._call(term, world, mask)
        if any(NEEDS.get(term.function, Needs()).recompute for term in terms):
            world.sim.recompute()

    def _call(self, term: Term, world: World, mask: Tensor) -> None:
        drawn = term(world, mask)
        if drawn is not None:
            before = world.randomized.get(term.name, torch.zeros_like(drawn))
            world.randomized[term.name] = torch.where(mask.unsqueeze(-1), drawn, before)

    def get_state(self) -> dict[str, Tensor]:
        """Return the timers."""
        return {"left": self._left.clone()}

    def set_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on with these timers."""
        self._left = state["left"].to(self._left.device, copy=True)


def _fields(terms: Iterable[Term]) -> list[str]:
    return sorted({name for term in terms for name in NEEDS.get(term.function, Needs()).fields})
