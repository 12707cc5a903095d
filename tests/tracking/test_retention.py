"""What goes, what stays, and that a kill at any moment loses nothing that should stay."""

import ctypes
import errno
import json
import multiprocessing
import os
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import pytest
import torch

from rl_lab.buffers.datasets.open import MARKS
from rl_lab.core.buffer import Segment
from rl_lab.core.errors import UsageError
from rl_lab.tracking.atomic import LEFTOVER_PREFIX
from rl_lab.tracking.catalogue import list_runs
from rl_lab.tracking.checkpoint import CheckpointStore
from rl_lab.tracking.labels import labels_lock, read_labels, write_labels
from rl_lab.tracking.lock import exclusive_lock
from rl_lab.tracking.retention import carry_out, plan_cleaning
from rl_lab.tracking.run_directory import RunDirectory
from tests.tracking.synthetic import make_run

CONTEXT = multiprocessing.get_context("fork")
FORK = "ignore:This process .* is multi-threaded, use of fork:DeprecationWarning"  # since 3.12; torch has threads
pytestmark = pytest.mark.filterwarnings(FORK)
DAY = 86_400.0
HEAVY = 5000
LOCKS = {"lock", "labels.lock"}
STAYS = ("config.yaml", "manifest.json", "metrics.jsonl", "metrics.json", "perf.jsonl", "status", "code/source.zip")


def heavy_run(root, directory, *, age_days=100.0, score=0.0, **options):
    """A run of some age with a checkpoint, a film, TensorBoard files and code."""
    created = time.time() - age_days * DAY
    run = make_run(root, directory, created=created, curve=[(0, 0.0), (9, score)], **options)
    for name in (
        "checkpoints/000001/tensors.safetensors",
        "media/a.mp4",
        "tb/events",
        "buffers/r.bin",
        "code/source.zip",
    ):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(bytes(HEAVY))
    for path in run.iterdir():
        os.utime(path, (created, created))
    return run


def doomed(root, *words, **options):
    return {each.run.path.name for each in plan_cleaning(root, words, **options).doomed}


@pytest.fixture
def root(tmp_path):
    for number in range(4):
        heavy_run(tmp_path, f"old{number}", score=float(number))
    heavy_run(tmp_path, "new", age_days=1.0)
    return tmp_path


def test_what_stays(root):
    heavy_run(root, "pinned")
    write_labels(RunDirectory.open(root / "pinned"), pinned=True)
    heavy_run(root, "elsewhere", score=-5.0, environment={"name": "Other-v1"})
    heavy_run(root, "live", status="running")
    heavy_run(root, "damaged")
    (root / "damaged" / "manifest.json").write_text("{")
    with RunDirectory.open(root / "live").lock():
        plan = plan_cleaning(root, keep_best=2, keep_recent=30)
    assert {each.run.path.name for each in plan.doomed} == {"old0", "old1"}
    assert plan.kept == {"best": 3, "recent": 1, "pinned": 1, "running": 1, "damaged": 1}  # 2 and one elsewhere
    assert plan.num_bytes == 2 * 4 * HEAVY
    assert all((root / name / "checkpoints").is_dir() for name in ("old0", "old1"))  # a plan changes nothing


def test_choices(root):
    assert doomed(root, keep_best=0, keep_recent=0) == {"old0", "old1", "old2", "old3", "new"}
    assert doomed(root, keep_best=0, keep_recent=200) == set()
    assert doomed(root, "run=old1,old2", keep_best=2) == {"old1"}
    assert doomed(root / "nothing") == set()
    with pytest.raises(UsageError, match="did you mean 'eval/return'"):
        plan_cleaning(root, metric="eval/retrun")
    with pytest.raises(UsageError, match="--keep-best"):
        plan_cleaning(root, keep_best=-1)


def test_what_a_kept_run_needs_stays(root):
    heavy_run(root, "student", age_days=0.0, training={"teacher": {"run": str(root / "old0")}})
    heavy_run(root, "warm", age_days=0.0, training={"resume_path": str(root / "old1" / "checkpoints" / "000001")})
    plan = plan_cleaning(root, keep_best=0)
    assert {each.run.path.name for each in plan.doomed} == {"old2", "old3"}
    assert plan.kept["needed by a kept run"] == 2


