"""What the games of MinAtar share (Young and Tian, 2019, arXiv 1903.03176): actions, sticky actions and the picture."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from rl_lab.core import Box, ConfigError, Discrete, EnvSpec
from rl_lab.environments.tensor_env import Dynamics, TensorEnv

SIDE = 10  # cells
LAST = SIDE - 1  # the bottom row, the rightmost column
NONE, LEFT, UP, RIGHT, DOWN, FIRE = range(6)
ALL_ACTIONS = (NONE, LEFT, UP, RIGHT, DOWN, FIRE)
ON = 255  # networks read a picture as its bytes over 255, so a cell is 0 or 1 to them
ROW = (1 << SIDE) - 1  # a board is ten rows of ten bits, [N, 10] integers: bit x of row y is the cell (y, x)


class MinAtarGame(TensorEnv):
    """Takes one of six actions, or of those that do something, and shows one channel per kind of object.

    A game writes `_begin`, `_play` and `_observe`. Now and then the previous action is taken again instead of the new
    one; before the first step of an episode nothing was done.

    Args:
        num_envs: Copies that step together.
        repeat_action_probability: How often the previous action is taken instead, whatever was chosen.
        minimal_actions: Offer only the actions that do something in this game, in the order of the six.
        max_episode_steps: Env steps after which an episode is cut; null: only the game ends it.
        device: Where the tensors live; the lab gives it.
    """

    title: ClassVar[str]
    channels: ClassVar[tuple[str, ...]]
    useful_actions: ClassVar[tuple[int, ...]]

    def __init__(
        self,
        num_envs: int,
        *,
        repeat_action_probability: float = 0.1,
        minimal_actions: bool = False,
        max_episode_steps: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        if not 0.0 <= repeat_action_probability <= 1.0:
            wrong = repeat_action_probability
            raise ConfigError(f"environment.repeat_action_probability must be between 0 and 1, got {wrong}")
        offered = self.useful_actions if minimal_actions else ALL_ACTIONS
        picture = Box((len(self.channels), SIDE, SIDE), torch.uint8, low=0, high=ON)
        spec = EnvSpec(f"tensor/MinAtar-{self.title}", picture, Discrete(len(offered)), max_episode_steps)
        super().__init__(spec, num_envs, device)
        self._offered = torch.tensor(offered, device=self.device)
        self._repeat_action_probability = repeat_action_probability
        self._constants: dict[tuple[object, ...], Tensor] = {}
        self._lines = torch.arange(SIDE, device=self.device)  # numbers of rows, or of columns
        bits = torch.arange(ROW + 1, device=self.device).unsqueeze(-1) >> self._lines & 1  # [1024, 10]
        self._pixels, self._counts = bits.to(torch.uint8) * ON, bits.sum(-1)

    @abstractmethod
    def _begin(self) -> Dynamics:
        """Return the start of a game for every copy."""

    @abstractmethod
    def _play(self, state: Dynamics, actions: Tensor) -> tuple[Dynamics, Tensor, Tensor]:
        """Return the next state, points [N] and where the game is over, [N], for actions among the six."""

    def _initial(self) -> Dynamics:
        return {**self._begin(), "last_action": self._full(NONE)}

    def _advance(self, state: Dynamics, actions: Tensor) -> tuple[Dynamics, Tensor, Tensor]:
        is_repeated = self._uniform() < self._repeat_action_probability
        taken = torch.where(is_repeated, state["last_action"], self._offered[actions])
        after, points, is_over = self._play(state, taken)
        return {**after, "last_action": taken}, points.float(), is_over

    def _full(self, value: int, *shape: int) -> Tensor:
        """Return the same integer or truth value everywhere, [N, *shape]: a tensor that nobody may write to."""
        return self._constant((type(value), value, *shape), lambda: torch.full((self.num_envs, *shape), value))

    def _board(self, rows: tuple[int, ...]) -> Tensor:
        """Return the same board for every copy, [N, 10]: a tensor that nobody may write to."""
        return self._constant(rows, lambda: torch.tensor(rows).repeat(self.num_envs, 1))

    def _constant(self, key: tuple[object, ...], make: Callable[[], Tensor]) -> Tensor:
        """Return what is made once: games start alike, and fresh starts are asked for at every step."""
        if key not in self._constants:
            self._constants[key] = make().to(self.device)
        return self._constants[key]

    def _paint(self, cells: Tensor, values: Tensor | int = ON) -> Tensor:
        """Return a picture with these cells set, [N, C, 10, 10]; see `cell` for their numbers, [N, K]."""
        picture = torch.zeros(self.num_envs, len(self.channels) * SIDE**2, dtype=torch.uint8, device=self.device)
        return picture.scatter_(1, cells, values).view(self.num_envs, -1, SIDE, SIDE)

    def _channel(self, board: Tensor) -> Tensor:
        """Return a board, or several in a row, as pixels, [N, 10, 10] or [N * boards, 10, 10]."""
        return self._pixels.index_select(0, board.flatten()).view(-1, SIDE, SIDE)

    def _count(self, board: Tensor) -> Tensor:
        """Return how many cells of a board are set, [N]."""
        return self._counts.index_select(0, board.flatten()).view(-1, SIDE).sum(-1)


class RampingGame(MinAtarGame):
    """A game that may become harder as it goes on.

    Args:
        num_envs: Copies that step together.
        ramping: Whether the game becomes harder as it goes on.
        repeat_action_probability: How often the previous action is taken instead, whatever was chosen.
        minimal_actions: Offer only the actions that do something in this game, in the order of the six.
        max_episode_steps: Env steps after which an episode is cut; null: only the game ends it.
        device: Where the tensors live; the lab gives it.
    """

    def __init__(
        self,
        num_envs: int,
        *,
        ramping: bool = True,
        repeat_action_probability: float = 0.1,
        minimal_actions: bool = False,
        max_episode_steps: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(
            num_envs,
            repeat_action_probability=repeat_action_probability,
            minimal_actions=minimal_actions,
            max_episode_steps=max_episode_steps,
            device=device,
        )
        self._ramping = ramping


def steer(position: Tensor, actions: Tensor, back: int, forth: int, low: int = 0, high: int = LAST) -> Tensor:
    """Return the positions [N] after a step by the action `back` or `forth`, within the bounds."""
    return (position + (actions == forth).long() - (actions == back).long()).clamp(low, high)


def cell(channel: Tensor | int, row: Tensor | int, column: Tensor) -> Tensor:
    """Return the number of a cell within a picture."""
    return (channel * SIDE + row) * SIDE + column
