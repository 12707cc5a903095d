"""kill -9 at random moments, most of them in the middle of a write."""

import random
import subprocess
import sys
from pathlib import Path

from rl_lab.tracking.checkpoint import CheckpointStore
from tracking.saver import tree
from tracking.trees import assert_same

SAVER = Path(__file__).with_name("saver.py")


def test_a_whole_checkpoint_survives_every_kill(tmp_path):
    rng, store, was_cut = random.Random(1), CheckpointStore(tmp_path), 0
    command = [sys.executable, str(SAVER), str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as saver:
        for _ in range(25):
            saver.stdin.write(f"{rng.random() * 0.15}\n")
            saver.stdin.flush()
            reported = int(saver.stdout.readline())
            was_cut += any(path.name.startswith(".tmp-") for path in tmp_path.iterdir())
            loaded = store.load_newest()
            assert loaded.damaged == []
            assert loaded.state["serial"] in (reported, reported + 1)  # published, but killed before it could say so
            assert_same(tree(loaded.state["serial"]), loaded.state)
        saver.stdin.close()
    assert was_cut >= 5  # else the kills hit nothing and the test shows nothing
    store.save(tree(0), counters={}, phase="p")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".tmp-")]
