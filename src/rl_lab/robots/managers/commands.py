"""Velocity commands, drawn anew after a while: some stand, some go straight ahead or to a heading; and the gait."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rl_lab.core import ConfigError
from rl_lab.robots.managers.terms import check_keys, columns, interval, number, numbers, positive, share
from rl_lab.robots.mdp.rotations import wrap, yaw_of
from rl_lab.robots.mdp.state import Gait, RobotFacts, RobotState
from rl_lab.robots.mdp.world import any_of

AXES = ("vx", "vy", "yaw")
DEFAULTS = {
    "vx": (-1.0, 1.0),  # m/s
    "vy": (-1.0, 1.0),  # m/s
    "yaw": (-1.0, 1.0),  # rad/s
    "resample_s": (10.0, 10.0),
    "standing": 0.0,  # share of commands that are all 0
    "forward": 0.0,  # share of commands without vy and yaw
    "heading": 0.0,  # share of commands whose yaw rate leads to a heading
    "heading_gain": 0.5,  # 1/s
    "smallest": (0.0, 0.0),  # slower commands, of |v_xy| and of |yaw|, become 0
    "curriculum": None,
}
CURRICULUM = {"reward": "track_lin_vel", "share": 0.8, "widen": 0.1, "start": 0.5}


class CommandManager:
    """One command per world; with a curriculum the ranges begin at a share of what they may become."""

    def __init__(self, config: Mapping[str, Any], facts: RobotFacts, num_envs: int, generator: torch.Generator) -> None:
        path = "environment.commands"
        check_keys(path, config, tuple(DEFAULTS))
        options = {**DEFAULTS, **config}
        device = facts.default_pos.device
        self._generator, self._dt = generator, facts.dt
        self.ranges = {axis: interval(f"{path}.{axis}", options[axis]) for axis in AXES}
        self._low, self._high = torch.tensor(list(self.ranges.values()), device=device).T
        self._resample = interval(f"{path}.resample_s", options["resample_s"])
        shares = ("standing", "forward", "heading")
        self._standing, self._forward, self._heading = (share(f"{path}.{key}", options[key]) for key in shares)
        self._gain = number(f"{path}.heading_gain", options["heading_gain"])
        self._smallest = _read_pair(f"{path}.smallest", options["smallest"])
        self.curriculum = _read_curriculum(f"{path}.curriculum", options["curriculum"])
        self.value = torch.zeros(num_envs, 3, device=device)
        self.fixed: Tensor | None = None  # [N, 3] of a tester or a joystick
        self._left = torch.zeros(num_envs, device=device)  # control steps
        self._target = torch.zeros(num_envs, device=device)  # heading, rad
        self._has_heading = torch.zeros(num_envs, dtype=torch.bool, device=device)
        start = 1.0 if self.curriculum is None else self.curriculum["start"]
        self.level = torch.full((), start, device=device)  # share of the ranges that is drawn from
        self._seen = torch.zeros(2, device=device)  # sum of rewards and number of episodes since the last look

    def begin(self) -> None:
        """Start the curriculum anew."""
        self.level.fill_(1.0 if self.curriculum is None else self.curriculum["start"])
        self._seen.zero_()

    def advance(self, state: RobotState) -> Tensor:
        """Draw where the time of a command is over, steer towards headings, and return the commands [N, 3]."""
        self._left = self._left - 1.0
        self._draw(self._left <= 0.0)
        return self._steered(state)

    def restart(self, state: RobotState, mask: Tensor) -> Tensor:
        """Draw in the worlds of `mask`, whose episodes begin."""
        self._draw(mask)
        return self._steered(state)

    def learn(self, mean_reward: Tensor, ended: Tensor) -> None:
        """Widen the ranges when the episodes that ended, as many as there are worlds, were tracked well enough."""
        if self.curriculum is None:
            return
        seen = self._seen + torch.stack(((mean_reward * ended).sum(), ended.sum().float()))
        is_due = seen[1] >= len(ended)
        is_good = seen[0] > self.curriculum["share"] * seen[1]
        level = (self.level + self.curriculum["widen"]).clamp_max(1.0)
        self.level = torch.where(is_due & is_good, level, self.level)
        self._seen = torch.where(is_due, 0.0, seen)

    def _draw(self, mask: Tensor) -> None:
        if not any_of(mask):
            return
        draw = torch.rand(len(mask), 8, generator=self._generator, device=mask.device)
        new = self.level * (self._low + (self._high - self._low) * draw[:, :3])
        is_forward = (draw[:, 3] < self._forward).unsqueeze(-1)
        new = torch.cat((new[:, :1], torch.where(is_forward, 0.0, new[:, 1:])), -1)
        is_slow = (new[:, :2].norm(dim=-1) < self._smallest[0]).unsqueeze(-1)
        turn = torch.where(new[:, 2:].abs() < self._smallest[1], 0.0, new[:, 2:])
        new = torch.cat((torch.where(is_slow, 0.0, new[:, :2]), turn), -1)
        is_standing = draw[:, 4] < self._standing
        new = torch.where(is_standing.unsqueeze(-1), 0.0, new)
        has_heading = (draw[:, 5] < self._heading) & ~is_standing & ~is_forward.squeeze(-1)
        low, high = self._resample
        self.value = torch.where(mask.unsqueeze(-1), new, self.value)
        self._target = torch.where(mask, math.pi * (2.0 * draw[:, 6] - 1.0), self._target)
        self._has_heading = torch.where(mask, has_heading, self._has_heading)
        self._left = torch.where(mask, (low + (high - low) * draw[:, 7]) / self._dt, self._left)

    def _steered(self, state: RobotState) -> Tensor:
        if self.fixed is not None:
            self.value = self.fixed.clone()
        elif self._heading > 0.0:
            rate = self._gain * wrap(self._target - yaw_of(state.base_quat))
            rate = rate.clamp(self.level * self._low[2], self.level * self._high[2])
            rate = torch.where(self._has_heading, rate, self.value[:, 2])
            self.value = torch.cat((self.value[:, :2], rate.unsqueeze(-1)), -1)
        return self.value

    def get_state(self) -> dict[str, Tensor]:
        """Return commands, timers and the curriculum."""
        return {name: vars(self)[name].clone() for name in _STATE}

    def set_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on with these commands."""
        for name in _STATE:
            setattr(self, name, state[name].to(self.value.device, copy=True))


