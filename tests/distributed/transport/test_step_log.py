import threading

import pytest
import torch

from rl_lab.distributed.transport import step_log
from rl_lab.distributed.transport.frames import Frame
from rl_lab.distributed.transport.interface import TransportError
from rl_lab.distributed.transport.schema import Schema
from rl_lab.distributed.transport.step_log import OrderError, StepLog, Stream
from tests.distributed.transport.processes import file_size_limit
from tests.distributed.transport.steps import SCHEMA, payload

ONE, TWO = Stream("one", "a"), Stream("two", "b")


def make(directory, **options):
    return StepLog(directory, SCHEMA, **{"max_unread": 1 << 20} | options)


def frames(*numbers):
    return [Frame(number, memoryview(payload(number))) for number in numbers]


def read(log, count=1000):
    return [(*step.stream, step.seq, bytes(step.payload) == payload(step.seq)) for step in log.read(count, 0.0)]


def test_steps_are_logged_once_and_in_order(tmp_path):
    log = make(tmp_path)
    assert log.cursor(ONE, 0) == log.cursor(TWO, 0) == 0
    assert log.append(ONE, frames(0, 1, 2)) == 3
    assert log.append(ONE, frames(0, 1, 2)) == 3  # replayed as a whole
    assert log.append(ONE, frames(1, 2, 3)) == 4  # and in part
    assert log.append(TWO, frames(0)) == 1
    for wrong in (frames(5), frames(4, 6), frames(5, 4), frames(4, 4), frames(4, 5, 5)):
        with pytest.raises(OrderError, match="steps of one are not in order: 4 is next"):
            log.append(ONE, wrong)
    assert read(log) == [*(("one", "a", seq, True) for seq in range(4)), ("two", "b", 0, True)]
    assert read(log) == []


def test_a_new_process_knows_what_each_stream_has_sent(tmp_path):
    log = make(tmp_path, segment_bytes=300)
    log.cursor(ONE, 5)
    log.cursor(TWO, 0)
    for seq in range(20):
        log.append(ONE, frames(5 + seq))
        log.append(TWO, frames(seq))
    assert len(read(log)) == 40
    log.release(log.get_state())
    assert len(list(tmp_path.glob("*.segment"))) == 1
    log.close()
    again = make(tmp_path, segment_bytes=300)
    assert again.cursors() == {ONE: 25, TWO: 20}
    assert again.append(ONE, frames(24, 25)) == 26
    assert read(again)[-1] == ("one", "a", 25, True)


def test_a_checkpoint_reads_the_same_steps_again_in_the_same_order(tmp_path):
    log = make(tmp_path, segment_bytes=300)
    log.cursor(ONE, 0), log.cursor(TWO, 0)
    for seq in range(10):
        log.append(TWO if seq % 3 else ONE, frames(log.cursor(TWO if seq % 3 else ONE, 0)))
    before, state, after = read(log, 4), log.get_state(), read(log)
    assert (len(before), len(after)) == (4, 6)
    log.close()
    again = make(tmp_path, segment_bytes=300)
    again.set_state(state)
    assert read(again) == after
    again.set_state(state)
    again.append(ONE, frames(again.cursor(ONE, 0)))
    assert read(again)[:-1] == after


def test_a_checkpoint_of_another_or_a_shortened_log_is_refused(tmp_path):
    log = make(tmp_path, segment_bytes=200)
    log.cursor(ONE, 0)
    start = log.get_state()
    for seq in range(10):
        log.append(ONE, frames(seq))
    read(log)
    with pytest.raises(TransportError, match="belongs to the log x"):
        log.set_state({"log": "x", "next": 0})
    with pytest.raises(TransportError, match="holds steps 0 to 10, the checkpoint goes on at 11"):
        log.set_state(start | {"next": 11})
    log.release(log.get_state())
    with pytest.raises(TransportError, match="the checkpoint goes on at 0"):
        log.set_state(start)
    log.close()
    with pytest.raises(TransportError, match="another schema"):
        StepLog(tmp_path, Schema({"x": torch.zeros(1)}), max_unread=1)


def test_nothing_is_released_that_the_learner_has_not_read(tmp_path):
    log = make(tmp_path, segment_bytes=200)
    log.cursor(ONE, 0)
    for seq in range(10):
        log.append(ONE, frames(seq))
    log.release({"log": log.id, "next": 10})
    assert len(read(log)) == 10


def test_actors_wait_for_a_learner_that_is_behind(tmp_path):
    log = make(tmp_path, max_unread=3 * (SCHEMA.step_bytes + 12))
    log.cursor(ONE, 0)
    log.append(ONE, frames(0, 1))
    assert log.has_room(0.0)
    log.append(ONE, frames(2))
    assert not log.has_room(0.05)
    threading.Timer(0.1, read, (log, 1)).start()
    assert log.has_room(5.0)


def test_a_full_disk_refuses_all_of_a_message_and_takes_it_later(tmp_path):
    log = make(tmp_path)
    log.cursor(ONE, 0)
    log.append(ONE, frames(0))
    with (
        file_size_limit(log._journal.newest_bytes + 100),
        pytest.raises(TransportError, match="cannot be written: File"),
    ):
        log.append(ONE, frames(1, 2, 3))
    assert log.cursor(ONE, 0) == 1
    assert log.append(ONE, frames(1, 2, 3)) == 4
    assert [seq for _, _, seq, is_right in read(log) if is_right] == [0, 1, 2, 3]


def test_one_actor_cannot_take_the_places_of_others(tmp_path, monkeypatch):
    monkeypatch.setattr(step_log, "MAX_RUNS", 2)
    log = make(tmp_path)
    for run in ("a", "b"):
        log.cursor(Stream("greedy", run), 0)
    with pytest.raises(TransportError, match="greedy has begun 2 runs here, no more are taken"):
        log.cursor(Stream("greedy", "c"), 0)
    assert log.cursor(Stream("greedy", "a"), 0) == log.cursor(ONE, 0) == 0