def test_a_path_under_any_key_is_a_need(root, tmp_path, monkeypatch):
    """Through a link, from the working directory, in a list, by id, and from a trial of a study."""
    (tmp_path / "elsewhere").symlink_to(root)
    monkeypatch.chdir(tmp_path / "elsewhere")
    demos = ["a/b", str(tmp_path / "elsewhere" / "old0" / "buffers" / "demos" / "dataset")]
    heavy_run(root, "clone", age_days=0.0, algorithm={"datasets": demos, "odd": "zero\0byte", "user": "~nobody-here/x"})
    heavy_run(root, "fine", age_days=0.0, algorithm={"weights": "old1/export/policy.pt", "teacher": "idchain"})
    heavy_run(root, "chain", algorithm={"start": str(root / "far")})
    heavy_run(root, "far")
    trial = heavy_run(root / "study" / "trials", "0", training={"resume_path": str(root / "old2" / "checkpoints")})
    plan = plan_cleaning(root, keep_best=0)
    assert {each.run.path.name for each in plan.doomed} == {"old3"}
    assert plan.kept["needed by a kept run"] == 5
    shutil.rmtree(trial)
    assert doomed(root, keep_best=0) == {"old2", "old3"}


def test_a_link_among_the_runs_is_left_alone(root, tmp_path_factory):
    real = heavy_run(tmp_path_factory.mktemp("other"), "real", score=50.0)
    (root / "link").symlink_to(real)
    plan = plan_cleaning(root, keep_best=1)
    assert {each.run.path.name for each in plan.doomed} == {"old0", "old1", "old2"}  # old3 is the best that is here
    assert plan.kept["link"] == 1


def test_what_was_pinned_or_continued_meanwhile_is_passed_over(root):
    plan = plan_cleaning(root, keep_best=1)
    write_labels(RunDirectory.open(root / "old0"), pinned=True)
    RunDirectory.open(root / "old1").set_status("stopped")
    outcomes = {each.run.path.name: each.refusal for each in carry_out(plan)}
    assert outcomes == {
        "old0": f"{root / 'old0'} has been pinned meanwhile",
        "old1": f"{root / 'old1'} has been active meanwhile",
        "old2": None,
    }
    assert (root / "old0" / "checkpoints").is_dir()


def test_a_run_with_neither_metrics_nor_status_can_go(root):
    run = heavy_run(root, "never")
    for name in ("status", "metrics.jsonl", "metrics.json"):
        (run / name).unlink()
    (outcome,) = carry_out(plan_cleaning(root, ["run=never"], keep_recent=0, now=time.time() + DAY))
    assert outcome.refusal is None


def test_a_tag_given_meanwhile_does_not_undo_a_pin(root):
    """Who labels waits for the other and reads what that one wrote."""
    run = RunDirectory.open(root / "old0")
    with ThreadPoolExecutor(1) as pool:
        with labels_lock(run):
            tagging = pool.submit(write_labels, run, ["config"], add=["late"])
            run.write_text("labels.json", json.dumps({"tags": ["first"], "pinned": True}))
        assert tagging.result(60).pinned
    assert read_labels(run).tags == ("first", "late")


def test_cleaning(root):
    before = {name: (root / "old0" / name).read_bytes() for name in STAYS if name != "manifest.json"}
    plan = plan_cleaning(root, keep_best=2)
    outcomes = list(carry_out(plan))
    assert [(each.refusal, each.num_bytes) for each in outcomes] == [(None, 4 * HEAVY)] * 2
    left = {path.name for path in (root / "old0").iterdir()}
    assert left == {path.split("/")[0] for path in STAYS} | LOCKS
    assert {name: (root / "old0" / name).read_bytes() for name in before} == before
    assert json.loads((root / "old0" / "manifest.json").read_text())["cleaned"]["extent"] == "checkpoints"
    assert {run.path.name: run.score for run in list_runs(root)}["old0"] == 0.0
    assert plan_cleaning(root, keep_best=2).doomed == []


@pytest.mark.parametrize("extent", ["buffers", "checkpoints"])
@pytest.mark.parametrize("mark", sorted({mark for marks in MARKS.values() for mark in marks}))
def test_datasets_never_go(tmp_path, extent, mark):
    """Demonstrations lie in buffers/<name>/dataset, beside what can be made again."""
    run = heavy_run(tmp_path, "taught")
    kept = run / "buffers" / "demos" / "dataset" / mark
    kept.parent.mkdir(parents=True)
    kept.write_text("{}")
    gone = [run / "buffers" / "demos" / "rows.bin", run / "buffers" / "replay" / "rows.bin", run / "buffers" / "r.bin"]
    for path in gone[:2]:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(HEAVY))
    plan = plan_cleaning(tmp_path, keep_best=0, keep_recent=0, extent=extent)
    assert plan.num_bytes == (3 if extent == "buffers" else 6) * HEAVY
    (outcome,) = carry_out(plan)
    assert outcome.refusal is None
    assert kept.read_text() == "{}"
    assert [path for path in (run / "buffers").rglob("*") if path.is_file()] == [kept]
    assert (run / "checkpoints").is_dir() == (extent == "buffers")
    assert plan_cleaning(tmp_path, keep_best=0, keep_recent=0, extent=extent).doomed == []