_STATE = ("value", "_left", "_target", "_has_heading", "level", "_seen")


def _read_curriculum(path: str, config: Any) -> dict[str, Any] | None:
    if config is None:
        return None
    check_keys(path, config, tuple(CURRICULUM))
    options = {**CURRICULUM, **config}
    numbers = {name: share(f"{path}.{name}", value) for name, value in options.items() if name != "reward"}
    return {**options, **numbers}


def _read_pair(path: str, value: Any) -> tuple[float, float]:
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        raise ConfigError(f"{path}: must be two numbers, of |v_xy| and of |yaw|, not {value!r}")
    return number(path, value[0]), number(path, value[1])


GAIT = {"cycle_s": 0.8, "offsets": None, "stance": 0.5, "legs": None, "amplitudes": (-0.26, 0.52, -0.26)}


def read_gait(config: Mapping[str, Any], facts: RobotFacts) -> Gait:
    """Return the gait of a config; its legs name joints, one list per foot in the order of the feet."""
    path, device = "environment.commands.gait", facts.default_pos.device
    check_keys(path, config, tuple(GAIT))
    options = {**GAIT, **config}
    feet = len(facts.feet)
    offsets = options["offsets"] if options["offsets"] is not None else [i / max(feet, 1) for i in range(feet)]
    offsets = numbers(f"{path}.offsets", offsets)
    if len(offsets) != feet:
        raise ConfigError(
            f"{path}.offsets: has {len(offsets)} numbers, but there are {feet} feet: {', '.join(facts.feet)}"
        )
    if not 0.0 < number(f"{path}.stance", options["stance"]) < 1.0:
        raise ConfigError(f"{path}.stance: must be between 0 and 1, got {options['stance']}")
    amplitudes = numbers(f"{path}.amplitudes", options["amplitudes"]) if options["legs"] else []
    legs = _read_legs(path, options["legs"], amplitudes, facts)
    return Gait(
        positive(f"{path}.cycle_s", options["cycle_s"]),
        torch.tensor(offsets, device=device),
        float(options["stance"]),
        legs,
        torch.tensor(amplitudes, device=device),
    )


def _read_legs(path: str, legs: Any, amplitudes: Sequence[float], facts: RobotFacts) -> Tensor:
    device = facts.default_pos.device
    if not legs:
        return torch.zeros(len(facts.feet), 0, dtype=torch.int64, device=device)
    if len(legs) != len(facts.feet):
        raise ConfigError(f"{path}.legs: names {len(legs)} legs, but there are {len(facts.feet)} feet")
    rows = [torch.cat([columns(f"{path}.legs", facts.joints, name, device) for name in leg]) for leg in legs]
    for row in rows:
        if len(row) != len(amplitudes):
            raise ConfigError(f"{path}.legs: a leg has {len(row)} joints, but there are {len(amplitudes)} amplitudes")
    return torch.stack(rows)
