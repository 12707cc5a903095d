"""The loop beside the robot: what it does with a step in hand while there is no room for it."""

import pytest
import torch
from torch import nn

from rl_lab.core import HookCall, Phase, Workflow
from rl_lab.core.context import Counters
from rl_lab.distributed.transport.interface import NoRoom, Sender, SenderStatus, TransportError, Weights
from rl_lab.environments.counting import Counting
from rl_lab.orchestration.actor import Actor
from rl_lab.orchestration.bulletin import Bulletin, pack, weights_of
from rl_lab.orchestration.collector import Collector
from tests.orchestration.parts import no_timer


class Still(Workflow):
    """Always does the same."""

    def __init__(self):
        super().__init__()
        self.policy = nn.Linear(1, 1)

    def initialize(self, context):
        pass

    def act(self, obs, carry, *, is_first, explore, step):
        return torch.zeros(len(is_first), dtype=torch.int64), {}, carry


class Desk(Collector):
    """Writes down what becomes of the robot."""

    def __init__(self):
        super().__init__(Counting(1), 0, no_timer)
        self.env.instruct = lambda instruction: self.heard.append(instruction)
        self.heard = []

    def close(self):
        self.heard.append("closed")
        super().close()


class Full(Sender):
    """A sender whose spool takes nothing until it is told to."""

    run = "r"

    def __init__(self):
        self.problem, self.tried, self.newest = NoRoom("it is full"), [], None
        self.problem_of_closing = None

    def send(self, step, timeout_s=None, *, is_last=False):
        self.tried.append(is_last)
        if self.problem is not None:
            raise self.problem
        return len(self.tried) - 1

    def newest_weights(self):
        newest, self.newest = self.newest, None
        return newest

    def flush(self, timeout_s):
        return False

    def status(self):
        return SenderStatus(True, 0, 0, "")

    def close(self):
        if self.problem_of_closing is not None:
            raise self.problem_of_closing


def make_actor():
    actor = Actor(
        workflow=Still(),
        companions=None,
        collector=Desk(),
        sender=Full(),
        phases=[Phase("only", "online", (HookCall("collect"),), "steps", 9, "buffer")],
        counters=Counters(),
        name="robot",
        tells=False,
    )
    return actor, actor.sender


def holding():
    """An actor with a step in hand."""
    actor, sender = make_actor()
    assert not actor.step()
    assert actor.collector.heard == ["hold"]
    return actor, sender


def test_one_that_waits_for_room_hears_that_the_run_is_over():
    actor, sender = holding()
    sender.newest = Weights(1, pack(weights_of(actor.workflow, None), Bulletin(is_over=True)))
    looks = iter(range(5))
    actor.run(should_stop=lambda: next(looks) == 4)
    assert actor.told.is_over
    assert sender.tried == [False, False]  # it looks once more for room, and ends


def test_the_step_in_hand_is_recorded_when_there_is_room():
    actor, sender = holding()
    sender.problem = None
    assert actor.step()
    assert (actor.num_steps, sender.tried) == (1, [False, False])
    actor.close()
    assert sender.tried == [False, False]


@pytest.mark.parametrize(
    ("problem", "line"),
    [
        (None, []),
        (NoRoom("it is full"), ["the last step is lost: it is full"]),
        (TransportError("the spool cannot be written"), ["the last step: the spool cannot be written"]),
    ],
)
def test_closing_sends_the_step_in_hand_once(problem, line, caplog):
    actor, sender = holding()
    caplog.clear()
    sender.problem = problem
    actor.close()
    actor.close()
    assert sender.tried == [False, True]
    assert caplog.messages == line


@pytest.mark.parametrize("at", ["send", "close"])
def test_the_robot_is_let_go_whatever_the_sender_does(at):
    actor, sender = holding()
    if at == "send":
        sender.problem = OSError("broken")
    else:
        sender.problem_of_closing = OSError("broken")
    with pytest.raises(OSError, match="broken"):
        actor.close()
    assert actor.collector.heard == ["hold", "closed"]
