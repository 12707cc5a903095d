"""Observation groups: one vector per network, each term with noise, clip, scale, delay and history.

The order is value, noise, clip, scale, delay, history. All terms of a group lie side by side, so that each of these is
one operation for the whole group. A delay counts control steps, may be a fraction (linear between two steps), and is
drawn anew at every reset: what the policy sees is what a slow sensor would have told it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from rl_lab.core import Box, ConfigError, Flip
from rl_lab.robots.managers.terms import Term, check_keys, flag, functions_of, interval, number, read_terms, whole
from rl_lab.robots.mdp import observations
from rl_lab.robots.mdp.state import RobotState

TERM_OPTIONS = {"noise": 0.0, "clip": None, "scale": 1.0, "delay": 0, "history": None, "mirror": None}
GROUP_KEYS = ("terms", "noise", "history")


class ObservationGroup:
    """One vector of terms, and the past of those that are delayed or have a history."""

    def __init__(self, name: str, config: Mapping[str, Any], state: RobotState, generator: torch.Generator) -> None:
        self._path = path = f"environment.observations.{name}"
        check_keys(path, config, GROUP_KEYS)
        known = functions_of([observations])
        self.terms = read_terms(f"{path}.terms", config.get("terms") or {}, known, state.facts, options=TERM_OPTIONS)
        if not self.terms:
            raise ConfigError(f"{path}.terms: needs at least one term")
        self._generator, self._has_noise = generator, flag(f"{path}.noise", config.get("noise", True))
        self.widths = [term(state).shape[-1] for term in self.terms]
        for term, width in zip(self.terms, self.widths, strict=True):
            if width == 0:
                raise ConfigError(
                    f"{path}.terms.{term.name}: robot and ground have nothing for {term.function.__name__}"
                )
        self._device, self._num_envs = state.base_pos.device, len(state.base_pos)
        self._scale = self._columns(path, "scale")
        self._noise = self._columns(path, "noise")
        self._low, self._high = self._bounds(path)
        self.delays = [interval(f"{path}.terms.{t.name}.delay", t.options["delay"]) for t in self.terms]
        if min(low for low, _ in self.delays) < 0:
            raise ConfigError(f"{path}: a delay must be 0 or more control steps")
        longest = max(high for _, high in self.delays)
        default = whole(f"{path}.history", config.get("history", 1))  # control steps
        own = [(f"{path}.terms.{t.name}.history", t.options["history"]) for t in self.terms]
        self.histories = [default if steps is None else whole(where, steps) for where, steps in own]
        num_past = math.floor(longest) + 2 if longest > 0 else 0
        width = sum(self.widths)
        self._past = self._zeros(num_past, width)  # newest first
        self._lag = torch.zeros(self._num_envs, len(self.terms), device=self._device)
        self._least, self._most = torch.tensor(self.delays, device=self._device).T
        self._column_term = torch.repeat_interleave(
            torch.arange(len(self.terms), device=self._device), torch.tensor(self.widths, device=self._device)
        )
        self._frames = self._zeros(max(self.histories) if max(self.histories) > 1 else 0, width)  # newest first
        self.dim = sum(width * history for width, history in zip(self.widths, self.histories, strict=True))
        self._out = torch.zeros(self._num_envs, self.dim, device=self._device)

    @property
    def bounds_and_scale(self) -> tuple[Tensor, Tensor, Tensor]:
        """Lower and upper bound and scale of every column of one step."""
        return self._low, self._high, self._scale

    @property
    def space(self) -> Box:
        """What the group looks like."""
        return Box((self.dim,))

    def advance(self, state: RobotState) -> Tensor:
        """Take in a step of every world and return the group, [N, dim]."""
        current = self._current(state)
        if len(self._past):
            self._past = torch.cat((current.unsqueeze(0), self._past[:-1]))
            current = self._delayed()
        if len(self._frames):
            self._frames = torch.cat((current.unsqueeze(0), self._frames[:-1]))
        self._out = self._stacked(current)
        return self._out

    def restart(self, state: RobotState, mask: Tensor) -> Tensor:
        """Forget the past of the worlds in `mask`, which stand at an episode's start; return the group of all."""
        current, chosen = self._current(state), mask.unsqueeze(-1)
        if len(self._past):
            draw = torch.rand(self._lag.shape, generator=self._generator, device=self._device)
            self._lag = torch.where(chosen, self._least + (self._most - self._least) * draw, self._lag)
            self._past = torch.where(chosen, current, self._past)
        if len(self._frames):
            self._frames = torch.where(chosen, current, self._frames)
        fresh = torch.cat([part.repeat(1, h) for part, h in self._parts(current)], -1)
        self._out = torch.where(chosen, fresh, self._out)
        return self._out

    def still(self, state: RobotState) -> Tensor:
        """Return the group of a state alone, without noise, delay and history."""
        values = torch.cat([term(state) for term in self.terms], -1)
        return values.clamp(self._low, self._high) * self._scale

    def _current(self, state: RobotState) -> Tensor:
        if not self._has_noise:
            return self.still(state)
        values = torch.cat([term(state) for term in self.terms], -1)
        draw = torch.rand(values.shape, generator=self._generator, device=self._device)
        values = values + (2.0 * draw - 1.0) * self._noise
        return values.clamp(self._low, self._high) * self._scale

    def _delayed(self) -> Tensor:
        lag = self._lag[:, self._column_term].unsqueeze(0)  # [1, N, D]
        whole = lag.floor()
        index = whole.long()
        newer, older = self._past.gather(0, index), self._past.gather(0, index + 1)
        return (newer + (lag - whole) * (older - newer)).squeeze(0)

    def _stacked(self, current: Tensor) -> Tensor:
        if not len(self._frames):
            return current
        parts, start = [], 0
        for width, history in zip(self.widths, self.histories, strict=True):
            frames = self._frames[:history, :, start : start + width].flip(0)  # oldest first
            parts.append(frames.transpose(0, 1).flatten(1))
            start += width
        return torch.cat(parts, -1)

    def _parts(self, values: Tensor) -> list[tuple[Tensor, int]]:
        return list(zip(values.split(self.widths, -1), self.histories, strict=True))

    def _zeros(self, steps: int, width: int) -> Tensor:
        return torch.zeros(steps, self._num_envs, width, device=self._device)

    def _columns(self, path: str, key: str) -> Tensor:
        parts = [
            self._column(f"{path}.terms.{t.name}.{key}", t, key, w)
            for t, w in zip(self.terms, self.widths, strict=True)
        ]
        return torch.cat(parts)

    def _column(self, path: str, term: Term, key: str, width: int) -> Tensor:
        value = term.options[key]
        values = [number(path, v) for v in value] if isinstance(value, list | tuple) else [number(path, value)] * width
        if len(values) != width:
            raise ConfigError(f"{path}: has {len(values)} numbers, but the term has {width} columns")
        return torch.tensor(values, device=self._device)

    def _bounds(self, path: str) -> tuple[Tensor, Tensor]:
        lows, highs = [], []
        for term, width in zip(self.terms, self.widths, strict=True):
            clip = term.options["clip"]
            where = f"{path}.terms.{term.name}.clip"
            if clip is None:
                low, high = -math.inf, math.inf
            elif isinstance(clip, list | tuple):
                low, high = interval(where, clip)
            else:
                low, high = -number(where, clip), number(where, clip)
            lows += [low] * width
            highs += [high] * width
        return torch.tensor(lows, device=self._device), torch.tensor(highs, device=self._device)

    def mirror(self, flip_of: Callable[[Term], Flip]) -> Flip:
        """Return how the group looks in a mirror, by what its terms do; raises where a term has no image."""
        pairs: list[tuple[int, float]] = []
        start = 0
        for term, width, history in zip(self.terms, self.widths, self.histories, strict=True):
            try:
                flip = flip_of(term)
                self._check_flip(flip, start, width)
            except ConfigError as error:
                raise ConfigError(f"{self._path}.terms.{term.name}: {error}") from None
            start += width
            for _ in range(history):
                first = len(pairs)
                pairs += [(first + source, sign) for source, sign in flip]
        return pairs

    def _check_flip(self, flip: Flip, start: int, width: int) -> None:
        if len(flip) != width or any(not 0 <= source < width for source, _ in flip):
            raise ConfigError(f"a mirror needs {width} pairs [source, sign], with sources of 0 to {width - 1}")
        for column, (source, sign) in enumerate(flip):
            here, there = (
                [float(bound[start + i]) for bound in (self._scale, self._noise, self._low, self._high)]
                for i in (column, source)
            )
            image = there if sign > 0 else [*there[:2], -there[3], -there[2]]
            if here != image:
                raise ConfigError(f"scale, noise or clip of column {column} are not those of {source} mirrored")

    def describe(self) -> list[dict[str, Any]]:
        """Return the terms in their order, as a deployed policy has to compute them."""
        rows = zip(self.terms, self.widths, self.histories, self.delays, strict=True)
        return [
            {
                "name": term.name,
                "function": term.function.__name__,
                "params": {key: _plain(value) for key, value in term.params.items()},
                "width": width,
                "scale": _plain(term.options["scale"]),
                "clip": _plain(term.options["clip"]),
                "history": history,
                "delay_steps": list(delay),
                "noise": _plain(term.options["noise"]) if self._has_noise else 0.0,
            }
            for term, width, history, delay in rows
        ]

    def get_state(self) -> dict[str, Tensor]:
        """Return the past."""
        return {
            "past": self._past.clone(),
            "lag": self._lag.clone(),
            "frames": self._frames.clone(),
            "out": self._out.clone(),
        }

    def set_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on with this past."""
        self._past, self._lag, self._frames, self._out = (
            state[key].to(self._device, copy=True) for key in ("past", "lag", "frames", "out")
        )


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    return list(value) if isinstance(value, list | tuple) else value


class ObservationManager:
    """The groups by name."""

    def __init__(self, config: Mapping[str, Any], state: RobotState, generator: torch.Generator) -> None:
        config = {name: group for name, group in config.items() if group is not None}  # null takes a group away
        if not config:
            raise ConfigError("environment.observations: needs at least one group, such as actor")
        self.groups = {name: ObservationGroup(name, group, state, generator) for name, group in config.items()}

    @property
    def space(self) -> Box | dict[str, Box]:
        """One vector where there is one group, else a dict of them."""
        spaces = {name: group.space for name, group in self.groups.items()}
        return next(iter(spaces.values())) if len(spaces) == 1 else spaces

    def advance(self, state: RobotState) -> Tensor | dict[str, Tensor]:
        """Take in a step of every world."""
        return self._joined({name: group.advance(state) for name, group in self.groups.items()})

    def restart(self, state: RobotState, mask: Tensor) -> Tensor | dict[str, Tensor]:
        """Begin anew in the worlds of `mask`; the others keep what `advance` returned."""
        return self._joined({name: group.restart(state, mask) for name, group in self.groups.items()})

    def _joined(self, parts: dict[str, Tensor]) -> Tensor | dict[str, Tensor]:
        return next(iter(parts.values())) if len(parts) == 1 else parts

    def get_state(self) -> dict[str, Any]:
        """Return the past of every group."""
        return {name: group.get_state() for name, group in self.groups.items()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on with this past."""
        for name, group in self.groups.items():
            group.set_state(state[name])
