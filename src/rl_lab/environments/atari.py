"""Atari games of the Arcade Learning Environment: `ALE/<Game>-v5`, with the usual preprocessing.

The settings are those of Machado et al. (2018): sticky actions, four frames per action, the maximum of the last two of
them, 84 x 84 shades of grey, four pictures on top of each other. Sticky actions are drawn here, from `np_random`: the
emulator's own would repeat an action that its saved state does not hold. Knows no torch, so that worker processes start
light.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray

from rl_lab.environments.hosting.family_options import KWARGS, check_at_least, height_and_width, unknown_task
from rl_lab.environments.hosting.foreign import config_error, load_package
from rl_lab.environments.wrappers.base import LifeLoss
from rl_lab.environments.wrappers.pixels import FrameStack

PREFIX = "ALE/"
EXTRA = "atari"
FRAME_SKIP = 4
FRAME_STACK = 4

Array = NDArray[Any]


def make_env(
    name: str,
    *,
    preprocessing: bool = True,
    frame_skip: int = FRAME_SKIP,
    repeat_action_probability: float = 0.25,
    full_action_space: bool = False,
    life_loss: bool = False,
    max_frames: int = 108_000,
    mode: int | None = None,
    difficulty: int | None = None,
    render_mode: str | None = None,
    **env_kwargs: Any,
) -> gymnasium.Env[Any, Any]:
    """Return the game `ALE/<Game>-v5`.

    Args:
        name: Of the game.
        preprocessing: False gives the bare screen; `env_kwargs` are then further arguments of `ale_py.env.AtariEnv`.
        frame_skip: Frames per action.
        repeat_action_probability: Of sticky actions: that a frame ignores the action and repeats the one before.
        full_action_space: All 18 actions instead of those the game knows.
        life_loss: End the episode with each life; the game goes on in the next one until it is over.
        max_frames: After which an episode is truncated; no-ops count.
        mode: Of the game; null: its first.
        difficulty: Of the game; null: its first.
        render_mode: rgb_array or null.
        env_kwargs: With preprocessing, the options of `AtariPreprocessing`.
    """
    check_at_least("frame_skip", frame_skip, 1)
    game = rom_of(name)
    base = load_package("ale_py.env", name, EXTRA).AtariEnv(
        game,
        mode=mode,
        difficulty=difficulty,
        frameskip=1,
        repeat_action_probability=0.0,
        full_action_space=full_action_space,
        max_num_frames_per_episode=max_frames,
        render_mode=render_mode,
        **({} if preprocessing else env_kwargs),
    )
    base.spec = EnvSpec(name)
    game_kwargs: dict[str, Any] = {"frame_skip": frame_skip, "repeat_action_probability": repeat_action_probability}
    frame_stack = env_kwargs.pop("frame_stack", FRAME_STACK) if preprocessing and life_loss else None
    if frame_stack is not None:
        check_at_least("frame_stack", frame_stack, 1)
        env_kwargs["frame_stack"] = 1  # pictures of the life before are no part of a new episode: stacked outside
    env = AtariPreprocessing(base, **game_kwargs, **env_kwargs) if preprocessing else AtariGame(base, **game_kwargs)
    env.max_episode_steps = math.ceil(max_frames / frame_skip)
    living = LifeLoss(env) if life_loss else env
    return living if frame_stack is None else FrameStack(living, frames=frame_stack)


def rom_of(name: str) -> str:
    """Return the name of the game's ROM."""
    ale_py = load_package("ale_py", name, EXTRA)  # which registers its ids
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner
    if name not in gymnasium.registry:
        raise unknown_task(name, (known for known in gymnasium.registry if known.startswith(PREFIX)))
    return str(gymnasium.registry[name].kwargs["game"])