def test_a_link_to_a_dataset_stays(tmp_path):
    run = heavy_run(tmp_path / "runs", "linked")
    (tmp_path / "demos").mkdir()
    (tmp_path / "demos" / "dataset.json").write_text("{}")
    (tmp_path / "scratch").mkdir()
    (run / "buffers" / "demos").symlink_to(tmp_path / "demos")
    (run / "buffers" / "scratch").symlink_to(tmp_path / "scratch")
    list(carry_out(plan_cleaning(tmp_path / "runs", keep_best=0, keep_recent=0)))
    assert [path.name for path in (run / "buffers").iterdir()] == ["demos"]
    assert (tmp_path / "demos" / "dataset.json").is_file()
    assert (tmp_path / "scratch").is_dir()


def test_a_run_that_began_meanwhile_is_passed_over(root):
    plan = plan_cleaning(root, keep_best=2)
    with RunDirectory.open(root / "old0").lock():
        outcomes = {each.run.path.name: each.refusal for each in _in_another_process(plan)}
    assert outcomes["old1"] is None
    assert "is in use by pid" in outcomes["old0"]
    assert (root / "old0" / "checkpoints").is_dir()


def _in_another_process(plan):
    queue = CONTEXT.Queue()
    process = CONTEXT.Process(target=lambda: queue.put(list(carry_out(plan))))
    process.start()
    outcomes = queue.get(timeout=60)
    process.join(60)
    return outcomes


def test_a_run_that_went_meanwhile_is_passed_over(root):
    plan = plan_cleaning(root, keep_best=2)
    shutil.rmtree(root / "old0")
    assert sorted(each.refusal is None for each in carry_out(plan)) == [False, True]


def _killed_at(count, work):
    """Do the work and die with SIGKILL before the operation of this number that changes the disk."""
    left = [count]

    def wrap(real):
        def counted(*args, **options):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)

        return counted

    with ExitStack() as patches:
        for name in ("rename", "replace", "unlink", "rmdir", "mkdir", "link"):
            patches.enter_context(mock.patch.object(os, name, wrap(getattr(os, name))))
        work()


def _kill(count, work):
    """Return whether the work was killed, and not done before."""
    process = CONTEXT.Process(target=_killed_at, args=(count, work))
    process.start()
    process.join(60)
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def test_killed_at_every_moment(root):
    """After each kill the kept runs are whole and the others have what stays; in the end all is gone, once."""

    def work():
        list(carry_out(plan_cleaning(root, keep_best=2)))

    kept = {
        path: path.read_bytes()
        for name in ("old2", "old3", "new")
        for path in (root / name).rglob("*")
        if path.is_file()
    }
    count = 1
    while _kill(count, work):
        count += 2
        assert {path: path.read_bytes() for path in kept} == kept
        for name in ("old0", "old1"):
            assert all((root / name / file).stat().st_size for file in STAYS)
            assert RunDirectory.open(root / name).read_manifest()["seed"] == 0
    assert count > 5
    for name in ("old0", "old1"):
        assert {path.name for path in (root / name).iterdir()} == {path.split("/")[0] for path in STAYS} | LOCKS


@pytest.fixture
def replay(tmp_path):
    """A run with two checkpoints that share the segment of a buffer."""
    run = make_run(tmp_path, "replay", created=1000.0)
    store = CheckpointStore(run / "checkpoints")
    segment = Segment("a" * 32, torch.arange(4096))
    for weight in (1.0, 2.0):
        state = {"workflow": {"w": torch.full((3,), weight)}, "buffers": {"replay": {"rows": segment}}}
        store.save(state, counters={"env_steps": 1}, phase="p", score=weight)
    for path in run.iterdir():
        os.utime(path, (1000, 1000))
    return run


def weights(run):
    """The weights of all checkpoints, every one of them whole, and how many still hold a buffer."""
    store = CheckpointStore(run / "checkpoints")
    loaded = [store.load(entry.path) for entry in store.entries()]
    full = sum("replay" in each.state["buffers"] for each in loaded)
    return [each.state["workflow"]["w"][0].item() for each in loaded], full


def test_only_buffers_go(replay):
    (planned,) = (plan := plan_cleaning(replay.parent, keep_best=0, extent="buffers")).doomed
    assert planned.num_bytes == 4096 * 8  # linked twice, on the disk once
    before = sum(path.stat().st_size for path in replay.rglob("segment-*"))
    (outcome,) = carry_out(plan)
    assert (outcome.refusal, outcome.num_bytes, before) == (None, 4096 * 8, 2 * 4096 * 8)
    assert weights(replay) == ([1.0, 2.0], 0)
    assert CheckpointStore(replay / "checkpoints").best().score == 2.0
    assert plan_cleaning(replay.parent, keep_best=0, extent="buffers").doomed == []
    assert len(plan_cleaning(replay.parent, keep_best=0).doomed) == 1  # the weights may still go


