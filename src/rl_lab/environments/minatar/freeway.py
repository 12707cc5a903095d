"""Freeway of MinAtar: cross eight lanes of traffic again and again until time is up."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_lab.environments.minatar.game import DOWN, LAST, NONE, SIDE, UP, MinAtarGame, cell, steer
from rl_lab.environments.tensor_env import Dynamics

NUM_CARS = 8  # one in each row but the first and the last
MAX_PAUSE = 5  # env steps between two moves of the slowest cars
COLUMN = 4  # of the chicken
PLAYER_PAUSE = 3  # env steps
TIME_LIMIT = 2500  # env steps; the step after it is the last one


class MinAtarFreeway(MinAtarGame):
    """Reach the top, 1 point each time, and start again from the bottom, where a car sends the chicken as well.

    It moves only every third step. A lane's car goes left or right at one of five speeds, drawn anew at every point;
    the channel of its trail tells which. The game ends after 2501 steps, and nothing on the board says when.

    Args:
        num_envs: Copies that step together.
        repeat_action_probability: How often the previous action is taken instead, whatever was chosen.
        minimal_actions: Offer only 3 of the 6 actions: none, up, down.
        max_episode_steps: Env steps after which an episode is cut; null: only the game ends it.
        device: Where the tensors live; the lab gives it.
    """

    title = "Freeway"
    channels = ("chicken", "car", "trail 1", "trail 2", "trail 3", "trail 4", "trail 5")
    useful_actions = (NONE, UP, DOWN)

    def _begin(self) -> Dynamics:
        return {
            "y": self._full(LAST),
            "player_timer": self._full(PLAYER_PAUSE),
            "car_x": self._full(0, NUM_CARS),
            **self._traffic(),
        }

    def _traffic(self) -> Dynamics:
        """Draw how often each car moves and where to: pauses of 1 to 5 steps, negative to the left."""
        draw = self._integers(2 * MAX_PAUSE, NUM_CARS)
        pause = torch.where(draw < MAX_PAUSE, draw - MAX_PAUSE, draw - MAX_PAUSE + 1)
        return {"car_pause": pause, "car_timer": pause.abs()}

    def _play(self, state: Dynamics, actions: Tensor) -> tuple[Dynamics, Tensor, Tensor]:
        is_ready = state["player_timer"] == 0
        y = torch.where(is_ready, steer(state["y"], actions, UP, DOWN), state["y"])
        has_moved = is_ready & ((actions == UP) | (actions == DOWN))
        player_timer = torch.where(has_moved, PLAYER_PAUSE, state["player_timer"])

        is_across = y == 0
        y = torch.where(is_across, LAST, y)
        fresh = self._traffic()
        pause, timer = (torch.where(is_across.unsqueeze(-1), fresh[k], state[k]) for k in ("car_pause", "car_timer"))
        moves = timer == 0
        car_x = torch.where(moves, (state["car_x"] + pause.sign()) % SIDE, state["car_x"])
        # Before its move or after it: only the car of the chicken's own lane counts, and there is none at the bottom.
        is_hit = ((state["car_x"] == COLUMN) | (car_x == COLUMN)) & (self._lines[1:-1] == y.unsqueeze(-1))
        after = {
            "y": torch.where(is_hit.any(-1), LAST, y),
            "player_timer": (player_timer - 1).clamp(min=0),
            "car_x": car_x,
            "car_pause": pause,
            "car_timer": torch.where(moves, pause.abs(), timer - 1),
        }
        return after, is_across, state["elapsed"] >= TIME_LIMIT

    def _observe(self, state: Dynamics) -> Tensor:
        rows, pause = self._lines[1:-1], state["car_pause"]
        chicken = cell(0, state["y"], self._full(COLUMN)).unsqueeze(-1)
        behind = (state["car_x"] - pause.sign()) % SIDE
        return self._paint(torch.cat((chicken, cell(1, rows, state["car_x"]), cell(1 + pause.abs(), rows, behind)), -1))
