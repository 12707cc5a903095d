"""Testers: a policy under fixed commands, written down step by step and summed up in one table.

Each tester holds one kind of command in every world: what was drawn (`normal`), none (`zero`), one axis alone (`x`,
`y`, `yaw`, spread over their ranges), or full speed `forward` and `backward`.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rl_lab.core import Actions, ConfigError, Observation, unknown_name
from rl_lab.robots.legged_env import LeggedEnv
from rl_lab.robots.mdp.state import RobotState

Policy = Callable[[Observation, Tensor], Actions]  # observations and is_first [N] -> actions
Look = Callable[[], object]  # called before every step, e.g. to film it
TESTERS = ("normal", "zero", "x", "y", "yaw", "forward", "backward")
AXES = {"x": 0, "y": 1, "yaw": 2}
COLUMNS = ("vx", "vy", "yaw_rate", "command_vx", "command_vy", "command_yaw", "height", "power", "reward")
SETTLE_S = 1.0  # errors count from here on: a robot needs a moment to reach its speed


def commands_of(env: LeggedEnv, tester: str) -> Tensor | None:
    """Return the commands [N, 3] of a tester; None leaves them to the task."""
    if tester not in TESTERS:
        raise ConfigError(unknown_name("tester", tester, TESTERS))
    if tester == "normal":
        return None
    command = torch.zeros(env.num_envs, 3, device=env.device)
    ranges = list(env.commands.ranges.values())
    if tester in AXES:
        low, high = ranges[AXES[tester]]
        command[:, AXES[tester]] = torch.linspace(low, high, env.num_envs, device=env.device)
    elif tester != "zero":
        command[:, 0] = ranges[0][1] if tester == "forward" else ranges[0][0]
    return command


def run_tester(
    env: LeggedEnv,
    policy: Policy,
    tester: str,
    *,
    steps: int = 500,
    seed: int = 0,
    path: Path | None = None,
    look: Look | None = None,
) -> dict[str, Any]:
    """Play a tester; return its row of the table and write the first world's steps to `path`.

    Args:
        env: The task.
        policy: From observations to actions, with its carry inside where it has one.
        tester: One of `TESTERS`.
        steps: Control steps.
        seed: Of the episodes.
        path: CSV of the first world, a row per control step.
        look: Called before every step.
    """
    env.commands.fixed = commands_of(env, tester)
    try:
        record = _Record(env)
        obs, is_first = env.reset(seed), torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
        for _ in range(steps):
            if look is not None:
                look()
            command = env.commands.value.clone()
            step = env.step(policy(obs, is_first))
            obs, is_first = step.observations, step.terminated | step.truncated
            record.add(env.last_state, command, step.rewards, step.terminated, is_first)
    finally:
        env.commands.fixed = None
    if path is not None:
        record.write(path)
    return {"tester": tester, **record.summary()}


def run_testers(
    env: LeggedEnv,
    policy: Policy,
    *,
    testers: Sequence[str] = TESTERS,
    steps: int = 500,
    seed: int = 0,
    directory: Path | None = None,
    watch: Callable[[str], AbstractContextManager[Look | None]] = lambda tester: nullcontext(),
) -> list[dict[str, Any]]:
    """Play several testers; return the table and write `<tester>.csv` of each and `summary.csv`.

    Each tester runs within `watch(tester)`, which may give a function that is called before every step.
    """
    for tester in testers:
        commands_of(env, tester)  # a name that is wrong is refused before the first one plays
    rows = []
    for tester in testers:
        path = None if directory is None else directory / f"{tester}.csv"
        with watch(tester) as look:
            rows.append(run_tester(env, policy, tester, steps=steps, seed=seed, path=path, look=look))
    if directory is not None:
        _write_rows(directory / "summary.csv", rows)
    return rows


class _Record:
    """Sums over all worlds, and every step of the first one."""

    def __init__(self, env: LeggedEnv) -> None:
        self._settle = SETTLE_S / env.world.facts.dt
        self._dt = env.world.facts.dt
        self._alive = torch.zeros(env.num_envs, device=env.device)  # steps since the episode began
        self._sums = {
            name: torch.zeros((), dtype=torch.float64, device=env.device)
            for name in (
                "steps",
                "linear",
                "angular",
                "counted",
                "falls",
                "torque",
                "slip",
                "contacts",
                "power",
                "reward",
            )
        }
        self._distance = torch.zeros((), dtype=torch.float64, device=env.device)
        self._rows: list[Tensor] = []

    def add(self, state: RobotState, command: Tensor, rewards: Tensor, terminated: Tensor, ended: Tensor) -> None:
        """Take in one step of all worlds; where episodes `ended`, by a fall or by time, robots have to settle anew."""
        self._alive = self._alive + 1.0
        counted = (self._alive > self._settle).double()
        power = (state.torques * state.joint_vel).clamp_min(0.0).sum(-1)
        linear = (command[:, :2] - state.lin_vel[:, :2]).square().sum(-1)
        angular = (command[:, 2] - state.ang_vel[:, 2]).square()
        slip = (state.foot_vel[:, :, :2].norm(dim=-1) * state.contact).sum()
        new = {
            "steps": torch.ones_like(counted).sum(),
            "linear": (linear * counted).sum(),
            "angular": (angular * counted).sum(),
            "counted": counted.sum(),
            "falls": terminated.sum(),
            "torque": state.torques.square().mean(-1).sum(),
            "slip": slip,
            "contacts": state.contact.sum(),
            "power": power.sum(),
            "reward": rewards.sum(),
        }
        self._sums = {name: total + new[name] for name, total in self._sums.items()}
        self._distance = self._distance + state.lin_vel[:, :2].norm(dim=-1).sum() * self._dt
        self._alive = torch.where(ended, 0.0, self._alive)
        measured = (
            state.lin_vel[0, :2],
            state.ang_vel[0, 2:],
            command[0],
            (state.base_pos[0, 2] - state.ground[0])[None],
        )
        self._rows.append(torch.cat((*measured, power[:1], rewards[:1])))

    def summary(self) -> dict[str, float]:
        """Return RMS errors, falls per minute, RMS torque, mean slip of feet in contact, and energy."""
        sums = {name: float(total) for name, total in self._sums.items()}
        steps, counted = sums["steps"], sums["counted"] or float("nan")  # no world lasted that long: no error is known
        return {
            "velocity_rms": (sums["linear"] / counted) ** 0.5,  # m/s
            "yaw_rate_rms": (sums["angular"] / counted) ** 0.5,  # rad/s
            "falls": sums["falls"],
            "falls_per_minute": sums["falls"] / (steps * self._dt / 60.0),
            "torque_rms": (sums["torque"] / steps) ** 0.5,  # N m per joint
            "slip": sums["slip"] / max(sums["contacts"], 1.0),  # m/s
            "power": sums["power"] / steps,  # W
            "energy_per_m": sums["power"] * self._dt / max(float(self._distance), 1e-6),  # J/m
            "reward": sums["reward"] / steps / self._dt,  # per second
        }

    def write(self, path: Path) -> None:
        """Write the steps of the first world."""
        table = torch.stack(self._rows).cpu()
        rows = [
            {"time": (index + 1) * self._dt, **dict(zip(COLUMNS, values, strict=True))}
            for index, values in enumerate(table.tolist())
        ]
        _write_rows(path, rows)


def _write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
