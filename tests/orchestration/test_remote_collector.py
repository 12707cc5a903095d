"""Steps from the transport as a collector's: how many, of which phase, into which buffer."""

from copy import deepcopy

import pytest
import torch

from rl_lab.core import HookCall, Phase, Witness
from rl_lab.core.errors import EnvironmentFault
from rl_lab.distributed.transport.memory import MemoryReceiver, MemorySender
from rl_lab.distributed.transport.schema import Schema
from rl_lab.environments.counting import Counting
from rl_lab.orchestration.interventions import Interventions
from rl_lab.orchestration.notes import packed_note
from rl_lab.orchestration.remote_collector import RemoteCollector
from rl_lab.orchestration.streams import ActorStreams
from tests.orchestration.parts import no_timer

LENGTH = 5  # steps of an episode


class Column(list):
    """A buffer that keeps the numbers of its rows."""

    def receive(self, trajectory, seen):
        self.add(trajectory)

    def add(self, trajectory):
        self.extend(trajectory["rewards"][:, 0].int().tolist())


def step(number, phase=0, is_intervention=False, watcher=None):
    flags = {"terminated": number % LENGTH == LENGTH - 1, "truncated": False, "is_first": number % LENGTH == 0}
    return {
        "rewards": torch.tensor([float(number)]),
        **{key: torch.tensor([flag]) for key, flag in flags.items()},
        "infos": {"is_intervention": torch.tensor([float(is_intervention)])},
        "phase": torch.tensor([phase]),
        **({} if watcher is None else told(number, is_intervention, watcher)),
    }


def told(number, is_intervention, watcher):
    infos = {name: torch.tensor([float(is_intervention)]) for name in ("is_intervention", "operator")}
    return {"infos": infos, **packed_note({"infos": infos}, Witness((1_000.0 + number,), watcher))}


class Setting:
    def __init__(self, receiver=None, journal=None, example=None):
        hooks = (HookCall("collect"),)
        self.phases = [Phase(name, "online", hooks, "steps", 9, name) for name in ("shown", "tried")]
        self.buffers = {"shown": Column(), "tried": Column()}
        self.receiver = receiver or MemoryReceiver(Schema(example or step(0)), 1 << 20)
        self.sender = MemorySender(self.receiver, "a")
        streams = ActorStreams(whole_episodes=False)
        parts = (Counting(1), self.receiver, streams, self.phases, self.buffers, no_timer)
        self.collector = RemoteCollector(*parts, journal=journal)
        self.collector.look_s = 0.01

    def collect(self, count, should_stop=lambda: False):
        return self.collector.collect(None, count, env_steps=0, should_stop=should_stop)


def numbers(result):
    return result.trajectory["rewards"][:, 0].int().tolist()


def test_as_many_steps_as_asked_for_and_the_share_of_interventions():
    setting = Setting()
    for number in range(12):
        setting.sender.send(step(number, is_intervention=number in (1, 2)))
    result = setting.collect(8)
    assert numbers(result) == list(range(8))
    assert (result.steps, result.vector_steps) == (8, 8)
    assert float(result.metrics["interventions"].total) / result.metrics["interventions"].weight == 2 / 8
    assert setting.collector.episodes == 1
    assert numbers(setting.collect(2)) == [8, 9]
    assert setting.collector.episodes == 2
    assert float(setting.collector.drain_metrics()["return"].total) == sum(range(10))


def test_a_stop_ends_the_wait_for_actors_that_are_not_there():
    looks = []
    result = Setting().collect(3, should_stop=lambda: len(looks) > 2 or looks.append(1))
    assert (result.steps, result.vector_steps, result.trajectory) == (0, 0, None)


def test_steps_of_an_earlier_phase_go_into_its_buffer_and_are_not_counted():
    setting = Setting()
    for number in range(15):
        setting.sender.send(step(number, phase=0 if number < 10 else 1))
    assert numbers(setting.collect(3)) == [0, 1, 2]
    setting.collector.enter(1)
    result = setting.collect(4)
    assert setting.buffers["shown"] == list(range(3, 10))
    assert numbers(result) == [10, 11, 12, 13]
    assert setting.collector.num_late == 7