def test_only_buffers_killed_at_every_moment(replay):
    def work():
        list(carry_out(plan_cleaning(replay.parent, keep_best=0, extent="buffers")))

    count = 1
    while _kill(count, work):
        count += 1
        assert weights(replay)[0] == [1.0, 2.0]
    assert weights(replay) == ([1.0, 2.0], 0)
    assert not [path for path in Path(replay).rglob("*") if path.name.startswith(LEFTOVER_PREFIX)]


def test_a_damaged_checkpoint_is_left_alone(replay):
    manifest = replay / "checkpoints" / "000001" / "MANIFEST.json"
    manifest.write_text("{")
    (outcome,) = carry_out(plan_cleaning(replay.parent, keep_best=0, extent="buffers"))
    assert "is damaged: MANIFEST.json is not JSON" in outcome.refusal
    assert outcome.num_bytes == 0
    assert manifest.read_text() == "{"
    assert "cleaned" not in RunDirectory.open(replay).read_manifest()


class _NoExchange:
    """A C library on a file system that cannot exchange names."""

    def __init__(self, number):
        self.number = number

    def renameat2(self, *_):
        ctypes.set_errno(self.number)
        return -1


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS])
def test_where_nothing_can_be_exchanged_nothing_changes(replay, monkeypatch, number):
    (replay / "buffers").mkdir()
    (replay / "buffers" / "rows.bin").write_bytes(bytes(HEAVY))
    before = {path: path.read_bytes() for path in replay.rglob("*") if path.is_file()}
    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: _NoExchange(number))
    (outcome,) = carry_out(plan_cleaning(replay.parent, keep_best=0, extent="buffers"))
    assert outcome.refusal.startswith(f"directories cannot be exchanged in {replay / 'checkpoints'}: clean whole")
    after = {path: path.read_bytes() for path in replay.rglob("*") if path.is_file() and path.name not in LOCKS}
    assert after == before


def sweep(root, statuses, planned):
    """A sweep of old trials with these statuses, of as many that were planned."""
    for number, status in enumerate(statuses):
        heavy_run(root / "m" / "trials", f"trial_{number}", status=status)
    rows = [{"name": f"trial_{number}", "values": {}} for number in range(planned)]
    (root / "m" / "sweep.json").write_text(json.dumps({"trials": rows}))
    for folder in ("claims", "logs"):
        (root / "m" / folder).mkdir()
    return root / "m"


def spared(root):
    return plan_cleaning(root, ["m"], keep_best=0).kept.get("of an unfinished sweep", 0)


def test_trials_are_cleaned_once_every_one_has_ended(root):
    place = sweep(root, ["done", "failed", "stopped"], planned=4)
    assert spared(root) == 3
    (place / "logs" / "trial_3.failed").write_text("{}")  # it never began
    assert spared(root) == 3
    (place / "logs" / "trial_2.failed").write_text("{}")
    assert doomed(root, "m", keep_best=0) == {"trial_0", "trial_1", "trial_2"}


def test_trials_stay_while_one_runs_or_a_process_looks_after_the_sweep(root):
    place = sweep(root, ["done", "done"], planned=2)
    claim = place / "claims" / "trial_1"
    with exclusive_lock(claim):
        assert spared(root) == 2
    assert spared(root) == 0  # the file of a claim stays
    (place / "trials" / "trial_1" / "status").write_text("running\n")
    with RunDirectory.open(place / "trials" / "trial_1").lock():
        assert plan_cleaning(root, ["m"], keep_best=0).kept == {
            "not chosen": 5,
            "running": 1,
            "of an unfinished sweep": 1,
        }


def test_trials_of_a_search_stay_until_its_report_has_the_end_of_all(root):
    """A pruned trial's run is stopped for good; a sweep file that lists no trials is that of a search."""
    place = sweep(root, ["done", "stopped"], planned=0)
    assert spared(root) == 2
    (place / "report.json").write_text(json.dumps({"trials": [{"state": "complete"}, {"state": "running"}]}))
    assert spared(root) == 2
    (place / "report.json").write_text(json.dumps({"trials": [{"state": "complete"}, {"state": "pruned"}]}))
    assert doomed(root, "m", keep_best=0) == {"trial_0", "trial_1"}
    os.utime(place / "report.json", (1.0, 1.0))  # it was written before the trial went on
    assert spared(root) == 2


def test_a_linked_sweep_is_left_alone(root, tmp_path_factory):
    other = tmp_path_factory.mktemp("other") / "m"
    heavy_run(other / "trials", "trial_0000", score=50.0)
    (other / "sweep.json").write_text("{}")
    (root / "m").symlink_to(other)
    plan = plan_cleaning(root, keep_best=1)
    assert {each.run.path.name for each in plan.doomed} == {"old0", "old1", "old2"}
    assert plan.kept["link"] == 1
