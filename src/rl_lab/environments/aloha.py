"""ALOHA's simulated tasks (Zhao et al., 2023): two ViperX arms pass a cube on, or put a peg into a socket.

`gym_aloha/AlohaTransferCube-v0` and `gym_aloha/AlohaInsertion-v0`: models, tasks and rewards are the package's.
gym-aloha draws three pictures at each step whether they are looked at or not, leaves the pose of the objects to the
system's randomness, says that actions lie in [-1, 1], though they are angles, and lets arms jump, which its physics do
not survive. Here pictures are drawn when they are asked for, poses come from `np_random`, and actions have the limits
of the joints and of a speed.
Knows no torch, so that worker processes start light.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray

from rl_lab.environments.dm_control import import_suite
from rl_lab.environments.exact.dm_control import SimulatorState
from rl_lab.environments.hosting.family_options import check_at_least, check_choice, height_and_width, unknown_task
from rl_lab.environments.hosting.foreign import config_error
from rl_lab.environments.offscreen import Canvas

PREFIX = "gym_aloha/"
TASKS = {  # class of the package, model, objects
    f"{PREFIX}AlohaTransferCube-v0": ("TransferCubeTask", "bimanual_viperx_transfer_cube.xml", 1),
    f"{PREFIX}AlohaInsertion-v0": ("InsertionTask", "bimanual_viperx_insertion.xml", 2),
}
OBSERVATIONS = ("state", "pixels", "pixels_agent_pos")
NUM_JOINTS = 14  # of both arms, each with its gripper as one number: 0 closed, 1 open
GRIPPERS = [6, 13]
_SECOND_FINGERS = (7, 15)  # actuators that mirror the first finger of a gripper
DONE = 4  # the reward of a task that is done

Array = NDArray[Any]


def make_env(name: str, **env_kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Return the task of this name; `env_kwargs` are the options of `Aloha`."""
    if name not in TASKS:
        raise unknown_task(name, TASKS)
    import_suite(name)  # before the package imports dm_control, which chooses then how to draw
    if find_spec("gym_aloha") is None:
        reason = "it works with this MuJoCo, its own dependencies ask for an older one"
        raise config_error(f"environment.name {name!r} needs gym-aloha: pip install --no-deps gym-aloha ({reason})")
    return Aloha(name, **env_kwargs)


