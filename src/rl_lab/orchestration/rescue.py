"""What a robot did before it failed is kept: the steps at hand go into the buffer, and open episodes end there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rl_lab.core.buffer import Buffer
from rl_lab.core.errors import EnvironmentFault
from rl_lab.orchestration.collector import Collector
from rl_lab.orchestration.supervision import Companions


@contextmanager
def rescued(collector: Collector, companions: Companions | None, buffer: Buffer | None) -> Iterator[None]:
    """Let a buffer keep what the collector has at hand when the environment fails; the error goes on."""
    try:
        yield
    except EnvironmentFault:
        if buffer is not None:
            _keep(collector, companions, buffer)
        raise


def _keep(collector: Collector, companions: Companions | None, buffer: Buffer) -> None:
    at_hand = collector.at_hand
    if at_hand is not None:
        at_hand = at_hand if companions is None else companions.recorded(at_hand)
        assert at_hand.trajectory is not None
        buffer.receive(at_hand.trajectory, at_hand.seen)
    buffer.end_episodes()
