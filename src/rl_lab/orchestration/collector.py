"""Steps the environment with what the workflow's `act` says, and records it.

A trajectory is time-major, [T, N, ...]: `observations, actions, rewards, terminated, truncated, final_observations,
is_first`, `infos` when the environment reports any, and what `act` returned beside the actions. Nothing depends on
where a rollout is cut into chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from rl_lab.core.buffer import Trajectory
from rl_lab.core.environment import Step, VectorEnv
from rl_lab.core.errors import EnvironmentFault
from rl_lab.core.metrics import Mean
from rl_lab.core.trees import tree_leaves, tree_map, tree_stack
from rl_lab.core.workflow import CollectResult, Workflow
from rl_lab.orchestration.blame import Blame, ShapeCheck
from rl_lab.orchestration.episodes import EpisodeStatistics

Timer = Callable[[str], Any]  # Tracker.timer


class Collector:
    """Owns the training environments and all that lives between two of their steps."""

    def __init__(self, env: VectorEnv, seed: int, timer: Timer) -> None:
        self.env = env
        self._seed = seed
        self._timer = timer
        self._episodes = EpisodeStatistics(env.num_envs, env.device)
        self._obs: Any = None  # None until the first step, so that a restore does not reset for nothing
        self._is_first = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
        self._carry: Any = None
        self._blame, self._check, self._is_unchecked = Blame(env), ShapeCheck(env), True

    def collect(
        self, workflow: Workflow, vector_steps: int, *, env_steps: int, should_stop: Callable[[], bool]
    ) -> CollectResult:
        """Take `vector_steps` steps, fewer when asked to stop in between; `env_steps` is the count so far."""
        if self._obs is None:
            with self._blame:
                self._obs = self.env.reset(self._seed)
            self._check.observations(self._obs)
            self._carry = workflow.initial_carry(self.env.num_envs)
        rows: list[Trajectory] = []
        for index in range(vector_steps):
            rows.append(self._step(workflow, env_steps + index * self.env.num_envs))
            if should_stop():
                break
        trajectory = tree_stack(rows)
        self._reject_not_finite(trajectory, env_steps)
        done = trajectory["terminated"] | trajectory["truncated"]
        self._episodes.add(trajectory["rewards"], done, trajectory.get("infos"))
        return CollectResult(len(rows) * self.env.num_envs, len(rows), trajectory)

    def drain_metrics(self) -> dict[str, Mean]:
        """Return what the episodes that ended since the last call have brought. Call it where no chunk is cut."""
        return self._episodes.drain()

    def _step(self, workflow: Workflow, env_steps: int) -> Trajectory:
        with self._timer("act"), torch.inference_mode():
            actions, extras, self._carry = workflow.act(
                self._obs, self._carry, is_first=self._is_first, explore=True, step=env_steps
            )
        with self._timer("env"), self._blame:
            step: Step = self.env.step(actions)
        if self._is_unchecked:  # shapes do not change on the way
            self._check.step(step)
            self._is_unchecked = False
        row = {
            "observations": self._obs,
            "actions": actions,
            "rewards": step.rewards,
            "terminated": step.terminated,
            "truncated": step.truncated,
            "final_observations": step.final_observations,
            "is_first": self._is_first,
        }
        if step.infos:
            row["infos"] = step.infos
        if extras:
            if clash := sorted({"infos", *row} & extras.keys()):
                raise ValueError(
                    f"{type(workflow).__name__}.act returned extras that the collector records itself: {clash}"
                )
            row |= extras
        self._obs, self._is_first = step.observations, step.terminated | step.truncated
        return row

    def _reject_not_finite(self, trajectory: Trajectory, env_steps: int) -> None:
        for key in ("rewards", "final_observations"):
            for path, leaf in tree_leaves(trajectory[key], key):
                if leaf.is_floating_point() and not torch.isfinite(leaf).all():
                    where = (~torch.isfinite(leaf)).nonzero()[0].tolist()
                    raise EnvironmentFault(
                        f"environment {self.env.spec.id!r} returned NaN or infinity in {path}: copy {where[1]}, "
                        f"env step {env_steps + where[0] * self.env.num_envs}"
                    )

    @property
    def episodes(self) -> int:
        """Return how many episodes have ended so far."""
        return self._episodes.count

    def get_state(self) -> dict[str, Any]:
        """Return the environment's state and what lies between its last step and the next."""
        if self._obs is None:
            return {"started": False}
        return {
            "started": True,
            "environment": self.env.get_state(),
            "observation": self._obs,
            "is_first": self._is_first,
            "carry": self._carry,
            "episodes": self._episodes.get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where `state` was taken."""
        if not state["started"]:
            return
        self.env.set_state(state["environment"])
        self._obs, self._is_first, self._carry = tree_map(
            lambda leaf: leaf.to(self.env.device) if isinstance(leaf, Tensor) else leaf,
            (state["observation"], state["is_first"], state["carry"]),
        )
        self._episodes.set_state(state["episodes"])
