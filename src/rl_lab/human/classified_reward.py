"""Rewards by a trained classifier's word, for environments that cannot tell a success: a wrapper for `wrappers:`.

```yaml
environment:
  wrappers:
    - {_target_: rl_lab.human.classified_reward.ClassifiedReward, _partial_: true, run: experiments/...}
```
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rl_lab.components.classifier import Classifier
from rl_lab.core import ConfigError, EnvironmentFault
from rl_lab.environments.exact.adapter import LayerState
from rl_lab.environments.wrappers.base import LabWrapper, Outcome

TENSORS, MANIFEST = "tensors.safetensors", "MANIFEST.json"
PREFIX = "workflow.classifier."


def load_classifier(run: str | Path) -> tuple[Classifier, str]:
    """Return the classifier of a run's newest checkpoint and the sha256 of its weights; nothing of it is executed."""
    found = sorted(path for path in (Path(run) / "checkpoints").glob("[0-9]*") if (path / MANIFEST).is_file())
    if not found:
        raise ConfigError(f"environment.wrappers: no checkpoint in {run} (run must be the directory of a trained run)")
    path = found[-1] / TENSORS
    try:
        stated = json.loads((found[-1] / MANIFEST).read_text())["files"][TENSORS]["sha256"]
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        with safe_open(path, "pt") as file:
            names = [name for name in file.keys() if name.startswith(PREFIX)]  # noqa: SIM118  (not a dict)
            weights = {name.removeprefix(PREFIX): file.get_tensor(name) for name in names}
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ConfigError(f"environment.wrappers: {path} cannot be read: {error}") from error
    if sha256 != stated:
        raise ConfigError(f"environment.wrappers: {path} is damaged: its sha256 is not the one in {MANIFEST}")
    if not weights:
        raise ConfigError(f"environment.wrappers: {run} is not the run of a RewardClassifier")
    return Classifier.from_weights(weights), _hash_of(weights)


class ClassifiedReward(LabWrapper):
    """Gives the reward that a classifier sees and ends the episode with a success; info `classified` is its chance.

    What a person says of the episode counts more (`VectorEnv.instruct`): it ends so with the next step.

    Args:
        run: Directory of the run that trained it.
        threshold: Chance of success from which on a frame counts.
        in_a_row: Frames that must count one after another.
        reward: `outcome`: 1 at a success; `progress`: how much further the task has come with this step, of 1 in all.
        ends_episode: Whether a success ends the episode.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        *,
        run: str,
        threshold: float = 0.75,
        in_a_row: int = 1,
        reward: Literal["outcome", "progress"] = "outcome",
        ends_episode: bool = True,
    ) -> None:
        super().__init__(env)
        if not 0.0 < threshold < 1.0 or in_a_row < 1 or reward not in ("outcome", "progress"):
            raise ConfigError(
                "environment.wrappers: ClassifiedReward needs a threshold between 0 and 1, in_a_row of 1 or more and "
                f"reward outcome or progress, not {threshold}, {in_a_row} and {reward!r}"
            )
        self._classifier, self._sha256 = load_classifier(run)
        self._reject_other_observations(run)
        self._run, self._threshold, self._in_a_row = run, threshold, in_a_row
        self._by_progress, self._ends_episode = reward == "progress", ends_episode
        self._streak, self._progress = 0, 0.0
        self._word: str | None = None  # of a person, on the episode: success, failure or abort

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        obs, info = self.env.reset(seed=seed, options=options)
        self._streak, self._progress, self._word = 0, self._judged(obs)[1], None
        return obs, info

    def instruct(self, instruction: str) -> None:
        """Take a person's word on the episode, which ends with the next step."""
        if instruction in ("success", "failure", "abort"):
            self._word = instruction

    def step(self, action: Any) -> Outcome:
        """Ask the classifier what the step has led to."""
        obs, _, terminated, truncated, info = self.env.step(action)
        chance, progress = self._judged(obs)
        info = {**info, "classified": chance}
        if self._word is not None:
            is_success, is_over = self._word == "success", self._word != "abort"
            done = self._progress if self._by_progress and is_success else 0.0  # rewards add up to 1
            return obs, float(is_success) - done, is_over, not is_over, info
        self._streak = self._streak + 1 if chance >= self._threshold else 0
        is_success = self._streak >= self._in_a_row
        reward = progress - self._progress if self._by_progress else float(is_success)
        self._progress = progress
        terminated = bool(terminated or (is_success and self._ends_episode))
        return obs, reward, terminated, bool(truncated and not terminated), info

    def get_state(self) -> LayerState:
        """Return what the running episode has come to, and by whose word."""
        return {"streak": self._streak, "progress": self._progress, "sha256": self._sha256}

    def set_state(self, state: LayerState) -> None:
        """Go on; raises EnvironmentFault when the classifier is another one by now."""
        if state["sha256"] != self._sha256:
            raise EnvironmentFault(f"the classifier of {self._run} has other weights than when the run was saved")
        self._streak, self._progress, self._word = state["streak"], state["progress"], None

    @torch.no_grad()
    def _judged(self, obs: Any) -> tuple[float, float]:
        """Return the chance of success and the expected progress, both in [0, 1]."""
        rows = {k: _row(v) for k, v in obs.items()} if isinstance(obs, dict) else _row(obs)
        chances = self._classifier.chances(rows)[0].double()
        steps = torch.linspace(0.0, 1.0, len(chances), dtype=torch.float64)
        return float(chances[-1]), float((chances * steps).sum())

    def _reject_other_observations(self, run: str) -> None:
        space = self.observation_space
        spaces = space.spaces if isinstance(space, gymnasium.spaces.Dict) else {"": space}
        for name, shape in self._classifier.shapes.items():
            found = spaces[name].shape if name in spaces else None
            if found is None or tuple(found) != tuple(shape):
                has = ", ".join(f"{key or 'observation'} {list(one.shape or ())}" for key, one in spaces.items())
                raise ConfigError(
                    f"environment.wrappers: the classifier of {run} reads {name or 'an observation'} {list(shape)}, "
                    f"the environment has {has}"
                )


def _row(value: Any) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(value)).unsqueeze(0)


def _hash_of(weights: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode() + weights[name].contiguous().numpy().tobytes())
    return digest.hexdigest()
