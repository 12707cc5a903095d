import sys

import pytest

from rl_lab.core import Counters
from rl_lab.tracking.tracker import Tracker
from rl_lab.tracking.wandb import WandbSink

RECORDING_MODULE = """
calls = []
class Session:
    def define_metric(self, name, **options): calls.append(("define_metric", name, options))
    def log(self, row): calls.append(("log", row))
    def finish(self): calls.append(("finish",))
def init(**options):
    calls.append(("init", options))
    return Session()
"""


@pytest.fixture
def wandb(tmp_path, monkeypatch):
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "wandb.py").write_text(RECORDING_MODULE)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    import wandb

    yield wandb
    sys.modules.pop("wandb", None)


def test_rows_go_to_one_wandb_run_also_after_a_resume(run, wandb):
    for _ in range(2):
        tracker = Tracker(run, [WandbSink(run, "lab", {"seed": 7}, mode="offline")])
        tracker.open(100)
        tracker.write("eval", {"return": 5.0}, Counters(10, 2, 3, 4), "joint")
        tracker.flush(Counters(10), "joint")
        tracker.close()
    first, second = (call[1] for call in wandb.calls if call[0] == "init")
    assert first == second
    assert {key: first[key] for key in ("project", "name", "resume", "dir", "config", "mode")} == {
        "project": "lab",
        "name": run.path.name,
        "resume": "allow",
        "dir": str(run.path),
        "config": {"seed": 7},
        "mode": "offline",
    }
    assert first["id"] == (run.path / "wandb_id").read_text()
    assert ("define_metric", "*", {"step_metric": "step"}) in wandb.calls
    logged = [call[1] for call in wandb.calls if call[0] == "log"]
    assert logged[0] == {"step": 10, "updates": 2, "episodes": 3, "cycles": 4, "phase": "joint", "eval/return": 5.0}
    assert "perf/env_steps_per_s" in logged[1]
    assert wandb.calls[-1] == ("finish",)


def test_close_without_open(run, wandb):
    WandbSink(run, "lab").close()
    assert wandb.calls == []
