import subprocess
import sys

import pytest
import torch

from rl_lab.buffers.storage import row_store
from rl_lab.buffers.storage.layout import Layout
from rl_lab.buffers.storage.row_store import RowStore
from rl_lab.core import CheckpointError

CPU = torch.device("cpu")


def tree(begin, count, lanes=2):
    numbers = torch.arange(begin * lanes, (begin + count) * lanes).view(count, lanes)
    return {"number": numbers, "half": {"it": numbers.float() / 2}}


@pytest.fixture(params=["memory", "file"])
def store(request, tmp_path, monkeypatch):
    monkeypatch.setattr(row_store, "SLOT_BYTES", 3 * 2 * 16)  # three steps of two rows
    file = tmp_path / "deep" / "rows" if request.param == "file" else None
    return RowStore(Layout.of(tree(0, 1)), 10, 2, CPU, file)


def test_rows_lie_at_step_and_lane_round_the_ring(store):
    store.write(0, tree(0, 7), 7)
    store.write(7, tree(7, 6), 6)  # over the end
    expected = [20, 21, 22, 23, 24, 25, *range(6, 20)]
    assert store.fields["number"].tolist() == expected
    found = store.gather(torch.tensor([[0, 19], [5, 6]]))
    assert found["number"].tolist() == [[20, 19], [25, 6]]
    assert found["half"]["it"].tolist() == [[10.0, 9.5], [12.5, 3.0]]
    found["number"].zero_()
    assert store.fields["number"].tolist() == expected  # the gathered rows were the caller's own
    assert store.step(12)["number"].tolist() == [24, 25]
    assert store.num_bytes == 20 * 16


def test_single_fields_can_be_replaced(store):
    store.write(0, tree(0, 10), 10)
    store.patch(torch.tensor([3, 17]), {"half": {"it": torch.tensor([-1.0, -2.0])}})
    assert store.fields["number"].tolist() == list(range(20))
    assert store.fields["half"]["it"][[2, 3, 17]].tolist() == [1.0, -1.0, -2.0]


def slots(store):
    return {name: segment.key for name, segment in store.get_state()["slots"].items()}


def test_only_changed_slots_get_a_new_key(store):
    assert slots(store) == {}
    store.write(0, tree(0, 4), 4)
    first = slots(store)
    assert first.keys() == {"0", "1"}
    assert slots(store) == first
    store.write(9, tree(9, 2), 2)  # the last step and, round the end, the first
    second = slots(store)
    assert second.keys() == {"0", "1", "3"}
    assert [first[name] == second[name] for name in ("0", "1")] == [False, True]
    store.patch(torch.tensor([8]), {"number": torch.tensor([5])})  # step 4
    third = slots(store)
    assert {name for name in third if third[name] != second[name]} == {"1"}


def test_a_state_holds_the_bytes_and_keeps_the_keys(store, tmp_path, monkeypatch):
    store.write(0, tree(0, 5), 5)
    state = store.get_state()
    monkeypatch.setattr(row_store, "SLOT_BYTES", 1 << 20)  # another version's idea of a slot
    again = RowStore.from_state(state, 10, 2, CPU, tmp_path / "again")
    assert torch.equal(again.rows, store.rows)
    assert slots(again) == slots(store)
    again.write(5, tree(5, 1), 1)
    store.write(5, tree(5, 1), 1)
    assert torch.equal(again.rows, store.rows)
    with pytest.raises(CheckpointError, match="has 10 x 2 steps x environments, this config asks for 10 x 4"):
        RowStore.from_state(state, 10, 4, CPU)


def test_a_file_of_an_earlier_process_is_not_content(tmp_path):
    file = tmp_path / "rows"
    file.write_bytes(b"\xff" * 10_000)
    store = RowStore(Layout.of(tree(0, 1)), 10, 2, CPU, file)
    assert (store.rows == 0).all()
    assert file.stat().st_size == 320


UNTOUCHED = """
import torch
from rl_lab.buffers.storage.row_store import zeros

def resident_mb():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20

before = resident_mb()
large = zeros((64, 1 << 20), torch.int64, torch.device("cpu"))  # 512 MB
assert resident_mb() - before < 64
assert large[3, 5] == 0
large.fill_(1)
assert resident_mb() - before > 448
"""


def test_zeros_take_no_memory_before_they_are_used():
    # a process of its own: threads that other tests left behind take memory at any moment
    subprocess.run([sys.executable, "-c", UNTOUCHED], check=True, timeout=120)
