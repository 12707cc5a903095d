"""An actor whose steps find no room: the robot holds, the step in hand is kept, and nothing ends by itself."""

import pytest

from rl_lab.config.actors import assemble_actor, build_actor
from tests.config.test_remote import TARGETS, composed, spool_steps
from tests.distributed.transport.processes import file_size_limit


@pytest.fixture
def actor(tmp_path):
    """Nobody learns from it, and a dozen steps fill its spool."""
    actor = build_actor(assemble_actor(composed("transport.spool_bytes=4000"), TARGETS), tmp_path)
    actor.heard = []
    actor.collector.env.instruct = actor.heard.append
    yield actor
    actor.close()


def fill(actor):
    count = 0
    while actor.step():
        count += 1
    return count


def test_the_robot_holds_until_there_is_room_and_then_no_step_is_missing(actor, caplog):
    count = fill(actor)
    assert count > 3
    assert [actor.step() for _ in range(3)] == [False] * 3
    assert actor.heard == ["hold"]
    held = [text for text in caplog.messages if "the robot holds until there is room" in text]
    assert len(held) == 1
    assert (spool_steps(actor), actor.num_steps) == (count, count)
    actor.sender._spool.acknowledge(count)  # a learner has come
    assert fill(actor) > 3  # the one in hand, and new ones
    assert actor.heard == ["hold", "hold"]


def test_a_stop_ends_the_wait_and_the_step_in_hand_is_recorded(actor):
    looks = iter(range(10_000))
    actor.run(lambda: actor.heard != [] and next(looks) > 2)
    count = spool_steps(actor)
    actor.close()
    assert actor.sender._spool.next == count + 1


def test_a_full_disk_holds_too(actor):
    assert actor.step()
    with file_size_limit(actor.sender._spool._journal.newest_bytes + 30):
        assert not actor.step()
        assert actor.heard == ["hold"]
    assert actor.step()
    assert spool_steps(actor) == 2
