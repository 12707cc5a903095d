"""`lab runs list | tag | pin | diff | export | compare | clean`, on directories and on real runs."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from rl_lab.tracking import figures
from tests.cli.test_main import WITHOUT_TORCH
from tests.tracking.synthetic import make_run

ROOT = Path("experiments")


@pytest.fixture
def runs(place):
    """Three runs: two seeds of one experiment, one of another."""
    for seed in range(2):
        make_run(
            place / ROOT, f"a{seed}", name="alpha", seed=seed, created=100.0 + seed, curve=[(0, 0.0), (8, 10.0 + seed)]
        )
    make_run(place / ROOT, "b0", name="beta", created=1.0, algorithm={"gamma": 0.5}, curve=[(0, 1.0), (8, 2.0)])


def listed(result):
    assert result.exit_code == 0, result.stderr
    return [Path(run["path"]).name for run in json.loads(result.stdout)]


def test_list_filters_sorts_and_shows_columns(runs, lab, fails):
    assert listed(lab("runs", "list", "--json")) == ["a1", "a0", "b0"]
    assert listed(lab("runs", "list", "algorithm.gamma=0.99", "eval/return>10.5", "--json")) == ["a1"]
    assert listed(lab("runs", "list", "name=alpha status=done", "--sort", "eval/return", "--reverse", "--json")) == [
        "a0",
        "a1",
    ]
    table = lab("runs", "list", "--columns", "run,algorithm.gamma,eval/return,created", "--limit", "2").stdout
    assert "0.99" in table
    assert "b0" not in table
    assert "2 of 3 runs; --limit 0 lists all" in table
    (extra,) = json.loads(lab("runs", "list", "b0", "--columns", "algorithm.gamma", "--json").stdout)
    assert extra["algorithm.gamma"] == 0.5
    assert "did you mean 'eval/return'?" in fails(lab("runs", "list", "eval/retrun>1"), 2)
    assert "did you mean 'algorithm.gamma'?" in fails(lab("runs", "list", "--columns", "run,gamma"), 2)
    assert "did you mean 'alpha'?" in fails(lab("runs", "list", "alpa"), 1)


def test_listing_and_comparing_need_no_torch(runs):
    for words in (["runs", "list", "algorithm=ppo"], ["runs", "clean"], ["runs", "compare"], ["runs", "export"]):
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT_TORCH % (words,)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_tags_and_pins(runs, lab, fails):
    assert lab("runs", "tag", "a0", "paper", "v1.0").stdout == "tags: paper, v1.0\n"
    assert listed(lab("runs", "list", "tag=paper", "--json")) == ["a0"]
    assert lab("runs", "tag", "a0", "--remove", "paper").stdout == "tags: v1.0\n"
    assert listed(lab("runs", "list", "tag=paper", "--json")) == []
    assert "has no tag 'paper' (it has: v1.0)" in fails(lab("runs", "tag", "a0", "--remove", "paper"), 2)
    assert "must be 1 to 60 letters" in fails(lab("runs", "tag", "a0", "two words"), 2)
    assert lab("runs", "pin", "a0").stdout == "pinned: yes\n"
    assert listed(lab("runs", "list", "pinned=true", "--json")) == ["a0"]
    assert lab("runs", "pin", "a0", "--undo").stdout == "pinned: no\n"


def test_diff(runs, lab):
    assert json.loads(lab("runs", "diff", "a0", "b0", "--json").stdout) == {"algorithm.gamma": [0.99, 0.5]}
    assert "algorithm.gamma" in lab("runs", "diff", "a0", "b0").stdout
    assert lab("runs", "diff", "a0", "a1").stdout == "the configs are equal\n"


def test_a_run_without_its_config_is_told_and_left_out(runs, lab, fails):
    (ROOT / "a0" / "config.yaml").unlink()
    for words in (["a0", "b0"], ["b0", "a0", "--json"]):
        assert "a0/config.yaml is missing or damaged: nothing to compare" in fails(lab("runs", "diff", *words), 1)
    compared = json.loads(lab("runs", "compare", "--json").stdout)
    assert {each["environment"] for each in compared["scores"]} == {"CartPole-v1"}
    assert "config.yaml of 1 runs is missing or damaged: they are left out, such as a0" in compared["notes"]
    assert "of 1, such as a0, config.yaml is missing or damaged" in fails(lab("runs", "compare", "a0"), 2)
    (ROOT / "b0" / "manifest.json").unlink()
    assert "damaged" in next(line for line in lab("runs", "list").stdout.splitlines() if "b0" in line)


def test_export(runs, lab, fails):
    rows = list(
        csv.DictReader(io.StringIO(lab("runs", "export", "--columns", "run,eval/return,algorithm.clip").stdout))
    )
    assert rows[-1] == {"run": "b0", "eval/return": "2.0", "algorithm.clip": ""}
    assert json.loads(lab("runs", "export", "b0", "--format", "json", "--columns", "seed").stdout) == [{"seed": 0}]
    latex = lab(
        "runs", "export", "alpha", "--format", "latex", "--columns", "name,git_hash,eval/return"
    ).stdout.splitlines()
    assert latex[0] == r"\begin{tabular}{llr}"
    assert latex[2] == r"name & git\_hash & eval/return \\"
    assert len(latex) == 8
    assert lab("runs", "export", "--out", "t.csv").exit_code == 0
    assert len(Path("t.csv").read_text().splitlines()) == 4
    assert "unknown key" in fails(lab("runs", "export", "--columns", "nothing"), 2)
    assert "No such file" in fails(lab("runs", "export", "--out", "no/where.csv"), 1)


def test_the_registry_has_the_seeds_shape(runs, lab):
    registry = json.loads(lab("runs", "export", "b0", "--format", "registry").stdout)
    (entry,) = registry["experiments"]
    assert list(entry) == [
        *("id", "name", "algorithm", "environment", "timestamp", "git_hash", "config_hash", "directory")
    ]
    assert (entry["id"], entry["name"], entry["algorithm"], entry["environment"]) == (
        "idb0",
        "beta",
        "ppo",
        "CartPole-v1",
    )
    assert Path(entry["directory"]) == (ROOT / "b0").absolute()


def test_compare_writes_tables_and_figures(runs, lab):
    outs = [word for ending in ("html", "png", "svg", "tex", "csv", "json") for word in ("--out", f"out.{ending}")]
    result = lab("runs", "compare", "alpha", "beta", *outs)
    assert result.exit_code == 0, result.stderr
    assert "10.5 [10, 11]" in result.stdout
    assert "1 [1, 1]" not in result.stdout  # beta has one seed
    assert all(Path(f"out.{ending}").stat().st_size > 100 for ending in ("html", "png", "svg", "tex", "csv", "json"))
    told = json.loads(lab("runs", "compare", "--group-by", "algorithm.gamma", "--json").stdout)
    assert {each["group"]: each["mean"][0] for each in told["scores"]} == {"0.5": 2.0, "0.99": 10.5}


def test_compare_several_metrics(runs, lab):
    told = json.loads(lab("runs", "compare", "--metric", "eval/return", "--metric", "eval/return", "--json").stdout)
    assert [each["metric"] for each in told] == ["eval/return", "eval/return"]
    assert lab("runs", "compare", "--metric", "eval/return", "--metric", "eval/return", "--out", "o.csv").exit_code == 0
    assert Path("o_eval_return.csv").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--metric", "eval/retrun"], "did you mean 'eval/return'?"),
        (["--group-by", "algorithm.gama"], "did you mean 'algorithm.gamma'?"),
        (["--out", "a.jpg"], "unknown ending 'jpg'"),
        (["--out", "no/a.csv"], "no such directory"),
        (["--at", "99"], "the longest run ends at 8"),
        (["--published"], "nothing is published of ppo on CartPole-v1"),
        (["--published", "--axis", "wall"], "published curves are over frames"),
        (["seed=77"], "no runs to compare"),
    ],
)
def test_what_cannot_be_compared_is_one_line(runs, lab, fails, words, message):
    assert message in fails(lab("runs", "compare", *words), 2)


def test_compare_without_matplotlib(runs, lab, fails, monkeypatch):
    monkeypatch.setattr(figures, "find_spec", lambda name: None)
    assert lab("runs", "compare", "--out", "a.csv").exit_code == 0
    assert "rl-lab[plot]" in fails(lab("runs", "compare", "--out", "a.png"), 2)


def test_published_gates_and_their_exit_code(place, lab, fails):
    from rl_lab.tracking.published import published_curves

    curve = [(row[0], row[1]) for row in published_curves()["cup-catch"]["sac"]["curve"][:4]]
    for name, shift in (("same", 0.0), ("low", -500.0)):
        make_run(
            place / ROOT,
            name,
            name=name,
            curve=[(step, value + shift) for step, value in curve],
            environment={"name": "dm_control/ball_in_cup-catch"},
            workflow={"_target_": "rl_lab.workflows.sac.SAC"},
        )
    result = lab("runs", "compare", "--published", "--out", "a.svg")
    assert result.exit_code == 0, result.stderr
    assert "reproduced" in result.stdout
    assert "below" in result.stdout
    assert lab("runs", "compare", "--published", "--strict").exit_code == 1
    assert lab("runs", "compare", "same", "--published", "--strict").exit_code == 0
    assert "--strict goes with --published" in fails(lab("runs", "compare", "--strict"), 2)
    assert "--at must be >= 0, not -3" in fails(lab("runs", "compare", "--at", "-3"), 2)


def test_reindex_and_the_mono_repos_words(runs, lab):
    assert lab("runs", "reindex").stdout == f"3 runs in {ROOT.absolute()}\n"
    assert (
        lab("compat", "python", "-m", "rlrepo", "list", "--filter", "algorithm=ppo", "--sort", "reward").exit_code == 0
    )
    assert lab("compat", "python", "-m", "rlrepo", "compare", "alpha", "beta", "--metrics", "reward").exit_code == 0
    assert "tabular" in lab("compat", "python", "-m", "rlrepo", "export", "alpha", "--format", "latex").stdout
    cleaned = lab("compat", "python", "-m", "rlrepo", "cleanup", "--keep-best", "1", "--keep-recent", "30")
    assert "note: nothing is deleted without --yes" in cleaned.stderr
    assert cleaned.exit_code == 0


def test_clean_is_dry_until_told(lab, fails):
    """A real run with a replay buffer: first that goes, and the policy still plays; then all but what it found."""
    assert lab("train", "+experiment=sac_pendulum", "budget=tiny").exit_code == 0
    (run,) = ROOT.iterdir()
    everything = ("--keep-best", "0", "--keep-recent", "0")
    before = sorted(run.rglob("*"))
    dry = lab("runs", "clean", *everything)
    assert "nothing was changed; --yes does it" in dry.stdout
    assert sorted(run.rglob("*")) == before
    told = json.loads(lab("runs", "clean", *everything, "--only-buffers", "--yes", "--json").stdout)
    assert told["bytes_freed"] == told["bytes"] == 163_840  # 4096 rows of 40 bytes
    assert not list(run.rglob("segment-*"))
    assert lab("evaluate", run, "--episodes", "1").exit_code == 0
    metrics = (run / "metrics.jsonl").read_bytes()
    assert "its buffers are gone and it cannot be resumed exactly" in fails(lab("resume", run), 1)
    assert lab("resume", run, "--mode", "warm_start").exit_code == 0
    named = lab("runs", "clean", run.name, *everything, "--yes")
    assert "kept: 1 not chosen, 1 needed by a kept run" in named.stdout  # the one that began with its weights
    done = lab("runs", "clean", *everything, "--yes")
    assert "in 2 runs" in done.stdout.splitlines()[-1]
    assert not (run / "checkpoints").exists()
    assert "its checkpoints are gone" in fails(lab("resume", run), 1)
    assert (run / "metrics.jsonl").read_bytes() == metrics
    shown = json.loads(lab("runs", "show", run, "--json").stdout)
    assert shown["metrics"]["eval/return"] < 0
    assert shown["checkpoints"] == []
