import copy
import hashlib
import os

import numpy as np
import pytest
import torch

from rl_lab.core import CheckpointError, Counters
from rl_lab.tracking.checkpoint import CheckpointStore
from rl_lab.tracking.fingerprint import fingerprint, tree_hash
from rl_lab.tracking.tracker import Tracker


def state(tracker):
    return {
        "counters": {"env_steps": 3},
        "workflow": {"w": torch.arange(3.0)},
        "optimizers": {"policy": {"step": torch.tensor(1.0)}},
        "buffers": {"replay": {"rows": np.arange(4)}},
        "rng": {"words": [1, 2**80]},
        "collector": {"obs": torch.ones(2)},
        "tracker": tracker.get_state(),
    }


def test_each_part_has_its_own_hash(run):
    tracker = Tracker(run)
    tracker.open(10)
    tracker.write("eval", {"return": 1.0}, Counters(3), "p")
    store, base = CheckpointStore(run.checkpoints, keep_last=9), state(tracker)
    first = store.save(base, counters={}, phase="p")
    before = fingerprint(run)
    assert set(before) == {"parameters", "optimizers", "counters", "buffers", "rng", "environment", "metrics"}
    assert before["metrics"] == hashlib.sha256(run.metrics_file.read_bytes()).hexdigest()
    tracker.write("eval", {"return": 2.0}, Counters(4), "p")
    assert fingerprint(run) == before  # rows after the checkpoint do not count
    places = [("parameters", "workflow", "w"), ("optimizers", "optimizers", "x"), ("counters", "counters", "env_steps")]
    places += [("buffers", "buffers", "x"), ("rng", "rng", "words"), ("environment", "collector", "obs")]
    for group, key, leaf in places:
        changed = copy.deepcopy(base)
        changed[key][leaf] = 99
        store.save(changed, counters={}, phase="p")
        after = fingerprint(run)
        assert [name for name in before if after[name] != before[name]] == [group]
    assert fingerprint(run, first) == before
    tracker.close()


def test_metrics_that_were_cut(run):
    tracker = Tracker(run)
    tracker.open(10)
    tracker.write("eval", {"return": 1.0}, Counters(3), "p")
    CheckpointStore(run.checkpoints).save(state(tracker), counters={}, phase="p")
    tracker.close()
    os.remove(run.metrics_file)
    with pytest.raises(CheckpointError, match=r"metrics.jsonl has 0 bytes"):
        fingerprint(run)


def test_tree_hash_sees_types_shapes_and_bits_but_not_the_order_of_keys():
    trees = [
        *(1, 1.0, True, "1", None, [1], (1,), {"1": 1}, [[1], 2], [[1, 2]], {"a": 1, "b": 2}, {"ab": 1, "": 2}),
        *(torch.ones(2), torch.ones(2, dtype=torch.float64), torch.ones(1, 2), np.ones(2), torch.tensor([0.0, -0.0])),
        *(torch.zeros(2), torch.zeros(0), torch.zeros(0, 1)),
    ]
    assert len({tree_hash(tree) for tree in trees}) == len(trees)
    assert tree_hash({"a": 1, "b": 2}) == tree_hash({"b": 2, "a": 1})
