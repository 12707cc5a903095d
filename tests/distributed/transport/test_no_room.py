"""A sender without room says so alike by every transport: this step was not recorded, and all before it were."""

import errno

import pytest

from rl_lab.distributed.transport.interface import NoRoom, TransportError
from rl_lab.distributed.transport.open import TransportConfig, open_receiver, open_sender
from tests.distributed.transport.steps import SCHEMA, number_of, step


def fill(sender):
    """Send until there is no room, and return how many steps were taken."""
    for number in range(10_000):
        try:
            assert sender.send(step(number), timeout_s=0.0) == number
        except NoRoom:
            return number
    raise AssertionError("there is always room")


@pytest.mark.parametrize("kind", ["memory", "host"])
def test_a_step_without_room_is_not_recorded_and_all_before_it_are(kind, tmp_path):
    block = {"kind": kind, "address": str(tmp_path / "socket"), "directory": str(tmp_path / "learner")}
    limits = {"unread_bytes": 20 * (SCHEMA.step_bytes + 12)}
    learner_config = TransportConfig.read(block | {"limits": limits})
    receiver = open_receiver(learner_config, step(0)) if kind == "memory" else None  # else: no learner yet
    actor_config = TransportConfig.read(block | {"directory": str(tmp_path / "actor"), "spool_bytes": 4_000})
    with open_sender(actor_config, step(0), receiver) as sender:
        count = fill(sender)
        assert sender.status().next_seq == count > 0
        with receiver or open_receiver(learner_config, step(0)) as learner:
            taken = learner.receive(1, 20.0)
            while len(taken) < count and (more := learner.receive(count, 20.0)):
                taken += more
            assert [(seq, number_of(tree)) for _, _, seq, tree in taken] == [(n, n) for n in range(count)]
            assert sender.send(step(count), timeout_s=20.0) == count  # the same step, now that there is room


def test_a_refused_robot_with_a_full_disk_ends_and_does_not_wait_for_room(ends, monkeypatch):
    receiver, sender = ends
    other = {key: value for key, value in step(0).items() if key != "rewards"}
    robot = sender(receiver(), example=other)
    robot._thread.join(20.0)  # it ends when the learner has refused
    with pytest.raises(TransportError, match="the learner refuses: .*; all steps up to 0 are recorded"):
        robot.send(other, timeout_s=0.0)

    def append(payloads):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(robot._spool._journal, "append", append)
    with pytest.raises(TransportError, match="the learner refuses: .*; step 1 was not recorded$") as refused:
        robot.send(other, timeout_s=0.0)
    assert not isinstance(refused.value, NoRoom)
