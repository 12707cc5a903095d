"""Films of a policy while it learns, in an environment and on random streams of their own: training is not touched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rl_lab.core.clocks import Every
from rl_lab.core.durable import reason
from rl_lab.core.environment import VectorEnv
from rl_lab.core.errors import EnvironmentFault, LabError
from rl_lab.core.seeding import RngStreams, isolated_rng
from rl_lab.core.workflow import Workflow
from rl_lab.orchestration.blame import Blame
from rl_lab.tracking.atomic import LEFTOVER_PREFIX
from rl_lab.tracking.film import Camera
from rl_lab.tracking.tracker import Tracker

NAME = "train"


class Films:
    """Films the first copy as `train_<env step>`, every so many env steps.

    The environment is made for the first film. What cannot be filmed is told once, and no further film is tried.

    Args:
        make_env: Returns an environment that draws.
        media: The run's folder for films.
        rng: Of the run.
        every: Env steps between two films.
        length: Steps of a film.
        explore: Film the exploring policy instead of the greedy one.
    """

    def __init__(
        self,
        make_env: Callable[[], VectorEnv],
        media: Path,
        rng: RngStreams,
        *,
        every: int,
        length: int,
        explore: bool = False,
    ) -> None:
        self._make_env, self._media, self._rng = make_env, media, rng
        self._clock, self._length, self._explore = Every(every), length, explore
        self._env: VectorEnv | None = None
        self._is_given_up = False

    def is_due(self, env_steps: int) -> bool:
        """Return whether a film is due."""
        return not self._is_given_up and self._clock.is_due(env_steps)

    def shoot(self, workflow: Workflow, step: int, tracker: Tracker, should_stop: Callable[[], bool]) -> None:
        """Make the film that is due; asked to stop on the way, it stays due."""
        was_training, seed = workflow.training, self._rng.seed("film", step)
        workflow.eval()
        try:
            with tracker.timer("film"), isolated_rng(seed):
                self._env = self._env or self._open()
                is_whole = self._play(self._env, workflow, seed, step, should_stop)
        except (LabError, OSError) as error:
            trouble = reason(error) if isinstance(error, OSError) else str(error)
            tracker.event("not_filmed", message=f"training.video_frequency: no films ({trouble}); training goes on")
            self._is_given_up = True
        else:
            if is_whole:
                self._clock(step)
        finally:
            workflow.train(was_training)

    def _open(self) -> VectorEnv:
        for part in self._media.glob(f"{LEFTOVER_PREFIX}{NAME}_*"):  # of a process that was killed
            part.unlink(missing_ok=True)
        return self._make_env()

    @torch.inference_mode()
    def _play(self, env: VectorEnv, workflow: Workflow, seed: int, step: int, should_stop: Callable[[], bool]) -> bool:
        """Return whether the film is whole; one that is not leaves nothing behind."""
        camera = Camera(lambda: _picture(env), self._media / f"{NAME}_{step:09d}", env.spec.steps_per_second)
        try:
            with Blame(env):
                obs = env.reset(seed)
            carry = workflow.initial_carry(env.num_envs)
            is_first = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
            for _ in range(self._length):
                if should_stop():
                    return False
                camera.look()
                actions, _, carry = workflow.act(obs, carry, is_first=is_first, explore=self._explore, step=step)
                with Blame(env):
                    played = env.step(actions)
                obs, is_first = played.observations, played.terminated | played.truncated
            camera.close()
        finally:
            camera.drop()
        return True

    def close(self) -> None:
        """Free the environment."""
        if self._env is not None:
            self._env.close()

    def get_state(self) -> dict[str, int]:
        """Return which films were made."""
        return {"every": self._clock.interval, "last": self._clock.last}

    def set_state(self, state: Mapping[str, Any] | None, env_steps: int) -> None:
        """Go on from there, perhaps with another interval; where there were no films, count from here."""
        passed = env_steps if state is None else state["every"] * state["last"]
        self._clock.last = passed // self._clock.interval


def _picture(env: VectorEnv) -> Tensor:
    with Blame(env):
        picture = env.render()
    if picture is None:
        raise EnvironmentFault(f"environment {env.spec.id!r} draws no pictures")
    return picture
