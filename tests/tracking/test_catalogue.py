import json
import os

import pytest

from rl_lab.core import Counters, RunDirectoryError
from rl_lab.tracking.catalogue import describe, find_run, list_runs, show_run
from rl_lab.tracking.checkpoint import CheckpointStore
from rl_lab.tracking.run_directory import RunDirectory
from rl_lab.tracking.tracker import Tracker


@pytest.fixture
def root(tmp_path):
    """Two runs, the second one with a checkpoint and metrics; a foreign directory; a damaged run."""
    for number, name in enumerate(["first", "second"]):
        run = RunDirectory.create(tmp_path, name, number)
        run.write_manifest({"created": 1000.0 + number})
    tracker = Tracker(run)
    tracker.open(100)
    tracker.write("eval", {"return": 3.0}, Counters(50, 5), "p")
    tracker.event("checkpoint")
    tracker.close()
    CheckpointStore(run.checkpoints).save({}, counters={"env_steps": 50}, phase="p", score=3.0)
    run.set_status("done")
    run.write_text("config.yaml", "a: 1\n")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "manifest.json").write_text("{")
    os.utime(tmp_path / "damaged", (10, 10))
    return tmp_path


def test_list_is_newest_first(root):
    runs = list_runs(root)
    assert [(run.name, run.seed, run.status, run.env_steps, run.updates, run.score) for run in runs] == [
        ("second", 1, "done", 50, 5, 3.0),
        ("first", 0, "new", 0, 0, None),
        ("damaged", None, "damaged", 0, 0, None),
    ]
    assert json.loads(json.dumps(runs[0].to_json()))["path"] == str(runs[0].path)
    assert list_runs(root / "none") == []


def test_find(root):
    second, first, _ = list_runs(root)
    assert find_run(root).id == second.id
    for which in (first.id, first.name, first.path.name, str(first.path)):
        assert find_run(root, which).id == first.id
    with pytest.raises(RunDirectoryError, match=r"unknown run in .*'secund'.*did you mean|choices: .*second_"):
        find_run(root, "secund")
    with pytest.raises(RunDirectoryError, match="no run directory at"):
        find_run(root, "some/where")
    with pytest.raises(RunDirectoryError, match=r"no runs in .*none; `lab train` makes one"):
        find_run(root / "none")


def test_show(root):
    shown = show_run(list_runs(root)[0].path)
    assert json.dumps(shown)
    assert shown["run"]["status"] == "done"
    assert shown["config"] == "a: 1\n"
    assert shown["manifest"]["name"] == "second"
    assert [(entry["serial"], entry["score"]) for entry in shown["checkpoints"]] == [(1, 3.0)]
    assert shown["metrics"]["eval/return"] == 3.0
    assert [event["kind"] for event in shown["events"]] == ["checkpoint"]
    assert show_run(list_runs(root)[1].path)["config"] is None


def test_describe_a_living_run(root):
    run = find_run(root, "first")
    run.set_status("running")
    assert describe(run.path).status == "killed"
    with run.lock():
        assert describe(run.path).status == "running"