def test_late_steps_do_not_come_between_two_that_follow_one_another():
    setting = Setting()
    for number, phase in [
        (0, 1),
        (1, 1),
        (2, 1),
        (3, 1),
        (4, 1),
        (5, 0),
        (6, 0),
        (7, 0),
        (8, 0),
        (9, 0),
        (10, 1),
        (11, 1),
    ]:
        setting.sender.send(step(number, phase=phase))
    setting.collector.enter(1)
    first = setting.collect(6)
    assert numbers(first) == [0, 1, 2, 3, 4]  # fewer: what comes next is another phase's
    assert setting.buffers["shown"] == []
    assert numbers(setting.collect(1)) == [10]
    assert setting.buffers["shown"] == [5, 6, 7, 8, 9]


class Failing:
    """An actor in this process that sends these steps, one each time, and then fails."""

    def __init__(self, sender, steps):
        self.sender, self.steps = sender, iter(steps)

    def step(self):
        if (following := next(self.steps, None)) is None:
            raise EnvironmentFault("the robot fell")
        self.sender.send(following)


@pytest.mark.parametrize(
    ("late", "tried"),
    [([0, 1, 2], []), ([0, 1, 2, 3, 4], [5, 6, 7]), ([], [0, 1, 2])],
)
def test_when_the_robot_fails_late_steps_and_those_behind_them_are_kept(late, tried):
    setting = Setting()
    steps = [step(number, phase=0) for number in late] + [step(number, phase=1) for number in tried]
    setting.collector.actor = Failing(setting.sender, steps)
    setting.collector.enter(1)
    with pytest.raises(EnvironmentFault, match="the robot fell"):
        setting.collect(20)
    assert setting.buffers["shown"] == late
    at_hand = setting.collector.at_hand
    assert ([] if at_hand is None else numbers(at_hand)) == tried
    assert setting.collector.num_late == len(late)


def test_when_the_robot_fails_nothing_behind_a_late_step_that_waits_is_lost():
    setting = Setting()
    for number in range(8):
        setting.sender.send(step(number, phase=0 if number < 5 else 1))
    for received in setting.receiver.receive(8, 0.0):
        setting.collector.streams.add(received)
    setting.collector.enter(1)
    rows = []
    setting.collector._take_rest(rows, 0)
    assert [int(row.step["rewards"]) for row in rows] == [5, 6, 7]
    assert setting.buffers["shown"] == [0, 1, 2, 3, 4]


def test_the_state_goes_on_where_it_was_taken():
    setting = Setting()
    for number in range(9):
        setting.sender.send(step(number))
    setting.collect(4)
    state = deepcopy(setting.collector.get_state())
    after = numbers(setting.collect(3))
    other = Setting()
    other.collector.set_state(state)
    assert numbers(other.collect(3)) == after == [4, 5, 6]
    assert other.collector.episodes == setting.collector.episodes == 1


def test_who_and_when_are_noted_and_handed_on_and_a_resume_writes_them_once():
    def journal(events):
        return Interventions(
            lambda kind, **fields: events.append((kind, fields["operator"], fields["step"], fields["utc"][14:19])),
            lambda names: None,
        )

    events, again = [], []
    setting = Setting(journal=journal(events), example=step(0, watcher=""))
    watchers = ["anna"] * 6 + ["ben"] * 6
    for number, watcher in enumerate(watchers):
        setting.sender.send(step(number, is_intervention=number in (2, 3, 8), watcher=watcher))
    assert setting.collect(3).seen == Witness((1_000.0, 1_001.0, 1_002.0), "anna")
    assert events == [("takeover", "anna", 2, "16:42")]  # 1,002 s after midnight
    state = deepcopy(setting.collector.get_state())
    rest = [result.seen for result in (setting.collector.collect(None, 9, env_steps=3, should_stop=lambda: False),)]
    assert rest == [Witness((1_003.0, 1_004.0, 1_005.0), "anna")]  # the next ones are another's
    other = Setting(journal=journal(again), example=step(0, watcher=""))
    other.collector.set_state(state)
    first = other.collector.collect(None, 9, env_steps=3, should_stop=lambda: False)
    second = other.collector.collect(None, 5, env_steps=3 + first.steps, should_stop=lambda: False)
    assert (first.seen, second.seen.operator) == (rest[0], "ben")
    assert numbers(first) + numbers(second) == list(range(3, 11))
    assert again == [
        ("hand_back", "anna", 4, "16:44"),
        ("takeover", "ben", 8, "16:48"),
        ("hand_back", "ben", 9, "16:49"),
    ]