class AtariGame(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Frame skip and sticky actions around an `AtariEnv` that has neither; observes what that one does.

    Args:
        env: An `AtariEnv` with a frameskip of 1 and a repeat_action_probability of 0.
        frame_skip: Frames per action.
        repeat_action_probability: That a frame repeats the action of the one before.
    """

    max_episode_steps: int | None = None  # as its maker knows it; the emulator counts the frames
    remembers_episodes = True  # the emulator is not made anew for a game

    def __init__(
        self, env: gymnasium.Env[Any, Any], *, frame_skip: int = FRAME_SKIP, repeat_action_probability: float = 0.25
    ) -> None:
        super().__init__(env)
        if not 0.0 <= repeat_action_probability <= 1.0:
            raise config_error(f"{KWARGS}.repeat_action_probability is {repeat_action_probability}, not in [0, 1]")
        self.frames_per_step, self._stickiness = frame_skip, repeat_action_probability
        self._ale = env.unwrapped.ale  # type: ignore[attr-defined]
        self._held: Any = 0  # the action of the last frame

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a game."""
        self._held = 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Hold the action for `frame_skip` frames, or until the game ends."""
        reward = 0.0
        for _ in range(self.frames_per_step):
            obs, gained, terminated, truncated, info = self.env.step(self._stick(action))
            reward += float(gained)
            if terminated or truncated:
                break
        return obs, reward, terminated, truncated and not terminated, info

    def get_state(self) -> dict[str, Any]:
        """Return the action that may be repeated; the emulator's own state is that of the layer below."""
        return {"held": np.asarray(self._held)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `get_state`."""
        self._held = np.asarray(state["held"])[()]

    def _stick(self, action: Any) -> Any:
        """Return the action of the next frame: the given one or, at random, that of the frame before."""
        if not self._stickiness or self.unwrapped.np_random.random() >= self._stickiness:
            self._held = action
        return self._held


class AtariPreprocessing(AtariGame):
    """What an agent sees of a game: uint8 [H, W, frame_stack], newest last, the first picture repeated at a reset.

    It steps the emulator itself, without the colour picture that `AtariEnv.step` makes of every frame.

    Args:
        env: An `AtariEnv` with a frameskip of 1 and a repeat_action_probability of 0.
        noop_max: Each episode begins with 1 to this many frames without action; 0: none.
        size: Of the picture: one number, or height and width.
        grayscale: False keeps the three colours, one after another in the last axis.
        frame_stack: Pictures on top of each other.
        clip_reward: Replace rewards by their sign; the returns of an evaluation are then clipped as well.
        game_kwargs: `frame_skip` and `repeat_action_probability`, as in `AtariGame`.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        *,
        noop_max: int = 30,
        size: int | Sequence[int] = 84,
        grayscale: bool = True,
        frame_stack: int = FRAME_STACK,
        clip_reward: bool = False,
        **game_kwargs: Any,
    ) -> None:
        super().__init__(env, **game_kwargs)
        check_at_least("noop_max", noop_max, 0)
        check_at_least("frame_stack", frame_stack, 1)
        self._cv2 = load_package("cv2", str(env.spec.id) if env.spec else PREFIX, EXTRA)
        self._height, self._width = height_and_width("size", size)
        self._noop_max, self._clip_reward = noop_max, clip_reward
        self._actions = env.unwrapped._action_set  # type: ignore[attr-defined]
        self._screen = self._ale.getScreenGrayscale if grayscale else self._ale.getScreenRGB
        screen = (*self._ale.getScreenDims(), *(() if grayscale else (3,)))
        self._newest, self._before = np.zeros(screen, np.uint8), np.zeros(screen, np.uint8)
        self._channels = 1 if grayscale else 3
        self._stack = np.zeros((frame_stack * self._channels, self._height, self._width), np.uint8)
        self.observation_space = spaces.Box(0, 255, (self._height, self._width, len(self._stack)), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Begin a game."""
        self._begin_game(seed)
        self._screen(self._newest)
        self._stack = np.concatenate([self._picture()] * (len(self._stack) // self._channels))
        return self._stack.transpose(1, 2, 0), self._info()

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Hold the action for `frame_skip` frames, or until the episode ends."""
        reward = self._hold(action)
        self._stack = np.concatenate((self._stack[self._channels :], self._picture()))
        terminated = bool(self._ale.game_over(with_truncation=False))
        truncated = bool(self._ale.game_truncated()) and not terminated
        if self._clip_reward:
            reward = float(np.sign(reward))
        return self._stack.transpose(1, 2, 0), reward, terminated, truncated, self._info()

    def get_state(self) -> dict[str, Any]:
        """Return the pictures; the emulator's own state is that of the layer below."""
        return {**super().get_state(), "stack": self._stack.copy()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `get_state`."""
        super().set_state(state)
        self._stack = np.array(state["stack"], dtype=np.uint8)

    def _hold(self, action: Any) -> float:
        """Act, keep the maximum of the last two screens as `_newest` and return the reward."""
        ale, reward = self._ale, 0.0
        for frames_left in reversed(range(self.frames_per_step)):
            reward += ale.act(self._actions[self._stick(action)], 1.0)
            if ale.game_over(with_truncation=True):
                break
            if frames_left == 1:
                self._screen(self._before)
        self._screen(self._newest)
        if frames_left == 0 and self.frames_per_step > 1:  # else it ended early, and the frame before was not kept
            np.maximum(self._newest, self._before, out=self._newest)
        return reward

    def _begin_game(self, seed: int | None) -> None:
        self.env.reset(seed=seed)
        noops = int(self.unwrapped.np_random.integers(1, self._noop_max + 1)) if self._noop_max else 0
        for _ in range(noops):
            self._ale.act(self._actions[0], 1.0)
            if self._ale.game_over(with_truncation=True):
                self._ale.reset_game()
        self._held = 0

    def _picture(self) -> Array:
        """Return the newest screen in its final size, [channels, H, W]."""
        size = (self._width, self._height)
        picture: Array = self._cv2.resize(self._newest, size, interpolation=self._cv2.INTER_AREA)
        return picture[None] if self._channels == 1 else picture.transpose(2, 0, 1)

    def _info(self) -> dict[str, Any]:
        ale = self._ale
        frames = {"episode_frame_number": ale.getEpisodeFrameNumber(), "frame_number": ale.getFrameNumber()}
        return {"lives": ale.lives(), **frames}
