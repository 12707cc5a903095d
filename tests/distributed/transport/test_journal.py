import errno
import shutil
import sys
import threading

import pytest

from rl_lab.distributed.transport.interface import TransportError
from rl_lab.distributed.transport.journal import Journal, JournalReader
from tests.distributed.transport.processes import FORKS, file_size_limit, open_journal


def record(number):
    return f"record {number}".encode() * (1 + number % 3)


def make(directory, count, segment_bytes=1 << 26):
    journal = Journal(directory, segment_bytes)
    if journal.header is None:
        journal.roll(b"header 0")
    for _ in range(count):
        if journal.is_segment_full:
            journal.roll(f"header {journal.next}".encode())
        journal.append([record(journal.next)])
    return journal


def read_all(journal, start=None):
    reader = JournalReader(journal, journal.first if start is None else start)
    return [(number, bytes(payload)) for number, payload in reader.read(journal.next, sys.maxsize)]


def test_records_come_back_in_order_from_anywhere(tmp_path):
    journal = make(tmp_path, 40, segment_bytes=200)
    assert len(list(tmp_path.glob("*.segment"))) > 3
    for start in range(41):
        assert read_all(journal, start) == [(number, record(number)) for number in range(start, 40)]
    with pytest.raises(TransportError, match="holds records 0 to 40, not 41"):
        JournalReader(journal, 41).read(42, 1)


def test_small_reads_give_the_same_as_large_ones(tmp_path):
    journal = make(tmp_path, 40, segment_bytes=200)
    reader, found = JournalReader(journal, 0), []
    while reader.next < 30:
        part = reader.read(30, 20)
        assert part
        found += [(number, bytes(payload)) for number, payload in part]
    assert found == [(number, record(number)) for number in range(30)]


def test_a_tail_torn_at_any_byte_costs_only_the_torn_records(tmp_path):
    make(tmp_path / "whole", 3).close()
    ends = [(tmp_path / "whole" / "00000000000000000000.segment").stat().st_size]
    for _ in range(3):
        journal = make(tmp_path / "whole", 1)
        ends.append(journal.newest_bytes)
        journal.close()
    for size in range(ends[0], ends[-1] + 1):
        shutil.rmtree(tmp_path / "torn", ignore_errors=True)
        shutil.copytree(tmp_path / "whole", tmp_path / "torn")
        with open(tmp_path / "torn" / "00000000000000000000.segment", "rb+") as file:
            file.truncate(size)
        whole = 3 + sum(end <= size for end in ends[1:])
        journal = make(tmp_path / "torn", 2)
        assert read_all(journal) == [(number, record(number)) for number in range(whole + 2)]
        journal.close()


def test_garbage_after_the_last_record_is_cut_off(tmp_path):
    for garbage in (b"\0" * 100, b"\xff" * 100, bytes(range(256))):
        shutil.rmtree(tmp_path)
        make(tmp_path, 3).close()
        with open(tmp_path / "00000000000000000000.segment", "ab") as file:
            file.write(garbage)
        journal = make(tmp_path, 1)
        assert read_all(journal) == [(number, record(number)) for number in range(4)]
        journal.close()


def test_damage_in_an_older_segment_is_an_error_and_not_silence(tmp_path):
    journal = make(tmp_path, 40, segment_bytes=200)
    path = sorted(tmp_path.glob("*.segment"))[1]
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(TransportError, match=f"{path.name} is damaged at byte"):
        read_all(journal)


def test_damage_before_whole_records_is_not_taken_for_a_torn_tail(tmp_path):
    make(tmp_path, 5).close()
    path = tmp_path / "00000000000000000000.segment"
    whole = path.read_bytes()
    place = whole.index(record(3))
    for at in (place - 16, place - 12, place - 1, place, place + 5):
        data = bytearray(whole)
        data[at] ^= 1
        path.write_bytes(data)
        with pytest.raises(TransportError, match=f"is damaged at byte {place - 16} and whole records follow"):
            Journal(tmp_path)


def test_a_new_process_goes_on_counting_whatever_was_released(tmp_path):
    journal = make(tmp_path, 40, segment_bytes=200)
    journal.release(25)
    first = journal.first
    assert 0 < first <= 25
    journal.replace(b"last header", 40)
    assert (journal.first, journal.next) == (40, 40)
    journal.close()
    again = Journal(tmp_path)
    assert (again.first, again.next, again.header) == (40, 40, b"last header")
    assert again.append([b"x", b"y"]) == 40
    assert read_all(again) == [(40, b"x"), (41, b"y")]


def test_releasing_keeps_every_record_that_was_not_named(tmp_path):
    journal = make(tmp_path, 40, segment_bytes=200)
    for before in range(41):
        journal.release(before)
        assert [number for number, _ in read_all(journal, before)] == list(range(before, 40))


def test_a_write_that_fails_is_taken_back(tmp_path):
    journal = make(tmp_path, 5)
    with file_size_limit(journal.newest_bytes + 20), pytest.raises(OSError, match="too large") as failed:
        journal.append([bytes(100)])
    assert failed.value.errno == errno.EFBIG
    journal.append([b"after"])
    assert read_all(journal) == [*((number, record(number)) for number in range(5)), (5, b"after")]
    journal.close()
    assert read_all(Journal(tmp_path))[-1] == (5, b"after")


def test_several_records_are_written_all_or_none(tmp_path):
    journal = make(tmp_path, 1)
    with file_size_limit(journal.newest_bytes + 60), pytest.raises(OSError, match="too large"):
        journal.append([bytes(20), bytes(20), bytes(20)])
    assert [number for number, _ in read_all(journal)] == [0]


def test_one_process_at_a_time(tmp_path):
    journal = make(tmp_path, 1)
    receiver, sender = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=open_journal, args=(str(tmp_path), sender))
    process.start()
    assert receiver.recv() == f"{tmp_path} is in use by another process"
    process.join()
    journal.close()


def test_a_process_does_not_open_a_journal_twice(tmp_path):
    journal = make(tmp_path, 1)
    with pytest.raises(TransportError, match="is in use by this process"):
        Journal(tmp_path)
    journal.close()
    Journal(tmp_path).close()


def test_a_reader_follows_a_writer(tmp_path):
    journal, found = make(tmp_path, 0, segment_bytes=2000), []
    reader = JournalReader(journal, 0)

    def write():
        for _ in range(2000):
            make_one(journal)

    thread = threading.Thread(target=write)
    thread.start()
    while reader.next < 2000:
        found += [bytes(payload) for _, payload in reader.read(journal.next, 1000)]
    thread.join()
    assert found == [record(number) for number in range(2000)]


def make_one(journal):
    if journal.is_segment_full:
        journal.roll(b"header")
    journal.append([record(journal.next)])


def test_what_was_synced_is_known(tmp_path):
    journal = make(tmp_path, 3)
    assert journal.synced == 0
    journal.sync()
    assert journal.synced == 3


def test_a_directory_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TransportError, match="cannot be written: File exists"):
        Journal(tmp_path / "file")
