"""The index follows the directories, whatever happens to them, and no damage to itself is seen from outside."""

import json
import multiprocessing
import os
import shutil

import pytest

from rl_lab.core.errors import LabError, RunDirectoryError
from rl_lab.tracking import index_file
from rl_lab.tracking.catalogue import choose_runs, describe, find_experiments, find_run, list_runs, values_of
from rl_lab.tracking.index import Index
from rl_lab.tracking.index_file import index_path
from rl_lab.tracking.run_directory import RunDirectory
from tests.tracking.synthetic import make_run, position

CONTEXT = multiprocessing.get_context("fork")
FORK = "ignore:This process .* is multi-threaded, use of fork:DeprecationWarning"  # since 3.12; torch has threads
pytestmark = pytest.mark.filterwarnings(FORK)


def settle(path):
    """Let the directory's last change be long ago, so that only a new change is a reason to read it again."""
    os.utime(path, (1000, 1000))


@pytest.fixture
def root(tmp_path):
    for number in range(3):
        settle(make_run(tmp_path / "runs", f"r{number}", seed=number, created=100.0 + number))
    return tmp_path / "runs"


def names(root):
    return [run.path.name for run in list_runs(root)]


def test_what_is_listed_is_what_the_files_say(root):
    assert list_runs(root) == [describe(root / f"r{number}") for number in (2, 1, 0)]


def test_a_run_that_did_not_change_is_not_read_again(root, monkeypatch):
    list_runs(root)
    monkeypatch.setattr("rl_lab.tracking.index.read_record", lambda *_: pytest.fail("it was read"))
    assert names(root) == ["r2", "r1", "r0"]


def test_a_directory_that_changed_a_moment_ago_is_looked_at_again(root):
    """Two changes within one tick of the file system's clock leave the same time behind."""
    run = make_run(root, "young")
    stamp = run.stat().st_mtime_ns
    list_runs(root)
    (run / "status").write_text("failed\n")
    os.utime(run, ns=(stamp, stamp))
    assert {r.path.name: r.status for r in list_runs(root)}["young"] == "failed"


def test_moved_deleted_and_half_deleted_runs(root):
    assert names(root) == ["r2", "r1", "r0"]
    (root / "r1").rename(root / "moved")
    shutil.rmtree(root / "r0")
    (root / "r2" / "config.yaml").unlink()
    runs = {run.path.name: run for run in list_runs(root)}
    assert set(runs) == {"moved", "r2"}
    assert runs["moved"].seed == 1
    assert (runs["r2"].algorithm, runs["r2"].score) == ("", 1.0)  # what is left of it is still there
    (root / "r2" / "manifest.json").unlink()
    assert {run.path.name: run.status for run in list_runs(root)} == {"moved": "done", "r2": "damaged"}
    with pytest.raises(RunDirectoryError, match=r"r2 is not a run directory \(it has no manifest.json\)"):
        find_run(root, str(root / "r2"))
    for name in ("status", "metrics.jsonl"):
        (root / "r2" / name).unlink()
    assert names(root) == ["moved"]  # nothing says any more that it was a run
    (root / "moved" / "half").write_text("{")
    (root / "moved" / "half").rename(root / "moved" / "manifest.json")
    assert [run.status for run in list_runs(root)] == ["damaged"]
    shutil.rmtree(root)
    assert names(root) == []


def test_changes_are_seen(root):
    list_runs(root)
    run = RunDirectory.open(root / "r1")
    run.set_status("failed")
    assert [r.status for r in list_runs(root)] == ["done", "failed", "done"]


def test_a_living_run_is_read_on_from_where_it_was(root):
    run = make_run(root, "live", status="running", summary=False, curve=[(0, 5.0), (10, 2.0)])
    settle(run)
    directory = RunDirectory.open(run)
    with directory.lock():
        assert find_experiments(root, "status=running")[0].score == 5.0
        with open(run / "metrics.jsonl", "a") as file:
            file.write(json.dumps({**position(20), "eval/return": 9.0}) + "\n" + '{"step": 30, "eval/')
        (live,) = find_experiments(root, status="running")
        assert (live.env_steps, live.score) == (20, 9.0)
        with open(run / "metrics.jsonl", "a") as file:
            file.write('return": 11.5}\n')
        assert find_experiments(root, status="running")[0].score == 11.5
        os.truncate(run / "metrics.jsonl", 0)  # begun anew
        assert find_experiments(root, status="running")[0].score is None
    assert {r.path.name: r.status for r in list_runs(root)}["live"] == "killed"


