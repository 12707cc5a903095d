"""A simulated human: watches a policy, takes over when nothing moves on, corrects, hands back and judges.

So everything that needs a person beside a robot can be run, tested and compared without one. It sees what its expert
sees, reacts late, has unsteady hands and limited patience. It draws from torch's global stream as policies do, and what
it remembers is a carry: a run that is resumed goes on in the middle of a correction.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rl_lab.core import Actions, Carry, ConfigError, Observation
from rl_lab.core.operator import FAILURE, SUCCESS, Operator, Orders, Station
from rl_lab.human.experts import ScriptedExpert

NEVER = -1  # no reaction is on its way
HASTY_STEPS = 4  # a hasty call comes before one of so many first steps, which ends the episode


class SimulatedHuman(Operator):
    """Takes over after some steps without progress and a delay, until the task has come on or patience is at an end.

    Progress is what its expert says is still to be done, in the expert's own unit (decimetres of way, for instance).

    Args:
        expert: What it knows of the task.
        patience_steps: Steps without progress after which it decides to take over.
        min_progress: Less than this is none.
        reaction_steps: Steps between the decision and the first action; progress in between calls it off.
        recovery: It hands back once so much has been done by it; null: only when the episode ends.
        max_correction_steps: It hands back after so many steps in any case.
        max_takeovers: Per episode; then it only looks on.
        noise: Standard deviation of what is added to its actions, which are in [-1, 1].
        hasty: Chance that it calls an episode that has just begun a success, by mistake: one of the first steps then
            ends it, as such a call of a person does. Needs `environment.num_envs=1`.
        false_success: Chance that it calls an episode a success that ended as none.
    """

    name = "simulated"

    def __init__(
        self,
        expert: ScriptedExpert,
        *,
        patience_steps: int = 10,
        min_progress: float = 0.05,
        reaction_steps: int = 3,
        recovery: float | None = 0.2,
        max_correction_steps: int = 20,
        max_takeovers: int = 3,
        noise: float = 0.1,
        hasty: float = 0.0,
        false_success: float = 0.0,
    ) -> None:
        least = {"patience_steps": (patience_steps, 1), "max_correction_steps": (max_correction_steps, 1)}
        least |= {"reaction_steps": (reaction_steps, 0), "max_takeovers": (max_takeovers, 0)}
        for name, (value, low) in {**least, "noise": (noise, 0), "min_progress": (min_progress, 0)}.items():
            if not value >= low:
                raise ConfigError(f"{name} of a simulated human must be {low} or more, got {value}")
        for name, chance in {"hasty": hasty, "false_success": false_success}.items():
            if not 0.0 <= chance <= 1.0:
                raise ConfigError(f"{name} of a simulated human must be from 0 to 1, got {chance}")
        self.expert, self.noise = expert, noise
        self._hasty, self._false_success = hasty, false_success
        self._patience, self._min_progress, self._reaction = patience_steps, min_progress, reaction_steps
        self._recovery = float("inf") if recovery is None else recovery
        self._max_steps, self._max_takeovers = max_correction_steps, max_takeovers

    def bind(self, station: Station) -> None:
        """Take the seat; calls end the episodes of all copies, so there may be one."""
        if self._hasty > 0.0 and station.env.num_envs > 1:
            raise ConfigError(f"hasty of a simulated human needs environment.num_envs=1, not {station.env.num_envs}")
        self._env = station.env

    def initial_carry(self, num_envs: int) -> Carry:
        """Return the mind at the start of an episode, for each copy."""
        far, none = torch.full((num_envs,), float("inf")), torch.zeros(num_envs, dtype=torch.int64)
        return {
            "best": far,  # least that was left to do since it last acted
            "idle": none,  # steps since that fell
            "delay": torch.full_like(none, NEVER),  # steps until it acts
            "is_acting": none.bool(),
            "acted": none.clone(),  # steps of this correction
            "begun": far.clone(),  # what was left to do when it took over
            "takeovers": none.clone(),
            **({"calls_in": torch.full_like(none, NEVER)} if self._hasty > 0.0 else {}),  # steps until a hasty call
        }

    def watch(self, obs: Observation, proposed: Actions, carry: Carry, *, is_first: Tensor) -> tuple[Orders, Carry]:
        """Look at what is left to do, and act or let the policy act."""
        numbers = self.expert.numbers(obs)
        left = self.expert.remaining(numbers)
        mind = self._moved_on(self._fresh(carry, is_first), left)
        if self._hasty > 0.0:
            mind = self._call(mind, is_first)
        mind = self._hand_back(mind, left)
        mind = self._take_over(mind, left)
        actions = self.expert.plan(numbers)
        if self.noise > 0.0:
            actions = (actions + self.noise * torch.randn_like(actions)).clamp(-1.0, 1.0)
        is_acting = mind["is_acting"]
        mind["acted"] = mind["acted"] + is_acting
        return Orders(actions, is_acting), mind

    def judge(self, final_obs: Observation, rewards: Tensor) -> Tensor:
        """Say success where nothing is left to do, or where it said so before or says so by mistake."""
        is_success = self.expert.remaining(self.expert.numbers(final_obs)) <= self.expert.done_at
        if self._hasty > 0.0:
            is_success |= rewards > 0.0  # it has called the episode a success
        if self._false_success > 0.0:
            is_success |= torch.rand_like(rewards) < self._false_success
        return torch.where(is_success, SUCCESS, FAILURE)

    def _call(self, mind: dict[str, Tensor], is_first: Tensor) -> dict[str, Tensor]:
        """Decide at the start of an episode whether and when to call it a success too early, and do so."""
        is_hasty, when = torch.rand(is_first.shape) < self._hasty, torch.randint(HASTY_STEPS, is_first.shape)
        drawn = torch.where(is_hasty, when, NEVER).to(is_first.device)
        calls_in = torch.where(is_first, drawn, torch.where(mind["calls_in"] > 0, mind["calls_in"] - 1, NEVER))
        if bool((calls_in == 0).any()):
            self._env.instruct("success")
        return mind | {"calls_in": calls_in}

    def _fresh(self, carry: Carry, is_first: Tensor) -> dict[str, Tensor]:
        """Forget the episode before."""
        start, device = self.initial_carry(len(is_first)), is_first.device
        return {key: torch.where(is_first, start[key].to(device), value.to(device)) for key, value in carry.items()}

    def _moved_on(self, mind: dict[str, Tensor], left: Tensor) -> dict[str, Tensor]:
        """Count the steps without progress; progress calls a reaction off."""
        has_moved = left < mind["best"] - self._min_progress
        return mind | {
            "best": torch.where(has_moved, left, mind["best"]),
            "idle": torch.where(has_moved, 0, mind["idle"] + 1),
            "delay": torch.where(has_moved, NEVER, mind["delay"]),
        }

    def _hand_back(self, mind: dict[str, Tensor], left: Tensor) -> dict[str, Tensor]:
        is_over = (left <= mind["begun"] - self._recovery) | (mind["acted"] >= self._max_steps)
        is_over &= mind["is_acting"]
        return mind | {
            "is_acting": mind["is_acting"] & ~is_over,
            "best": torch.where(is_over, left, mind["best"]),
            "idle": torch.where(is_over, 0, mind["idle"]),
        }

    def _take_over(self, mind: dict[str, Tensor], left: Tensor) -> dict[str, Tensor]:
        is_free = ~mind["is_acting"] & (mind["takeovers"] < self._max_takeovers)
        decides = is_free & (mind["delay"] == NEVER) & (mind["idle"] >= self._patience)
        delay = torch.where(decides, self._reaction, mind["delay"])
        begins = is_free & (delay == 0)
        return mind | {
            "delay": torch.where(begins, NEVER, torch.where(delay > 0, delay - 1, delay)),
            "is_acting": mind["is_acting"] | begins,
            "acted": torch.where(begins, 0, mind["acted"]),
            "begun": torch.where(begins, left, mind["begun"]),
            "takeovers": mind["takeovers"] + begins,
        }
