import os
import threading
import time
from pathlib import Path

import pytest
import torch

from rl_lab.distributed.transport.frames import split_all
from rl_lab.distributed.transport.interface import TransportError
from rl_lab.distributed.transport.schema import Schema
from rl_lab.distributed.transport.spool import Spool
from tests.distributed.transport.processes import file_size_limit
from tests.distributed.transport.steps import SCHEMA, payload


def make(directory, **options):
    return Spool(directory, SCHEMA, **{"max_bytes": 1 << 20, "sync_every_step": False} | options)


def read(spool, start, max_bytes=1 << 20):
    frames = spool.read(spool.reader(start), max_bytes, 0.0)
    return [(number, bytes(data)) for number, data in split_all(frames, SCHEMA.step_bytes)]


def test_steps_are_numbered_over_restarts_of_one_run(tmp_path):
    spool = make(tmp_path)
    assert [spool.append(payload(number)) for number in range(3)] == [0, 1, 2]
    run = spool.run
    spool.close()
    spool = make(tmp_path)
    assert spool.run == run
    assert spool.append(payload(3)) == 3
    assert read(spool, 1) == [(number, payload(number)) for number in range(1, 4)]
    assert make(tmp_path / "other").run != run


def test_nothing_is_read_that_a_power_cut_could_take_back(tmp_path):
    spool = make(tmp_path)
    spool.append(payload(0))
    assert spool._journal.synced == 0
    read(spool, 0)
    assert spool._journal.synced == 1
    spool.close()
    every = make(tmp_path, sync_every_step=True)
    every.append(payload(1))
    assert every._journal.synced == 2


def test_acknowledged_files_are_deleted_and_others_not(tmp_path):
    spool = make(tmp_path, segment_bytes=200)
    for number in range(20):
        spool.append(payload(number))
    count = len(list(tmp_path.glob("*.segment")))
    spool.acknowledge(11)
    assert len(list(tmp_path.glob("*.segment"))) < count
    assert [number for number, _ in read(spool, 11)] == list(range(11, 20))
    with pytest.raises(TransportError, match="acknowledges step 21 of 20"):
        spool.acknowledge(21)


def test_a_full_spool_waits_for_the_learner_and_loses_nothing(tmp_path):
    spool = make(tmp_path, max_bytes=1500, segment_bytes=400)
    with pytest.raises(TransportError, match="was not recorded, all before it are: the spool .* is full") as refused:
        [spool.append(payload(number), timeout_s=0.05) for number in range(100)]
    assert "\n" not in str(refused.value)
    assert spool.append(payload(spool.next), timeout_s=0.0, is_last=True) == spool.next - 1  # before an actor ends
    number = spool.next
    assert 5 < number < 20
    thread = threading.Timer(0.2, spool.acknowledge, (number,))
    start = time.monotonic()
    thread.start()
    assert spool.append(payload(number), timeout_s=10) == number
    assert 0.1 < time.monotonic() - start < 5
    thread.join()
    assert read(spool, number) == [(number, payload(number))]


def test_a_full_disk_is_waited_for_and_loses_nothing(tmp_path):
    spool = make(tmp_path)
    spool.append(payload(0))
    with (
        file_size_limit(spool._journal.newest_bytes + 30),
        pytest.raises(TransportError, match="step 1 was not recorded, all before it are: .*: File too large"),
    ):
        spool.append(payload(1), timeout_s=0.3)
    assert spool.append(payload(1), timeout_s=0.3) == 1
    assert read(spool, 0) == [(0, payload(0)), (1, payload(1))]


def test_a_full_disk_is_freed_of_what_is_acknowledged(tmp_path):
    spool = make(tmp_path)
    for number in range(40):
        spool.append(payload(number))
    with file_size_limit(spool._journal.newest_bytes + 30):
        spool.acknowledge(40)
        assert spool.append(payload(40), timeout_s=5.0) == 40
    assert (spool.first, spool.next) == (40, 41)
    spool.close()
    assert read(make(tmp_path), 40) == [(40, payload(40))]


def test_a_deleted_file_does_not_take_up_the_disk(tmp_path):
    spool = make(tmp_path, segment_bytes=400)
    reader = spool.reader(0)
    for number in range(40):
        spool.append(payload(number))
        spool.read(reader, 1 << 20, 0.0)
    spool.acknowledge(40)
    assert spool.first > 30
    held = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    assert not [path for path in held if path.startswith(str(tmp_path)) and path.endswith("(deleted)")]


def test_steps_of_another_schema_are_refused(tmp_path):
    make(tmp_path).close()
    with pytest.raises(TransportError, match="holds steps of another schema; name another directory"):
        Spool(tmp_path, Schema({"x": torch.zeros(1)}), max_bytes=1, sync_every_step=False)