def test_a_run_that_was_resumed_and_killed_shows_what_it_reached(root):
    """Its metrics.json is of the stop before."""
    run = make_run(root, "again", status="stopped", curve=[(0, 1.0), (10, 2.0)])
    assert describe(run).score == 2.0
    with open(run / "metrics.jsonl", "a") as file:
        file.write(json.dumps({**position(40), "eval/return": 7.0}) + "\n")
    RunDirectory.open(run).set_status("running")  # and nobody holds its lock
    killed = next(r for r in list_runs(root) if r.path.name == "again")
    assert (killed.status, killed.env_steps, killed.score) == ("killed", 40, 7.0)


@pytest.mark.parametrize("damage", ["text", "cut", "zeros", "foreign", "directory"])
def test_a_damaged_index_is_made_anew(root, damage):
    assert len(list_runs(root)) == 3
    file = index_path(root.resolve())
    content = file.read_bytes()
    for suffix in ("-wal", "-shm"):
        file.with_name(file.name + suffix).unlink(missing_ok=True)
    if damage == "directory":
        file.unlink()
        file.mkdir()
    else:
        middle = len(content) // 2
        zeroed = content[:100] + bytes(len(content) - 100)
        file.write_bytes({"text": b"no database", "cut": content[:middle], "zeros": zeroed, "foreign": b""}[damage])
    assert names(root) == ["r2", "r1", "r0"]
    assert names(root) == ["r2", "r1", "r0"]


def test_damage_that_shows_only_later(root):
    list_runs(root)
    with Index(root) as index:
        index._file.connection.execute("DROP TABLE runs")
        assert len(index.rows("SELECT run FROM runs")) == 3


def test_without_a_place_for_the_index_it_is_in_memory(root, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LAB_INDEX", str(tmp_path / "file" / "below"))
    assert names(root) == ["r2", "r1", "r0"]


def test_on_a_full_disk_the_index_is_in_memory(root, monkeypatch):
    """SQLite itself says that there is no room: its file may not grow beyond what the empty tables take."""
    real = index_file.IndexFile._connect

    def connect(self):
        real(self)
        self.connection.execute("PRAGMA max_page_count = 1")

    monkeypatch.setattr(index_file.IndexFile, "_connect", connect)
    for number in range(3, 20):
        make_run(root, f"r{number}", seed=number, created=100.0 + number)
    with Index(root) as index:
        assert index._file.is_in_memory
        assert len(index.rows("SELECT run FROM runs")) == 20
    assert len(names(root)) == 20


def test_an_index_in_use_is_not_taken_away(root, monkeypatch):
    monkeypatch.setattr(index_file, "_EXCHANGE_S", 0.05)
    with Index(root) as first, Index(root) as second:
        second.rebuild()
        assert second._file.is_in_memory
        assert len(second.rows("SELECT run FROM runs")) == 3
        assert len(first.rows("SELECT run FROM runs")) == 3


def test_rebuild_counts(root):
    with Index(root) as index:
        assert index.rebuild() == 3


def test_numbers_that_sql_does_not_know(root):
    make_run(root, "odd", curve=[(0, float("nan")), (5, float("inf"))], algorithm={"gamma": float("inf")})
    assert [run.path.name for run in find_experiments(root, "algorithm.gamma=inf")] == ["odd"]
    assert {run.path.name: run.score for run in list_runs(root)}["odd"] is None


def _write(root, number, told):
    try:
        for turn in range(5):
            make_run(root, f"w{number}_{turn}", seed=turn)
            list_runs(root)
            RunDirectory.open(root / f"w{number}_{turn}").set_status("stopped")
            list_runs(root)
        told.put("fine")
    except Exception as error:  # noqa: BLE001  (told to the test)
        told.put(repr(error))


def test_eight_writers_at_once(tmp_path):
    root, told = tmp_path / "runs", CONTEXT.Queue()
    root.mkdir()
    writers = [CONTEXT.Process(target=_write, args=(root, number, told)) for number in range(8)]
    for writer in writers:
        writer.start()
    assert [told.get(timeout=120) for _ in writers] == ["fine"] * 8
    for writer in writers:
        writer.join(60)
    assert len(find_experiments(root, status="stopped")) == 40


def test_a_killed_rebuild_goes_on(root, monkeypatch):
    """What was read before the kill is there, and the rest follows."""
    monkeypatch.setattr("rl_lab.tracking.index._BATCH", 1)
    import rl_lab.tracking.index as module

    reads, real = [], module.read_record

    def read(path, before=None):
        reads.append(path.name)
        if len(reads) == 2:
            raise KeyboardInterrupt
        return real(path, before)

    monkeypatch.setattr(module, "read_record", read)
    with pytest.raises(KeyboardInterrupt):
        list_runs(root)
    monkeypatch.setattr(module, "read_record", real)
    with Index(root) as index:
        assert len(index.rows("SELECT run FROM runs")) == 3


@pytest.fixture
def study(root):
    """A sweep of two trials, one of them not begun, and a launch of two seeds, beside three runs."""
    for number in range(2):
        settle(make_run(root / "m" / "trials", f"trial_000{number}", name="base", created=200.0 + number))
    (root / "m" / "trials" / "trial_0002").mkdir()
    (root / "m" / "sweep.json").write_text("{}")
    for seed in (1, 2):
        settle(make_run(root / "far", f"seed_{seed}", name="far", seed=seed, created=300.0 + seed))
    make_run(root / "notes", "inside")  # neither a sweep nor a launch: somebody's own directory
    make_run(root / "notes" / "trials", "inside")
    return root


def places(root, runs):
    return [str(run.path.relative_to(root)) for run in runs]


def test_trials_and_seeds_are_listed_with_the_others(study):
    expected = ["far/seed_2", "far/seed_1", "m/trials/trial_0001", "m/trials/trial_0000", "r2", "r1", "r0"]
    assert places(study, list_runs(study)) == expected
    assert places(study, find_experiments(study, "seed=1")) == ["far/seed_1", "r1"]
    assert places(study, find_experiments(study, "run~m/")) == ["m/trials/trial_0001", "m/trials/trial_0000"]
    runs = choose_runs(study, ["m"])
    assert values_of(study, runs, ["run", "score"]) == [["m/trials/trial_0001", 1.0], ["m/trials/trial_0000", 1.0]]
    assert places(study / "m", list_runs(study / "m")) == ["trials/trial_0001", "trials/trial_0000"]
    assert places(study / "m" / "trials", list_runs(study / "m" / "trials")) == ["trial_0001", "trial_0000"]


def test_trials_are_not_read_again_and_their_changes_are_seen(study, monkeypatch):
    list_runs(study)
    with monkeypatch.context() as patch:
        patch.setattr("rl_lab.tracking.index.read_record", lambda *_: pytest.fail("it was read"))
        assert len(list_runs(study)) == 7
    RunDirectory.open(study / "m" / "trials" / "trial_0000").set_status("failed")
    make_run(study / "m" / "trials", "trial_0003", created=400.0)
    assert places(study, find_experiments(study, "status=failed")) == ["m/trials/trial_0000"]
    assert places(study, list_runs(study))[0] == "m/trials/trial_0003"
    shutil.rmtree(study / "far")
    (study / "m").rename(study / "moved")
    assert places(study, list_runs(study))[:2] == ["moved/trials/trial_0003", "moved/trials/trial_0001"]
    assert len(list_runs(study)) == 6


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("m", ["m/trials/trial_0001", "m/trials/trial_0000"]),
        ("far", ["far/seed_2", "far/seed_1"]),
        ("trial_0001", ["m/trials/trial_0001"]),
        ("m/trials/trial_0001", ["m/trials/trial_0001"]),
        ("runs/m", ["m/trials/trial_0001", "m/trials/trial_0000"]),
        ("./runs/far/seed_1/", ["far/seed_1"]),
    ],
)
def test_a_sweep_is_named_as_a_whole_or_by_trial(study, monkeypatch, word, expected):
    monkeypatch.chdir(study.parent)
    for root in (study, "runs"):
        assert places(study, choose_runs(root, [word])) == expected
    with pytest.raises(LabError, match="does not satisfy"):
        choose_runs(study, [word, "status=failed"])


