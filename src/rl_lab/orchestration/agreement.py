"""What the ranks of a run decide together, so that none waits for ever for another that does something else."""

from __future__ import annotations

from rl_lab.core.buffer import Buffer
from rl_lab.core.context import Counters
from rl_lab.core.ranks import Ranks
from rl_lab.orchestration.signals import StopRequest

ECHO_S = 1.0


class Agreement:
    """Asks the other ranks where they may differ: signals, wall clocks, episodes, buffers. With one it costs nothing.

    Attributes:
        heard: What this process was asked.
        stop: What all of them know of: it changes only in `settle`.
        echo_s: How soon after a signal another one is the same; see `stop_on_signals`.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.heard = StopRequest()
        self.stop = self.heard if ranks.size == 1 else StopRequest()
        self.echo_s = 0.0 if ranks.size == 1 else ECHO_S
        self._ready: set[int] = set()

    def count(self, counters: Counters, episodes: int) -> None:
        """Count the episodes that have ended here; those of several ranks are counted in `settle`."""
        if self._ranks.size == 1:
            counters.episodes = episodes

    def settle(self, is_due: bool, counters: Counters, episodes: int) -> bool:
        """Stop if any was asked to, and count all episodes; return whether to save: to stop, or because any wants to.

        `episodes` have ended here.
        """
        if self._ranks.size > 1:
            said = self._ranks.numbers(self.heard.signal or 0, is_due, episodes)
            signals, wishes, ended = zip(*said, strict=True)
            self.stop.signal, is_due, counters.episodes = max(signals) or None, any(wishes), sum(ended)
        return is_due or self.stop()

    def is_ready(self, buffer: Buffer) -> bool:
        """Return whether all have something to learn from; replay that once was ready is not asked again."""
        if self._ranks.size == 1 or buffer.is_on_policy:  # rollouts are full after as many steps everywhere
            return buffer.is_ready()
        if id(buffer) not in self._ready and all(ready for (ready,) in self._ranks.numbers(buffer.is_ready())):
            self._ready.add(id(buffer))
        return id(buffer) in self._ready
