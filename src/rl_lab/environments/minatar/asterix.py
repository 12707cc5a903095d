"""Asterix of MinAtar: enemies and gold run through eight rows, more of them and faster as time goes on."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from rl_lab.environments.minatar.game import DOWN, LAST, LEFT, NONE, ON, RIGHT, UP, RampingGame, cell, steer
from rl_lab.environments.tensor_env import Dynamics

NUM_RUNNERS = 8  # one in each row but the first and the last
START_CELL = 5
SPAWN_INTERVAL = 10  # env steps, at first
MOVE_INTERVAL = 5  # env steps, at first
RAMP_INTERVAL = 100  # env steps
GOLD_SHARE = 1 / 3


class MinAtarAsterix(RampingGame):
    """Collect gold, 1 point each, and keep away from enemies: touching one ends the episode.

    With `ramping` the intervals between two runners and between their moves shrink: the former at every ramp, the
    latter at every second one, both down to 1.

    Args:
        num_envs: Copies that step together.
        ramping: Whether runners come and move faster as time goes on.
        repeat_action_probability: How often the previous action is taken instead, whatever was chosen.
        minimal_actions: Offer only 5 of the 6 actions: none, left, up, right, down.
        max_episode_steps: Env steps after which an episode is cut; null: only the game ends it.
        device: Where the tensors live; the lab gives it.
    """

    title = "Asterix"
    channels = ("player", "enemy", "trail", "gold")
    useful_actions = (NONE, LEFT, UP, RIGHT, DOWN)

    def _begin(self) -> Dynamics:
        return {
            "x": self._full(START_CELL),
            "y": self._full(START_CELL),
            "is_running": self._full(False, NUM_RUNNERS),
            "runner_x": self._full(0, NUM_RUNNERS),
            "goes_right": self._full(False, NUM_RUNNERS),
            "is_gold": self._full(False, NUM_RUNNERS),
            "spawn_interval": self._full(SPAWN_INTERVAL),
            "spawn_timer": self._full(SPAWN_INTERVAL),
            "move_interval": self._full(MOVE_INTERVAL),
            "move_timer": self._full(MOVE_INTERVAL),
            "ramp_timer": self._full(RAMP_INTERVAL),
            "num_ramps": self._full(0),
        }

    def _play(self, state: Dynamics, actions: Tensor) -> tuple[Dynamics, Tensor, Tensor]:
        runners = self._spawn(state)
        x = steer(state["x"], actions, LEFT, RIGHT)
        y = steer(state["y"], actions, UP, DOWN, low=1, high=NUM_RUNNERS)
        is_running, runner_x, goes_right = (runners[key] for key in ("is_running", "runner_x", "goes_right"))
        in_row = self._lines[1:-1] == y.unsqueeze(-1)  # [N, 8]

        is_met = is_running & in_row & (runner_x == x.unsqueeze(-1))
        is_running = is_running & ~(is_met & runners["is_gold"])
        moves = (state["move_timer"] == 0).unsqueeze(-1)
        runner_x = torch.where(moves & is_running, runner_x + 2 * goes_right.long() - 1, runner_x)
        is_running = is_running & (runner_x >= 0) & (runner_x <= LAST)
        is_met_moving = moves & is_running & in_row & (runner_x == x.unsqueeze(-1))
        is_running = is_running & ~(is_met_moving & runners["is_gold"])

        points = ((is_met | is_met_moving) & runners["is_gold"]).sum(-1)
        is_over = ((is_met | is_met_moving) & ~runners["is_gold"]).any(-1)
        after = {**runners, "x": x, "y": y, "is_running": is_running, "runner_x": runner_x}
        return {**after, **self._timers(state)}, points, is_over

    def _spawn(self, state: Dynamics) -> Dynamics:
        """Return the runners with a new one in a free row, where one is due and a row is free."""
        draw = self._uniform(2 + NUM_RUNNERS)
        comes_right, is_gold = draw[:, :1] < 0.5, draw[:, 1:2] < GOLD_SHARE
        lot = draw[:, 2:].masked_fill(state["is_running"], -1.0)
        is_due = (state["spawn_timer"] == 0).unsqueeze(-1)
        chosen = F.one_hot(lot.argmax(-1), NUM_RUNNERS).bool() & ~state["is_running"] & is_due
        return {
            "is_running": state["is_running"] | chosen,
            "runner_x": torch.where(chosen, LAST * ~comes_right, state["runner_x"]),
            "goes_right": torch.where(chosen, comes_right, state["goes_right"]),
            "is_gold": torch.where(chosen, is_gold, state["is_gold"]),
        }

    def _timers(self, state: Dynamics) -> Dynamics:
        """Return the clocks a step later; one that ran out starts again from its interval as it was before a ramp."""
        spawn_interval, move_interval = state["spawn_interval"], state["move_interval"]
        spawn_timer = torch.where(state["spawn_timer"] == 0, spawn_interval, state["spawn_timer"]) - 1
        move_timer = torch.where(state["move_timer"] == 0, move_interval, state["move_timer"]) - 1
        after = {"spawn_timer": spawn_timer, "move_timer": move_timer}
        if not self._ramping:
            return after
        is_ramping = (spawn_interval > 1) | (move_interval > 1)
        ramps = is_ramping & (state["ramp_timer"] < 0)
        speeds_up = ramps & (state["num_ramps"] % 2 == 1)
        return after | {
            "spawn_interval": (spawn_interval - ramps.long()).clamp(min=1),
            "move_interval": (move_interval - speeds_up.long()).clamp(min=1),
            "ramp_timer": torch.where(ramps, RAMP_INTERVAL, state["ramp_timer"] - is_ramping.long()),
            "num_ramps": state["num_ramps"] + ramps,
        }

    def _observe(self, state: Dynamics) -> Tensor:
        rows, is_running = self._lines[1:-1], state["is_running"]
        behind = state["runner_x"] + 1 - 2 * state["goes_right"].long()
        cells = (
            cell(0, state["y"], state["x"]).unsqueeze(-1),
            cell(1 + 2 * state["is_gold"].long(), rows, state["runner_x"].clamp(0, LAST)),
            cell(2, rows, behind.clamp(0, LAST)),
        )
        has_trail = is_running & (behind >= 0) & (behind <= LAST)
        # No two of these cells are the same: what is not there writes the 0 that is there already.
        is_set = torch.cat((self._full(True, 1), is_running, has_trail), dim=-1)
        return self._paint(torch.cat(cells, dim=-1), is_set.to(torch.uint8) * ON)
