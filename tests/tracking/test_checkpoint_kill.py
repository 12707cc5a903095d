"""kill -9 at random moments, most of them in the middle of a write, and at every call that changes the directory."""

import random
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from rl_lab.tracking.checkpoint import CheckpointStore
from tracking.saver import tree
from tracking.trees import assert_same

SAVER = Path(__file__).with_name("saver.py")


@contextmanager
def savers(directory):
    """Yield a function that lets a process save until it is killed, and returns the last serial it reported."""
    command = [sys.executable, str(SAVER), str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as saver:

        def kill(moment):
            saver.stdin.write(f"{moment}\n")
            saver.stdin.flush()
            return int(saver.stdout.readline())

        yield kill
        saver.stdin.close()


def leftovers(directory):
    return [path for path in directory.iterdir() if path.name.startswith(".tmp-")]


def test_a_whole_checkpoint_survives_every_kill(tmp_path):
    rng, store, was_cut = random.Random(1), CheckpointStore(tmp_path), 0
    with savers(tmp_path) as kill:
        for _ in range(25):
            reported = kill(rng.random() * 0.15)
            was_cut += bool(leftovers(tmp_path))
            loaded = store.load_newest()
            assert loaded.damaged == []
            assert loaded.state["serial"] in (reported, reported + 1)  # published, but killed before it could say so
            assert_same(tree(loaded.state["serial"]), loaded.state)
        assert was_cut >= 5  # else the kills hit nothing and the test shows nothing
    store.save(tree(0), counters={}, phase="p")
    assert not leftovers(tmp_path)


def test_a_kill_between_links_and_rename_leaves_the_one_before_and_the_next_save_links_again(tmp_path):
    store = CheckpointStore(tmp_path)
    with savers(tmp_path) as kill:
        assert kill("rename 3") == 2
        for moment in ("link 1", "link 2", "fsync 2", "fsync 4", "rename 1"):
            kill(moment)
            assert leftovers(tmp_path)
            loaded = store.load_newest()
            assert (loaded.state["serial"], loaded.damaged) == (2, [])
            assert_same(tree(2), loaded.state)
    segments = [path for path in leftovers(tmp_path)[0].iterdir() if path.name.startswith("segment-")]
    assert segments
    store.save(tree(3), counters={}, phase="p")
    assert not leftovers(tmp_path)
    assert_same(tree(3), store.load_newest().state)
    assert_same(tree(2), store.load(tmp_path / "000002").state)
