"""Steps the environment with what the workflow's `act` says, and records it.

A trajectory is time-major, [T, N, ...]: `observations, actions, rewards, terminated, truncated, final_observations,
is_first`, `infos` when the environment reports any, and what `act` returned beside the actions. Nothing depends on
where a rollout is cut into chunks.

With `overlap="strict"` the next step is on its way in a thread when `collect` returns: its action was chosen with the
weights of that moment, before the updates that follow. The order of all that touches weights, random streams and
buffers stays fixed, so a run is the same to the bit however long anything takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from rl_lab.core.buffer import Trajectory, Witness
from rl_lab.core.environment import Step, VectorEnv
from rl_lab.core.errors import EnvironmentFault, NotFiniteAction
from rl_lab.core.metrics import Mean
from rl_lab.core.operator import NotReady
from rl_lab.core.trees import tree_leaves, tree_map, tree_stack
from rl_lab.core.workflow import Actions, BehaviourPolicy, CollectResult, Extras
from rl_lab.orchestration.blame import Blame, ShapeCheck
from rl_lab.orchestration.overlap import BackgroundEnv
from rl_lab.orchestration.per_seed import episode_statistics

Overlap = Literal["strict"]
Timer = Callable[[str], Any]  # Tracker.timer
RECORDED = frozenset(
    {"observations", "actions", "rewards", "terminated", "truncated", "final_observations", "is_first", "infos"}
)


class Collector:
    """Owns the training environments and all that lives between two of their steps."""

    def __init__(
        self,
        env: VectorEnv,
        seed: int,
        timer: Timer,
        *,
        overlap: Overlap | None = None,
        num_seeds: int = 1,
        num_ranks: int = 1,
    ) -> None:
        self._background = None if overlap is None else BackgroundEnv(env)
        self.env = env if self._background is None else self._background
        self._seed = seed
        self._timer = timer
        # Env steps of each agent in one step of all environments, those of all ranks.
        self.steps_at_once = env.num_envs * num_ranks // num_seeds
        self._episodes = episode_statistics(num_seeds, env.num_envs)
        self._obs: Any = None  # None until the first step, so that a restore does not reset for nothing
        self._is_first = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
        self._carry: Any = None
        self._pending: tuple[Actions, Extras] | None = None  # of the step that is on its way, from `_obs` on
        self._chosen: Any = None  # the newest actions, to tell who is to blame
        self._blame, self._check, self._is_unchecked = Blame(env), ShapeCheck(env), True
        self._inference = torch.inference_mode()
        self._times: list[float] = []  # of the steps that are being collected
        self.at_hand: CollectResult | None = None  # the steps of a call that failed, if it had taken any

    def collect(
        self, workflow: BehaviourPolicy, vector_steps: int, *, env_steps: int, should_stop: Callable[[], bool]
    ) -> CollectResult:
        """Take `vector_steps` steps, fewer when asked to stop in between; each agent has taken `env_steps` so far.

        An operator who wants to wait ends it too, before the first step perhaps: whoever collects asks again.
        """
        if self._obs is None:
            with self._blame:
                self._obs = self.env.reset(self._seed)
            self._check.observations(self._obs)
            self._carry = workflow.initial_carry(self.env.num_envs)
        rows: list[Trajectory] = []
        self._times.clear()
        try:
            for index in range(vector_steps):
                rows.append(self._step(workflow, env_steps + index * self.steps_at_once))
                if should_stop():
                    break
        except EnvironmentFault:
            self.at_hand = self._result(rows) if rows else None
            _reject_actions(self._chosen)
            raise
        except NotReady:  # nothing has happened since the last step
            if not rows:
                return CollectResult(0, 0)
        result = self._result(rows)
        trajectory: Trajectory = result.trajectory or {}
        self._reject_not_finite(trajectory, env_steps)
        done = trajectory["terminated"] | trajectory["truncated"]
        self._episodes.add(trajectory["rewards"], done, trajectory.get("infos"))
        return result

    def _result(self, rows: Sequence[Trajectory]) -> CollectResult:
        seen = Witness(tuple(self._times))
        return CollectResult(len(rows) * self.steps_at_once, len(rows), _stacked(rows), seen=seen)

    def drain_metrics(self) -> dict[str, Mean]:
        """Return what the episodes that ended since the last call have brought. Call it where no chunk is cut."""
        return self._episodes.drain()

    def close(self) -> None:
        """Let go of the environments."""
        self.env.close()

    @property
    def is_between_episodes(self) -> bool:
        """Return whether the next step begins an episode in every environment."""
        return bool(self._is_first.all())

    def settle(self) -> None:
        """Return when no step is on its way, so that the caller may change what all threads share (global streams)."""
        if self._background is not None:
            self._background.wait()

    def _step(self, workflow: BehaviourPolicy, env_steps: int) -> Trajectory:
        if self._background is not None:
            return self._step_ahead(self._background, workflow, env_steps)
        actions, extras = self._act(workflow, env_steps)
        with self._timer("env"), self._blame:
            step = self.env.step(actions)
        return self._record(actions, extras, step)

    def _step_ahead(self, env: BackgroundEnv, workflow: BehaviourPolicy, env_steps: int) -> Trajectory:
        """Take the step that is on its way and send the next one after it."""
        if self._pending is None:
            self._pending = self._act(workflow, env_steps)
            env.start(self._pending[0])
        with self._timer("env"), self._blame:
            step = env.finish()
        row, self._pending = self._record(*self._pending, step), None
        with suppress(NotReady):  # this step was taken; the next one is decided when it is asked for
            self._pending = self._act(workflow, env_steps + self.steps_at_once)
            env.start(self._pending[0])
        return row

    def _act(self, workflow: BehaviourPolicy, env_steps: int) -> tuple[Actions, Extras]:
        with self._timer("act"), self._inference:
            actions, extras, self._carry = workflow.act(
                self._obs, self._carry, is_first=self._is_first, explore=True, step=env_steps
            )
        if extras and not RECORDED.isdisjoint(extras):
            clash = sorted(RECORDED & extras.keys())
            raise ValueError(
                f"{type(workflow).__name__}.act returned extras that the collector records itself: {clash}"
            )
        self._chosen = actions
        return actions, extras

    def _record(self, actions: Actions, extras: Extras, step: Step) -> Trajectory:
        """Return the row of a step and stand behind it."""
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
            row |= extras
        self._obs, self._is_first = step.observations, step.terminated | step.truncated
        self._times.append(time.time())
        return row

    def _reject_not_finite(self, trajectory: Trajectory, env_steps: int) -> None:
        leaves = [pair for key in ("rewards", "final_observations") for pair in tree_leaves(trajectory[key], key)]
        if not trajectory["rewards"].is_cpu and bool(torch.stack([_finite(leaf) for _, leaf in leaves]).all()):
            return  # one wait for all of them
        for path, leaf in leaves:
            if not _is_finite(leaf):
                _reject_actions(trajectory["actions"])
                where = (~torch.isfinite(leaf)).nonzero()[0].tolist()
                raise EnvironmentFault(
                    f"environment {self.env.spec.id!r} returned NaN or infinity in {path}: copy {where[1]}, "
                    f"env step {env_steps + where[0] * self.steps_at_once}"
                )

    @property
    def episodes(self) -> int:
        """Return how many episodes have ended so far."""
        return self._episodes.count

    def get_state(self) -> dict[str, Any]:
        """Return the environment's state and what lies between its last step and the next."""
        if self._obs is None:
            return {"started": False}
        with self._blame:
            pending = self._pending_state()
        return {
            "started": True,
            "environment": self.env.get_state(),
            "observation": self._obs,
            "is_first": self._is_first,
            "carry": self._carry,
            "episodes": self._episodes.get_state(),
            **pending,
        }

    def _pending_state(self) -> dict[str, Any]:
        """Return the step that is on its way, with its outcome: the environment's state is the one after it."""
        if self._background is None or self._pending is None:
            return {}
        actions, extras = self._pending
        step = self._background.outcome()._asdict()
        return {"pending": {"actions": actions, "extras": extras, "step": {**step, "infos": dict(step["infos"])}}}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where `state` was taken."""
        if not state["started"]:
            return
        self.env.set_state(state["environment"])
        self._obs, self._is_first, self._carry, pending = tree_map(
            lambda leaf: leaf.to(self.env.device) if isinstance(leaf, Tensor) else leaf,
            (state["observation"], state["is_first"], state["carry"], state.get("pending")),
        )
        self._pending = None
        if self._background is not None and pending is not None:
            self._pending = pending["actions"], pending["extras"]
            self._background.restore(Step(**pending["step"]))
        self._episodes.set_state(state["episodes"])


def _reject_actions(actions: Any) -> None:
    """Raise NotFiniteAction where an environment failed because the policy did."""
    if actions is not None and not all(_is_finite(leaf) for _, leaf in tree_leaves(actions)):
        raise NotFiniteAction("an action is NaN or infinite")


def _is_finite(leaf: Tensor) -> bool:
    if leaf.dtype == torch.float32 and leaf.is_cpu:  # almost always, and three times as fast
        return bool(np.isfinite(leaf.numpy(force=True)).all())
    return not leaf.is_floating_point() or bool(_finite(leaf))


def _finite(leaf: Tensor) -> Tensor:
    return torch.isfinite(leaf).all()


def _stacked(rows: Sequence[Trajectory]) -> Trajectory:
    """Return the rows along a new first dimension; tensors first, because almost all of a row is."""
    columns = {key: [row[key] for row in rows] for key in rows[0]}
    return {key: torch.stack(c) if isinstance(c[0], Tensor) else tree_stack(c) for key, c in columns.items()}
