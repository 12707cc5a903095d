"""Space Invaders of MinAtar: a cannon against a block of aliens that sinks and shoots back."""

from __future__ import annotations

from functools import reduce
from operator import or_

import torch
from torch import Tensor
from torch.nn import functional as F

from rl_lab.environments.minatar.game import FIRE, LAST, LEFT, NONE, RIGHT, SIDE, RampingGame, cell, steer
from rl_lab.environments.tensor_env import Dynamics

WAVE_ROW = 0b0011111100  # columns 2 to 7
WAVE = (WAVE_ROW, WAVE_ROW, WAVE_ROW, WAVE_ROW, 0, 0, 0, 0, 0, 0)
START_CANNON = 5
SHOT_PAUSE = 5  # env steps between two shots of the cannon
ALIEN_SHOT_PAUSE = 10  # env steps
MOVE_INTERVAL = 12  # env steps between two moves of the aliens, or as many as there are aliens
MIN_MOVE_INTERVAL = 6  # as far as ramping goes


class MinAtarSpaceInvaders(RampingGame):
    """Shoot aliens, 1 point each; a bullet or an alien at the cannon, or aliens beyond the ground, end the episode.

    The fewer aliens are left the faster they move. With `ramping` every new wave is faster than the last, six times.

    Args:
        num_envs: Copies that step together.
        ramping: Whether every new wave moves faster than the last.
        repeat_action_probability: How often the previous action is taken instead, whatever was chosen.
        minimal_actions: Offer only 4 of the 6 actions: none, left, right, fire.
        max_episode_steps: Env steps after which an episode is cut; null: only the game ends it.
        device: Where the tensors live; the lab gives it.
    """

    title = "SpaceInvaders"
    channels = ("cannon", "alien", "alien going left", "alien going right", "bullet", "alien bullet")
    useful_actions = (NONE, LEFT, RIGHT, FIRE)

    def _begin(self) -> Dynamics:
        return {
            "cannon": self._full(START_CANNON),
            "bullets": self._full(0, SIDE),
            "alien_bullets": self._full(0, SIDE),
            "aliens": self._board(WAVE),
            "goes_right": self._full(False),
            "shot_timer": self._full(0),
            "move_interval": self._full(MOVE_INTERVAL),
            "move_timer": self._full(MOVE_INTERVAL),
            "alien_shot_timer": self._full(ALIEN_SHOT_PAUSE),
        }

    def _play(self, state: Dynamics, actions: Tensor) -> tuple[Dynamics, Tensor, Tensor]:
        cannon = steer(state["cannon"], actions, LEFT, RIGHT)
        fires = (actions == FIRE) & (state["shot_timer"] == 0)
        shot = (fires.long() << cannon).unsqueeze(-1)
        bullets = torch.cat((state["bullets"][:, 1:LAST], shot, self._full(0, 1)), dim=1)
        alien_bullets = F.pad(state["alien_bullets"][:, :LAST], (1, 0))
        is_shot = _is_hit(alien_bullets, cannon)

        aliens, moved, is_over = _move(state, self._count(state["aliens"]), cannon)
        aims = (state["alien_shot_timer"] == 0).unsqueeze(-1)
        alien_bullets = alien_bullets | (self._nearest(aliens, cannon) * aims)
        hits = aliens & bullets
        after = {"cannon": cannon, "bullets": bullets ^ hits, "alien_bullets": alien_bullets, **moved}
        after["shot_timer"] = (torch.where(fires, SHOT_PAUSE, state["shot_timer"]) - 1).clamp(min=0)
        after["alien_shot_timer"] = (state["alien_shot_timer"] - 1) % ALIEN_SHOT_PAUSE
        return after | self._wave(aliens ^ hits, state["move_interval"]), self._count(hits), is_over | is_shot

    def _nearest(self, aliens: Tensor, cannon: Tensor) -> Tensor:
        """Return a board with the alien that shoots: the lowest of the nearest column, of two as near the left one."""
        is_column = (reduce(or_, aliens.unbind(1)).unsqueeze(-1) >> self._lines & 1) > 0
        distance = (self._lines - cannon.unsqueeze(-1)).abs() * SIDE + self._lines  # no two are the same
        column = distance.masked_fill(~is_column, SIDE**2).argmin(-1, keepdim=True)
        row = ((aliens >> column & 1) * self._lines).amax(-1, keepdim=True)
        return (self._lines == row).long() << column

    def _wave(self, aliens: Tensor, interval: Tensor) -> Dynamics:
        """Return the aliens, a new and faster wave where none is left."""
        is_cleared = aliens.amax(-1) == 0
        wave = torch.where(is_cleared.unsqueeze(-1), self._board(WAVE), aliens)
        if not self._ramping:
            return {"aliens": wave}
        return {"aliens": wave, "move_interval": (interval - is_cleared.long()).clamp(min=MIN_MOVE_INTERVAL)}

    def _observe(self, state: Dynamics) -> Tensor:
        picture = self._paint(cell(0, LAST, state["cannon"]).unsqueeze(-1))
        boards = torch.cat((state["aliens"], state["bullets"], state["alien_bullets"]), dim=1)
        aliens, bullets, alien_bullets = self._channel(boards).view(-1, 3, SIDE, SIDE).unbind(1)
        goes_right = state["goes_right"].view(-1, 1, 1)
        channels = (aliens, aliens * ~goes_right, aliens * goes_right, bullets, alien_bullets)
        for index, channel in enumerate(channels, 1):
            picture[:, index] = channel
        return picture


def _move(state: Dynamics, num_aliens: Tensor, cannon: Tensor) -> tuple[Tensor, Dynamics, Tensor]:
    """Return the aliens after their move, where it is due, its clock and direction, and where it ends the game."""
    aliens, goes_right = state["aliens"], state["goes_right"]
    moves = state["move_timer"] == 0
    edge = torch.where(goes_right, 1 << LAST, 1)
    turns = moves & ((aliens & edge.unsqueeze(-1)).amax(-1) > 0)
    slid = torch.where(goes_right.unsqueeze(-1), aliens << 1, aliens >> 1)
    after = torch.where(turns.unsqueeze(-1), aliens.roll(1, 1), torch.where(moves.unsqueeze(-1), slid, aliens))
    timer = torch.where(moves, torch.minimum(num_aliens, state["move_interval"]), state["move_timer"]) - 1
    is_over = _is_hit(aliens, cannon) | _is_hit(after, cannon) | (turns & (aliens[:, LAST] > 0))
    return after, {"move_timer": timer, "goes_right": goes_right ^ turns}, is_over


def _is_hit(board: Tensor, cannon: Tensor) -> Tensor:
    """Return whether a board is set where the cannon stands, [N]."""
    return (board[:, LAST] >> cannon & 1) > 0
