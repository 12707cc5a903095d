"""What ranks decide together, against others that are made up."""

import os
import signal
import time

from rl_lab.core import Counters
from rl_lab.core.ranks import ALONE, Ranks
from rl_lab.orchestration.agreement import Agreement
from rl_lab.orchestration.signals import StopRequest, stop_on_signals


class Beside(Ranks):
    """The first of two ranks; the other one says what it is told to."""

    size = 2

    def __init__(self, *others):
        self.others, self.asked = list(others), 0

    def numbers(self, *own):
        self.asked += 1
        return [tuple(map(int, own)), self.others.pop(0)]


class Fake:
    def __init__(self, ready, is_on_policy=False):
        self.ready, self.is_on_policy = ready, is_on_policy

    def is_ready(self):
        return self.ready


def test_all_stop_when_one_is_asked_to():
    agreement, counters = Agreement(Beside((0, 0, 3), (signal.SIGTERM, 0, 4))), Counters()
    assert not agreement.settle(False, counters, 2)
    assert not agreement.stop()
    assert counters.episodes == 5
    assert agreement.settle(False, counters, 2)
    assert agreement.stop.signal == signal.SIGTERM
    assert counters.episodes == 6
    assert not agreement.heard()


def test_nobody_stops_before_the_others_know():
    agreement = Agreement(Beside((0, 0, 0)))
    agreement.heard.ask(signal.SIGINT)
    assert not agreement.stop()
    assert agreement.settle(False, Counters(), 0)
    assert agreement.stop.signal == signal.SIGINT


def test_all_save_when_one_wants_to():
    agreement = Agreement(Beside((0, 1, 0), (0, 0, 0)))
    assert agreement.settle(False, Counters(), 0)
    assert agreement.settle(True, Counters(), 0)
    assert not agreement.stop()


def test_replay_is_used_when_all_have_some_and_not_asked_about_again():
    ranks, buffer = Beside((0,), (1,)), Fake(True)
    agreement = Agreement(ranks)
    assert not agreement.is_ready(buffer)
    assert agreement.is_ready(buffer)
    assert agreement.is_ready(buffer)
    assert ranks.asked == 2
    assert not agreement.is_ready(Fake(False, is_on_policy=True))


def test_alone_nothing_is_asked():
    agreement = Agreement(ALONE)
    counters = Counters()
    agreement.count(counters, 7)
    assert not agreement.settle(False, counters, 9)
    assert counters.episodes == 7
    agreement.heard.ask()
    assert agreement.stop()
    assert agreement.settle(False, counters, 9)
    assert agreement.is_ready(Fake(True))


def test_a_signal_that_comes_twice_at_once_is_one():
    request = StopRequest()
    late = []
    signal.signal(signal.SIGTERM, lambda *_: late.append(1))
    with stop_on_signals(request, echo_s=60.0):
        for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
            time.sleep(0.01)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert request.signal == signal.SIGINT
    assert late == []
