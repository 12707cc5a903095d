import time
from datetime import datetime

import pytest

from rl_lab.core.errors import RunDirectoryError, UsageError
from rl_lab.tracking.catalogue import choose, choose_runs, find_experiments, find_run, values_of
from rl_lab.tracking.index import Index
from tests.tracking.synthetic import make_run

DAY = 86_400.0


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root, now = tmp_path_factory.mktemp("runs"), time.time()
    cheetah = {"environment": {"name": "HalfCheetah-v5"}}
    sac = {"workflow": {"_target_": "rl_lab.workflows.sac.SAC"}}
    make_run(root, "a", name="alpha", created=now - 1 * DAY, curve=[(0, 9.0), (50, 4000.0)], **cheetah)
    make_run(root, "b", name="beta", created=now - 9 * DAY, curve=[(0, 7000.0), (80, 2000.0)], **cheetah, **sac)
    make_run(root, "c", name="lr=0.1", created=now - 20 * DAY, status="failed", experiment={"tags": ["paper", "old"]})
    make_run(root, "d", created=now, algorithm={"gamma": 0.5, "dims": [1], "use": True}, metric="train/loss")
    return root


def found(root, *filters, **options):
    return "".join(sorted(run.path.name for run in find_experiments(root, *filters, **options)))


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("", "abcd"),
        ("algorithm=ppo", "acd"),
        ("algorithm=PPO", "acd"),
        ("algorithm!=ppo", "b"),
        ("algorithm=sac,dqn", "b"),
        ("environment~cheetah", "ab"),
        ("environment~Cart environment~Pole", "cd"),
        ("environment~a%h", ""),
        ("eval/return>3000", "a"),
        ("eval/return:max>3000", "ab"),
        ("eval/return>=2000 eval/return<=4000", "ab"),
        ("eval/return<1500", "c"),
        ("eval/return!=4000", "bcd"),  # a run without it is not equal to it
        ("tag=paper", "c"),
        ("tag=other,paper", "c"),
        ("tag!=paper", "abd"),
        ("tag~pap", "c"),
        ("status=done", "abd"),
        ("status=failed,killed", "c"),
        ("since=7d", "ad"),
        ("until=1w", "bc"),
        ("since=480h", "abd"),
        ("since=2001-01-31", "abcd"),
        ("created>2d", "ad"),
        ("algorithm.gamma=0.5", "d"),
        ("algorithm.gamma>0.6", "abc"),
        ("algorithm.dims=[64,64]", "abc"),
        ("algorithm.use=true", "d"),
        ("algorithm.clip=null", "abcd"),
        ("training.phases.0.duration_steps=100", "abcd"),
        ("seed=0", "abcd"),
        ("pinned=false", "abcd"),
        ("run=a", "a"),
        ("env_steps>=80", "bcd"),
        ("algorithm=ppo environment~Cheetah eval/return>3000 status=done since=7d", "a"),
    ],
)
def test_the_grammar(root, text, runs):
    assert found(root, text) == runs
    assert found(root, *text.split()) == runs


def test_until_a_day_includes_it(tmp_path):
    for directory, moment in {"a": "2026-01-30T12:00", "b": "2026-01-31T23:59", "c": "2026-02-01T00:00"}.items():
        make_run(tmp_path, directory, created=datetime.fromisoformat(moment).timestamp())
    assert found(tmp_path, "until=2026-01-31") == "ab"
    assert found(tmp_path, "until=2026-01-31T12:00") == "a"
    assert found(tmp_path, "since=2026-01-31 until=2026-01-31") == "b"