def test_one_run_is_found_by_its_place(study):
    make_run(study, "trial_0000", created=50.0)
    assert find_run(study, "trial_0000").path == study / "trial_0000"  # that very one, though there is a newer
    assert find_run(study, "m/trials/trial_0000").path == study / "m" / "trials" / "trial_0000"
    assert find_run(study, "far").path == study / "far" / "seed_2"  # the newest of the launch
    with pytest.raises(RunDirectoryError, match="did you mean 'm/trials/trial_0001'"):
        find_run(study, "m.trials.trial_0001")


def test_the_name_of_an_experiment_means_no_trials(study):
    make_run(study, "lone", name="base", created=100.0)
    assert find_run(study, "base").path == study / "lone"
    assert find_run(study).path == study / "r2"  # trials and seeds are newer
    assert places(study, choose_runs(study, ["base"])) == ["lone"]
    assert places(study, choose_runs(study, ["name=base"])) == ["m/trials/trial_0001", "m/trials/trial_0000", "lone"]
    assert find_run(study / "m", "base").path == study / "m" / "trials" / "trial_0001"  # the sweep is the root
    assert find_run(study / "m").path == study / "m" / "trials" / "trial_0001"


def test_an_experiment_of_trials_alone_is_told(study):
    for find in (lambda: find_run(study, "base"), lambda: choose_runs(study, ["base", "status=done"])):
        with pytest.raises(RunDirectoryError, match="only sweeps and launches .* `lab runs list name=base` shows them"):
            find()
    for name in ("r0", "r1", "r2"):
        shutil.rmtree(study / name)
    with pytest.raises(RunDirectoryError, match="no runs in .* but the 4 of sweeps and launches: name one"):
        find_run(study)
