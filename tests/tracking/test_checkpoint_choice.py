"""Checkpoints by the names that commands take."""

from types import SimpleNamespace

import pytest

from rl_lab.core import UsageError
from rl_lab.tracking.checkpoint import CheckpointStore
from rl_lab.tracking.checkpoint_choice import choose_checkpoint


@pytest.fixture
def run(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints", keep_last=9)
    for cycles, score in ((24, None), (50, 2.0), (50, None), (75, 1.0)):
        counters = {"env_steps": 10 * cycles, "updates": cycles, "episodes": 0, "cycles": cycles}
        store.save({"at": cycles}, counters=counters, phase="train", score=score)
    return SimpleNamespace(path=tmp_path, checkpoints=tmp_path / "checkpoints")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("latest", "000004"),
        ("best", "000002"),
        ("cycle:75", "000004"),
        ("cycle:50", "000003"),
        ("cycle:25", "000001"),
        ("000002", "000002"),
    ],
)
def test_names(run, name, found):
    assert choose_checkpoint(run, name).path.name == found


@pytest.mark.parametrize("name", ["cycle:60", "cycle:x", "cycle:"])
def test_a_cycle_without_a_checkpoint_tells_which_there_are(run, name):
    with pytest.raises(
        UsageError, match=rf"checkpoint {name}: there is none \(cycles with a checkpoint: 24, 50, 50, 75;"
    ):
        choose_checkpoint(run, name)
