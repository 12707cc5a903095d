import hashlib
import threading

import pytest
import safetensors.torch
import torch

from rl_lab.distributed.transport.interface import TransportError
from rl_lab.distributed.transport.weights import WeightsInbox, WeightsStore

LOG = "0123456789abcdef"


def tensors(number):
    return {"w": torch.full((100,), float(number)), "b": torch.arange(number, dtype=torch.bfloat16)}


def pieces(version, content, size=100, sha256=None):
    digest = sha256 or hashlib.sha256(content).hexdigest()
    return [(LOG, version, digest, len(content), at, content[at : at + size]) for at in range(0, len(content), size)]


def deliver(inbox, parts):
    return [inbox.add(*part) for part in parts]


def test_a_version_is_offered_once_when_it_is_whole(tmp_path):
    inbox = WeightsInbox(tmp_path, 1 << 20)
    parts = pieces(3, safetensors.torch.save(tensors(3)))
    assert inbox.take() is None
    assert deliver(inbox, parts[:-1]) == [False] * (len(parts) - 1)
    assert inbox.take() is None
    assert inbox.add(*parts[-1])
    version, found, is_stored = inbox.take()
    assert (version, is_stored) == (3, False)
    assert all(torch.equal(found[name], wanted) for name, wanted in tensors(3).items())
    assert inbox.take() is None
    assert inbox.progress(LOG) == (3, 0, 0)
    assert inbox.progress("f" * 16) == (0, 0, 0)  # versions of another learner count anew


def test_a_new_process_goes_on_in_the_middle_and_has_the_last_whole_version(tmp_path):
    inbox = WeightsInbox(tmp_path, 1 << 20)
    deliver(inbox, pieces(1, safetensors.torch.save(tensors(1))))
    parts = pieces(2, safetensors.torch.save(tensors(2)))
    deliver(inbox, parts[:2])
    again = WeightsInbox(tmp_path, 1 << 20)
    stored = again.take()
    assert (stored.version, stored.is_stored) == (1, True)
    assert again.progress(LOG) == (0, 2, 200)  # what holds now is asked for again
    deliver(again, parts[2:])
    fresh = again.take()
    assert torch.equal(fresh.tensors["w"], tensors(2)["w"])
    assert not fresh.is_stored


def test_damaged_weights_on_disk_do_not_stop_the_robot(tmp_path):
    deliver(WeightsInbox(tmp_path, 1 << 20), pieces(1, safetensors.torch.save(tensors(1))))
    (path,) = tmp_path.glob("*.whole")
    content = path.read_bytes()
    for damaged in (b"", content[:30], content[:-1], content[:-1] + b"\1"):
        path.write_bytes(damaged)
        inbox = WeightsInbox(tmp_path, 1 << 20)
        assert inbox.take() is None
        assert inbox.progress(LOG) == (0, 0, 0)
    path.write_bytes(content)
    assert WeightsInbox(tmp_path, 1 << 20).take().version == 1


def test_wrong_weights_are_thrown_away_and_the_last_ones_stay(tmp_path):
    inbox = WeightsInbox(tmp_path, 1 << 20)
    deliver(inbox, pieces(1, safetensors.torch.save(tensors(1))))
    content = safetensors.torch.save(tensors(2))
    with pytest.raises(TransportError, match="weights 2 are refused: their sha256"):
        deliver(inbox, pieces(2, content, sha256="0" * 64))
    with pytest.raises(TransportError, match="no safetensors"):
        deliver(inbox, pieces(2, b"garbage" * 50))
    assert inbox.progress(LOG) == (1, 0, 0)
    assert inbox.take().version == 1
    deliver(inbox, pieces(2, content))
    assert inbox.take().version == 2


def test_pieces_in_another_order_or_of_another_size_are_refused(tmp_path):
    inbox = WeightsInbox(tmp_path, 1000)
    parts = pieces(1, bytes(900))
    with pytest.raises(TransportError, match="at byte 100 does not follow byte 0 of 900"):
        inbox.add(*parts[1])
    with pytest.raises(TransportError, match="at byte 0 does not follow byte 0 of 50"):
        inbox.add(LOG, 1, "0" * 64, 50, 0, bytes(51))
    for size in (0, 1001, 2**63):
        with pytest.raises(TransportError, match="at most 1000 are allowed"):
            inbox.add(LOG, 1, "0" * 64, size, 0, b"x")
    for log, digest in (("../../etc", "0" * 64), (LOG, "../x"), ("", "0" * 64)):
        with pytest.raises(TransportError, match="is none"):
            inbox.add(log, 1, digest, 10, 0, b"x")
    assert list(tmp_path.iterdir()) == []


def test_a_newer_version_replaces_a_half_one(tmp_path):
    inbox = WeightsInbox(tmp_path, 1 << 20)
    deliver(inbox, pieces(1, safetensors.torch.save(tensors(1)))[:2])
    deliver(inbox, pieces(2, safetensors.torch.save(tensors(2))))
    assert inbox.take().version == 2
    assert inbox.progress(LOG) == (2, 0, 0)


def test_versions_count_on_in_a_new_process_and_old_ones_are_deleted(tmp_path):
    store = WeightsStore(tmp_path)
    assert store.newest is None
    assert [store.publish(tensors(number)) for number in range(4)] == [1, 2, 3, 4]
    assert len(list(tmp_path.iterdir())) == 2
    again = WeightsStore(tmp_path)
    assert again.newest is None  # what was told then may be over
    assert again.publish(tensors(9)) == 5
    assert hashlib.sha256(again.newest.path.read_bytes()).hexdigest() == again.newest.sha256
    assert again.newer(5, 0.0) is None
    assert again.newer(0, 0.0).number == 5
    threading.Timer(0.05, again.publish, (tensors(6),)).start()
    assert again.newer(5, 5.0).number == 6
