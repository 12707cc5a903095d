"""Clips of a robot that walks as commanded: reference motions for a motion prior, made from a gait and a robot alone.

Feet follow the task's gait: one that stands goes back as fast as the base goes ahead, one that swings is lifted by the
gait's swing curve and carried forward. Joints follow from where the feet are. No physics: the base glides on a line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import mujoco
import numpy as np
import torch

from rl_lab.core import ConfigError, unknown_name
from rl_lab.robots.legged_env import LeggedEnv
from rl_lab.robots.mdp.gaits import foot_phase, swing_curve
from rl_lab.robots.mdp.reader import StateReader, sole_heights

Command = Sequence[float]  # vx, vy in m/s, yaw rate in rad/s
SPEEDS = ((-1.0, -0.5, 0.0, 0.5, 1.0), (-0.8, 0.0, 0.8), (-1.0, 0.0, 1.0))
STANDING = 5  # times as long as another clip: about a tenth of all steps
REACH = 1e-3  # m that a foot may miss its place by


def default_commands() -> dict[str, Command]:
    """Return commands of several speeds and directions by name."""
    return {f"vx{x:+.1f}_vy{y:+.1f}_yaw{turn:+.1f}": (x, y, turn) for x, y, turn in product(*SPEEDS)}


def gait_clips(
    env: LeggedEnv, commands: Mapping[str, Command], *, group: str = "amp", lift: float = 0.08
) -> dict[str, np.ndarray]:
    """Return a cycle of the task's gait for each command, [T, D] as the group shows it, and the clip `stand`.

    Args:
        env: The task, whose robot has as many joints per leg as place its foot, and whose gait it is.
        commands: By the name of the clip.
        group: Observations to show; terms that need forces are 0.
        lift: Of a foot in mid-swing, in m.
    """
    if group not in env.observations.groups:
        raise ConfigError("environment.observations: " + unknown_name("group", group, env.observations.groups))
    if max(env.observations.groups[group].histories) > 1:
        raise ConfigError(f"environment.observations.{group}: clips have one frame per step, so it takes no history")
    legs = _Legs(env)
    clips = {}
    for name, command in commands.items():
        joints = np.stack([legs.pose(places, name) for places in _foot_places(env, legs.rest, command, lift)])
        clips[name] = _shown(env, joints, command, group)
    count = STANDING * (len(next(iter(clips.values()))) if clips else 1)
    clips["stand"] = _shown(env, np.repeat(legs.pose(legs.rest, "stand")[None], count + 2, 0), (0.0, 0.0, 0.0), group)
    return clips


def write_clips(path: Path | str, clips: Mapping[str, np.ndarray]) -> None:
    """Write clips as `MotionBuffer` reads them."""
    np.savez_compressed(path, **clips)  # type: ignore[arg-type]


def _foot_places(env: LeggedEnv, rest: np.ndarray, command: Command, lift: float) -> np.ndarray:
    """Return where the feet are in the base's frame, [T + 2, F, 3]: a cycle, and a frame before and after."""
    state, gait, dt = env.last_state, env.last_state.gait, env.last_state.facts.dt
    frames = torch.arange(-1.0, round(gait.cycle_s / dt) + 2.0, dtype=torch.float64)
    state = replace(state, phase=torch.remainder(frames * (dt / gait.cycle_s), 1.0))
    phase, raised = foot_phase(state).numpy(), swing_curve(state).numpy()
    vx, vy, turn = command
    speed = np.stack((vx - turn * rest[:, 1], vy + turn * rest[:, 0], np.zeros(len(rest))), -1)  # of the ground's image
    swung = (phase - gait.stance) / (1.0 - gait.stance)
    ahead = np.where(phase < gait.stance, 0.5 - phase / gait.stance, -0.5 * np.cos(np.pi * swung))  # in strides
    places = rest + ahead[..., None] * (gait.stance * gait.cycle_s) * speed
    places[..., 2] += lift * raised
    return places


def _shown(env: LeggedEnv, joints: np.ndarray, command: Command, group: str) -> np.ndarray:
    """Return what the group shows of a glide through these poses [T + 2, J], whose ends are for velocities only."""
    world, dt = env.world, env.last_state.facts.dt
    speeds = (joints[2:] - joints[:-2]) / (2.0 * dt)
    sim, count, still = world.sim, env.num_envs, torch.zeros(env.num_envs, len(env.robot.joints), device=env.device)
    reader = StateReader(world, env.last_state.gait, None, torch.zeros(0, 2, device=env.device))
    qpos, qvel = world.default("key_qpos")[:1].clone(), torch.zeros_like(sim.read("qvel")[:1])
    qpos[:, 2] = env.robot.base_height
    qvel[:, :2], qvel[:, 5] = torch.tensor(command[:2], device=env.device), float(command[2])
    wanted = torch.tensor([list(command)], device=env.device).expand(count, -1)
    rows = []
    for index, (pose, speed) in enumerate(zip(joints[1:-1], speeds, strict=True)):
        qpos[:, list(world.layout.qpos)] = torch.as_tensor(pose, dtype=torch.float32, device=env.device)
        qvel[:, list(world.layout.dof)] = torch.as_tensor(speed, dtype=torch.float32, device=env.device)
        sim.write("qpos", qpos.expand(count, -1))
        sim.write("qvel", qvel.expand(count, -1))
        sim.forward()
        state = reader.read((still, still, still), wanted, torch.full((count,), float(index), device=env.device))
        rows.append(env.observations.groups[group].still(state)[0].cpu().numpy())
    return np.stack(rows)


class _Legs:
    """Finds the pose that puts every foot into its place."""

    def __init__(self, env: LeggedEnv) -> None:
        model, layout = env.world.model, env.world.layout
        self._model, self._data, self._layout, self._names = model, mujoco.MjData(model), layout, env.robot.joint_names
        mujoco.mj_resetDataKeyframe(model, self._data, 0)
        self._data.qpos[:7] = (0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)
        self._default = np.array([joint.default for joint in env.robot.joints])
        self.rest = self._feet(self._default)  # [F, 3] below the hips, on the ground of a base at its standing height
        self.rest[:, 2] = np.array(sole_heights(env.world)) - env.robot.base_height

    def _feet(self, pose: np.ndarray) -> np.ndarray:
        self._data.qpos[list(self._layout.qpos)] = pose
        mujoco.mj_kinematics(self._model, self._data)
        return self._data.site_xpos[list(self._layout.feet)].copy()

    def pose(self, places: np.ndarray, name: str) -> np.ndarray:
        """Return joint positions [J] with the feet at `places` [F, 3], by Newton's method from the default pose."""
        pose, jacobian = self._default.copy(), np.zeros((len(places), 3, self._model.nv))
        for _ in range(20):
            miss = (places - self._feet(pose)).ravel()
            mujoco.mj_comPos(self._model, self._data)
            for rows, site in zip(jacobian, self._layout.feet, strict=True):
                mujoco.mj_jacSite(self._model, self._data, rows, None, site)
            columns = jacobian[:, :, list(self._layout.dof)].reshape(miss.size, -1)
            pose = pose + np.linalg.lstsq(columns, miss, rcond=1e-6)[0]
        low, high = self._model.jnt_range[list(self._layout.joint)].T
        outside = (pose < low) | (pose > high)
        if np.abs(places - self._feet(pose)).max() > REACH or outside.any():
            raise ConfigError(f"reference gait {name!r}: a foot is out of the reach of {', '.join(self._names)}")
        return pose