def test_a_part_of_a_tag_is_taken_by_the_letter(tmp_path):
    make_run(tmp_path, "a", experiment={"tags": ["lr_1"]})
    make_run(tmp_path, "b", experiment={"tags": ["lrx1"]})
    assert found(tmp_path, "tag~lr_1") == "a"
    assert found(tmp_path, "tag~l%1") == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("eval/retrun>3", "unknown metric 'eval/retrun'; did you mean 'eval/return'?"),
        ("algorithm.gama=1", "unknown key 'algorithm.gama'; did you mean 'algorithm.gamma'?"),
        ("gamma=1", "unknown key 'gamma'; did you mean 'algorithm.gamma'?"),
        ("loss>1", "unknown key 'loss'; did you mean 'train/loss'?"),
        ("statsu=done", "unknown key 'statsu'; did you mean 'status'?"),
        ("status=doen", "unknown status 'doen'; did you mean 'done'?"),
        ("eval/return>much", "> needs a number, not 'much'"),
        ("since=soon", "an age such as 30m, 12h, 7d, 2w or a date"),
        ("since>7d", "since goes with ="),
        ("tag>3", "a tag goes with"),
        ("algorithm", "expected KEY OPERATOR VALUE"),
        ('a"b=1', "unknown key"),
        ("=ppo", "expected KEY OPERATOR VALUE"),
    ],
)
def test_what_cannot_be_read_is_one_line(root, text, message):
    with pytest.raises(UsageError) as caught:
        find_experiments(root, text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_keyword_filters_and_sorting(root):
    assert found(root, algorithm="ppo", status="done") == "ad"
    order = [run.path.name for run in find_experiments(root, sort="eval/return")]
    assert order == ["a", "b", "c", "d"]  # the highest first, what is missing last
    with Index(root) as index:
        assert choose(index, [], "algorithm")[0][-1].path.name == "b"
        assert choose(index, [], "env_steps", reverse=True)[0][0].path.name == "a"
        assert [run.path.name for run in choose(index, [], reverse=True)[0]] == ["c", "b", "a", "d"]
        for words, limit, expected in (
            ([], 2, ("d", 4)),
            (["algorithm=ppo"], 1, ("d", 3)),
            (["alpha", "b"], 1, ("a", 2)),
        ):
            runs, count = choose(index, words, limit=limit)
            assert (runs[0].path.name, count, len(runs)) == (*expected, limit)
    with pytest.raises(UsageError, match="did you mean 'eval/return'"):
        find_experiments(root, sort="eval/return_")


def test_words_name_runs_or_filter(root):
    assert [run.path.name for run in choose_runs(root, ["alpha", "idb"])] == ["a", "b"]
    assert [run.path.name for run in choose_runs(root, ["lr=0.1"])] == ["c"]  # a name that looks like a filter
    assert [run.path.name for run in choose_runs(root, ["x", "algorithm=ppo"])] == ["d"]
    assert [run.path.name for run in choose_runs(root, [str(root / "a")])] == ["a"]
    with pytest.raises(UsageError, match="beta does not satisfy algorithm=ppo"):
        choose_runs(root, ["beta", "algorithm=ppo"])
    with pytest.raises(ValueError, match="did you mean 'alpha'"):
        choose_runs(root, ["alpa"])


def test_of_many_runs_only_the_nearest_are_named(tmp_path):
    for number in range(60):
        make_run(tmp_path, f"run_{number:03d}")
    for find in (lambda: choose_runs(tmp_path, ["run_0077"]), lambda: find_run(tmp_path, "run_0077")):
        with pytest.raises(RunDirectoryError) as caught:
            find()
        assert "did you mean 'run_007'" in str(caught.value)
        assert len(str(caught.value)) < 300


def test_values_of_runs_here_and_elsewhere(root, tmp_path):
    keys = ["algorithm.gamma", "eval/return", "eval/return:max", "run", "status"]
    runs = choose_runs(root, ["a", "d"])
    expected = [[0.99, 4000.0, 4000.0, "a", "done"], [0.5, None, None, "d", "done"]]
    assert values_of(root, runs, keys) == expected
    assert values_of(tmp_path, runs, keys) == expected  # read from the files


def test_no_runs_no_complaint(tmp_path):
    assert find_experiments(tmp_path, "eval/return>3 anything.at.all=1", sort="eval/return") == []
