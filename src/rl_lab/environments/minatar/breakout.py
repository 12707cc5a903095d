"""Breakout of MinAtar: a paddle, a ball that flies along diagonals, and three rows of bricks."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_lab.environments.minatar.game import LAST, LEFT, NONE, RIGHT, ROW, MinAtarGame, cell, steer
from rl_lab.environments.tensor_env import Dynamics

WALL = (0, ROW, ROW, ROW, 0, 0, 0, 0, 0, 0)  # the rows of bricks
START_ROW = 3  # of the ball
START_PADDLE = 4


class MinAtarBreakout(MinAtarGame):
    """Keep the ball off the ground; 1 point per brick, and a new wall once all are gone and the ball comes down.

    The ball starts at the left or at the right edge. It is reflected by walls, bricks and the paddle; where the paddle
    is met at its corner, the ball flies back where it came from. Right after a brick it flies through the next one.

    Args:
        num_envs: Copies that step together.
        repeat_action_probability: How often the previous action is taken instead, whatever was chosen.
        minimal_actions: Offer only 3 of the 6 actions: none, left, right.
        max_episode_steps: Env steps after which an episode is cut; null: only the game ends it.
        device: Where the tensors live; the lab gives it.
    """

    title = "Breakout"
    channels = ("paddle", "ball", "trail", "brick")
    useful_actions = (NONE, LEFT, RIGHT)

    def _begin(self) -> Dynamics:
        starts_right = self._integers(2)
        x, y = starts_right * LAST, self._full(START_ROW)
        return {
            "paddle": self._full(START_PADDLE),
            **{"x": x, "y": y, "last_x": x, "last_y": y},
            "dx": 1 - 2 * starts_right,
            "dy": self._full(1),
            "bricks": self._board(WALL),
            "struck": self._full(False),
        }

    def _play(self, state: Dynamics, actions: Tensor) -> tuple[Dynamics, Tensor, Tensor]:
        paddle = steer(state["paddle"], actions, LEFT, RIGHT)
        x, y = state["x"] + state["dx"], state["y"] + state["dy"]
        meets_side, meets_top = (x < 0) | (x > LAST), y < 0
        x, y = x.clamp(0, LAST), y.clamp(min=0)
        row, bit = state["bricks"].gather(1, y.unsqueeze(-1)), (1 << x).unsqueeze(-1)
        meets_brick = ((row & bit) > 0).squeeze(-1)
        breaks = meets_brick & ~state["struck"]
        bricks = state["bricks"].scatter(1, y.unsqueeze(-1), torch.where(breaks.unsqueeze(-1), row - bit, row))

        falls = y == LAST
        is_cleared = falls & (bricks.amax(-1) == 0)
        bricks = torch.where(is_cleared.unsqueeze(-1), self._board(WALL), bricks)
        meets_paddle = falls & (state["x"] == paddle)
        meets_corner = falls & ~meets_paddle & (x == paddle)
        bounces = breaks | meets_paddle | meets_corner
        after = {
            "paddle": paddle,
            **{"x": x, "y": torch.where(bounces, state["y"], y), "last_x": state["x"], "last_y": state["y"]},
            "dx": torch.where(meets_side ^ meets_corner, -state["dx"], state["dx"]),
            "dy": torch.where(meets_top | bounces, -state["dy"], state["dy"]),
            "bricks": bricks,
            "struck": meets_brick,
        }
        return after, breaks, falls & ~meets_paddle & ~meets_corner

    def _observe(self, state: Dynamics) -> Tensor:
        ball, trail = cell(1, state["y"], state["x"]), cell(2, state["last_y"], state["last_x"])
        picture = self._paint(torch.stack((cell(0, LAST, state["paddle"]), ball, trail), dim=-1))
        picture[:, 3] = self._channel(state["bricks"])
        return picture