class Aloha(gymnasium.Env[Any, Array]):
    """One of the two tasks, at 50 steps per second.

    Args:
        name: Of the task.
        observations: state (joints, their speeds and the poses of objects), pixels (a dict of cameras) or
            pixels_agent_pos (a dict of cameras and `agent_pos`, the joints).
        cameras: Of the pixels: top, angle, front_close, left_pillar, right_pillar, left_wrist, right_wrist.
        size: Of the pixels: one number, or height and width.
        max_step: Radians by which an action may change what a joint was told last, at most; null: any (the package).
        shadows: Draw as the package does, with shadows and reflections; without them it is faster.
        render_mode: rgb_array or null.
        render_size: Of a rendering: one number, or height and width.
        max_episode_steps: Env steps after which an episode is truncated; null: 300, as in the package.
    """

    def __init__(
        self,
        name: str,
        *,
        observations: Literal["state", "pixels", "pixels_agent_pos"] = "state",
        cameras: Sequence[str] = ("top",),
        size: int | Sequence[int] = (480, 640),
        max_step: float | None = 0.1,
        shadows: bool = True,
        render_mode: Literal["rgb_array"] | None = None,
        render_size: int | Sequence[int] = 240,
        max_episode_steps: int | None = None,
    ) -> None:
        check_choice("observations", observations, OBSERVATIONS)
        check_choice("render_mode", render_mode, (None, "rgb_array"))
        self._max_step = np.inf if max_step is None else max_step
        check_at_least("max_step", self._max_step, 0.0)
        check_at_least("max_episode_steps", limit := 300 if max_episode_steps is None else max_episode_steps, 1)
        self._observations, self._cameras, self.render_mode = observations, tuple(cameras), render_mode
        self._size, self._render_size = height_and_width("size", size), height_and_width("render_size", render_size)
        self._num_objects, self._steps, self.max_episode_steps = TASKS[name][2], 0, limit
        self._dm, self._tasks = _load(name)
        model = self._dm.physics.model
        for camera in self._cameras:
            check_choice("cameras", camera, (model.id2name(index, "camera") for index in range(model.ncam)))
        self._canvas = None if shadows else Canvas(model.ptr)
        self._state = SimulatorState(self._dm)
        self.has_whole_state, self.is_watched = self._state.is_whole, True
        self.spec = EnvSpec(name, max_episode_steps=limit)
        self._limits = _limits(model)
        self.action_space = spaces.Box(*self._limits, dtype=np.float32)
        self.observation_space = self._make_observation_space()
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": round(1.0 / self._dm.control_timestep())}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode with objects in other places; `seed` begins a new random stream."""
        super().reset(seed=seed)
        self._tasks.BOX_POSE[0] = self._drawn_poses()
        self._dm.task.random.seed(int(self.np_random.integers(2**32)))
        self._steps = 0
        return self._observe(self._dm.reset().observation), {"is_success": False}

    def step(self, action: Array) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Send both arms to where the action says."""
        outcome = self._dm.step(self._allowed(action))
        self._steps += 1
        terminated = outcome.reward == DONE
        truncated = not terminated and self._steps >= self.max_episode_steps
        obs = self._observe(outcome.observation) if self.is_watched or terminated or truncated else None
        return obs, float(outcome.reward), terminated, truncated, {"is_success": terminated}

    def get_state(self) -> dict[str, Any]:
        """Return the simulator, the task and how far the episode is."""
        return {**self._state.get(), "steps": self._steps}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `get_state` of any copy of this task."""
        self._state.set(state)
        self._steps = int(state["steps"])

    def render(self) -> Array | None:
        """Return a picture [H, W, 3], or None without a render mode."""
        return None if self.render_mode is None else self._draw(self._render_size, self._cameras[0])

    def close(self) -> None:
        """Free the simulator and what it draws with."""
        if self._canvas is not None:
            self._canvas.close()
        self._dm.physics.free()

    def _allowed(self, action: Array) -> Array:
        """Return the action within the limits; a gripper may jump, an arm may not."""
        told: Array = np.delete(self._dm.physics.data.ctrl, _SECOND_FINGERS)
        near = np.clip(action, told - self._max_step, told + self._max_step)
        near[GRIPPERS] = action[GRIPPERS]
        return np.clip(near, *self._limits)

    def _drawn_poses(self) -> Array:
        """Return positions and attitudes of the objects, in the ranges of the package."""
        ranges, seed = import_module("gym_aloha.utils"), int(self.np_random.integers(2**32))
        drawn = (ranges.sample_box_pose(seed),) if self._num_objects == 1 else ranges.sample_insertion_pose(seed)
        return np.concatenate(drawn)

    def _make_observation_space(self) -> spaces.Space[Any]:
        if self._observations == "state":
            return _numbers(2 * NUM_JOINTS + 7 * self._num_objects)
        seen: dict[str, spaces.Space[Any]] = {
            camera: spaces.Box(0, 255, (*self._size, 3), np.uint8) for camera in self._cameras
        }
        return spaces.Dict(seen if self._observations == "pixels" else {**seen, "agent_pos": _numbers(NUM_JOINTS)})

    def _observe(self, state: Mapping[str, Any]) -> Any:
        if self._observations == "state":
            parts = [state[key] for key in ("qpos", "qvel", "env_state")]
            return np.concatenate(parts, dtype=np.float32, casting="same_kind")
        seen = {camera: self._draw(self._size, camera) for camera in self._cameras}
        return seen if self._observations == "pixels" else {**seen, "agent_pos": state["qpos"].astype(np.float32)}

    def _draw(self, size: tuple[int, int], camera: str) -> Array:
        physics = self._dm.physics
        if self._canvas is not None:
            return self._canvas.draw(physics.data.ptr, camera, *size)
        picture: Array = physics.render(*size, camera_id=camera)
        return picture


def _load(name: str) -> tuple[Any, Any]:
    """Return the environment of dm_control, with the package's task but for its pictures, and the module of tasks."""
    kind, model, _ = TASKS[name]
    tasks, constants = (import_module(f"gym_aloha.{part}") for part in ("tasks.sim", "constants"))
    mujoco, control = (import_module(f"dm_control.{part}") for part in ("mujoco", "rl.control"))
    blind = type(kind, (getattr(tasks, kind),), {"get_observation": _numbers_of})
    physics = mujoco.Physics.from_xml_path(str(constants.ASSETS_DIR / model))
    return control.Environment(physics, blind(random=0), control_timestep=constants.DT), tasks


def _numbers_of(task: Any, physics: Any) -> dict[str, Array]:
    """Return what the package's tasks observe, without its pictures."""
    return {"qpos": task.get_qpos(physics), "qvel": task.get_qvel(physics), "env_state": task.get_env_state(physics)}


def _limits(model: Any) -> tuple[Array, Array]:
    """Return the lowest and the highest angles of the joints; those of grippers are 0 and 1."""
    limits = np.delete(model.actuator_ctrlrange, _SECOND_FINGERS, axis=0).astype(np.float32)
    limits[GRIPPERS] = (0.0, 1.0)
    return limits[:, 0], limits[:, 1]


def _numbers(width: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, (width,), np.float32)
