"""Episodes that are still being collected: cut out of the stream of vector steps once they end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from rl_lab.buffers.storage.arrivals import goes_on
from rl_lab.core import LabError, State, Trajectory, Tree, tree_cat, tree_map


class OpenEpisodes:
    """Takes trajectories in any pieces and yields whole episodes of one copy, time-major trees [T, ...].

    `final_observations` of an episode is the last one alone, [1, ...]. Steps that do not go on where the last piece
    stopped begin an episode of their own; what came before them is yielded as an episode that was cut (truncated).
    What is open takes up as many steps of every copy as the longest open episode has.

    Args:
        lanes: Environment copies.
        max_steps: An episode with more steps than that is an error; None: of any length.
    """

    def __init__(self, lanes: int, max_steps: int | None = None) -> None:
        self._max_steps = max_steps
        self._pieces: list[Trajectory] = []  # steps that some open episode still needs, oldest first
        self._origin = 0  # number of the first step in them
        self._starts = [0] * lanes  # number of the first step of each lane's open episode
        self._count = 0  # steps ever taken
        self._before: dict[str, Any] | None = None
        self.closed = range(0)  # numbers of the steps of the episode that was yielded last

    @property
    def count(self) -> int:
        """Return how many vector steps it has taken."""
        return self._count

    @property
    def oldest(self) -> int:
        """Return the number of the first step that is still open."""
        return min(self._starts)

    def take(self, trajectory: Trajectory) -> Iterator[Trajectory]:
        """Yield the episodes that end in these steps, in the order of their ends."""
        ended, finals = trajectory["terminated"] | trajectory["truncated"], trajectory["final_observations"]
        if self._before is not None:
            is_new = trajectory["is_first"][0] | ~goes_on(trajectory["observations"], self._before, ended[0])
            for lane in (is_new & ~self._before["ended"]).nonzero().flatten().tolist():
                yield self._close(lane, self._count, _at(self._before["finals"], lane))
        self._pieces.append({key: value for key, value in trajectory.items() if key != "final_observations"})
        first, self._count = self._count, self._count + len(ended)
        self._before = tree_map(lambda x: x[-1].clone(), {"finals": finals, "ended": ended})
        for step, lane in ended.nonzero().tolist():
            yield self._close(lane, first + step + 1, _at(finals, step, lane))
        self._forget()
        self._reject_long()

    def cut(self) -> Iterator[Trajectory]:
        """Yield what is open of every copy, as an episode that was cut (truncated)."""
        if self._before is None:
            return
        for lane, start in enumerate(self._starts):
            if start < self._count:
                yield self._close(lane, self._count, _at(self._before["finals"], lane))
        self._before = None
        self._forget()

    def get_state(self) -> State:
        """Return the open steps."""
        return {
            "pieces": tree_cat(self._pieces) if self._pieces else None,
            "origin": self._origin,
            "starts": list(self._starts),
            "count": self._count,
            "before": self._before,
        }

    def set_state(self, state: State, device: torch.device) -> None:
        """Go on from `state`."""
        pieces, self._before = tree_map(lambda leaf: leaf.to(device), (state["pieces"], state["before"]))
        self._pieces = [] if pieces is None else [pieces]
        self._origin, self._count, self._starts = state["origin"], state["count"], list(state["starts"])

    def _reject_long(self) -> None:
        longest = self._count - min(self._starts)
        if self._max_steps is not None and longest > self._max_steps:
            raise LabError(
                f"an episode has {longest} steps and goes on, a buffer takes up to {self._max_steps}: raise capacity"
            )

    def _close(self, lane: int, end: int, final: Tree) -> Trajectory:
        """Return steps `start .. end - 1` of a lane, the last one marked as an end."""
        start, self._starts[lane] = self._starts[lane], end
        self.closed = range(start, end)
        parts, number = [], self._origin
        for piece in self._pieces:
            length = piece["rewards"].shape[0]
            low, high = max(start - number, 0), min(end - number, length)
            if low < high:
                parts.append(_column(piece, low, high, lane))
            number += length
        episode = tree_cat(parts)
        if not (episode["terminated"][-1] | episode["truncated"][-1]):
            episode["truncated"] = episode["truncated"].clone()
            episode["truncated"][-1] = True
        return {**episode, "final_observations": final}

    def _forget(self) -> None:
        oldest = self.oldest
        while self._pieces and self._origin + self._pieces[0]["rewards"].shape[0] <= oldest:
            self._origin += self._pieces.pop(0)["rewards"].shape[0]
        if self._pieces and self._origin < oldest:  # cut the first one, so that the state does not depend on the pieces
            spare = oldest - self._origin
            self._pieces[0] = tree_map(lambda x: x[spare:], self._pieces[0])
            self._origin = oldest
        if not self._pieces:
            self._origin = oldest


def _column(piece: Tree, low: int, high: int, lane: int) -> Tree:
    return tree_map(lambda x: x[low:high, lane], piece)


def _at(tree: Tree, *place: int) -> Tree:
    """Return one entry, [1, ...]."""
    return tree_map(lambda x: x[place][None].clone(), tree)
