import html.parser
import json
from statistics import mean

import numpy as np
import pytest

from rl_lab.core.errors import ConfigError, UsageError
from rl_lab.tracking import comparison_tables as tables
from rl_lab.tracking import figures
from rl_lab.tracking.comparison import compare_experiments
from rl_lab.tracking.published import gates, published_curves
from tests.tracking.synthetic import make_run


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Two settings, three seeds, two environments; `good` ends higher by 10, and one run is half as long."""
    root = tmp_path_factory.mktemp("runs")
    for environment in ("One-v1", "Two-v1"):
        for name, top in (("good", 20.0), ("poor", 10.0)):
            for seed in range(3):
                steps = range(0, 101, 10) if (name, seed, environment) != ("good", 2, "Two-v1") else range(0, 51, 10)
                make_run(
                    root,
                    f"{name}_{environment}_{seed}",
                    name=name,
                    seed=seed,
                    curve=[(step, top * step / 100 + seed) for step in steps],
                    environment={"name": environment},
                    algorithm={"gamma": top},
                )
    return root


def cell(comparison, group, environment):
    return next(each for each in comparison.scores if (each.group, each.environment) == (group, environment))


def test_scores_are_read_at_the_same_point(root):
    found = compare_experiments(root)
    one, two = cell(found, "good", "One-v1"), cell(found, "good", "Two-v1")
    assert (one.at, two.at) == (100, 50)  # where the shortest run of the environment ends
    assert sorted(one.scores) == [20.0, 21.0, 22.0]
    assert sorted(two.scores) == [10.0, 11.0, 12.0]
    assert one.summary["mean"][0] == pytest.approx(mean([20, 21, 22]))
    low, high = one.summary["iqm"][1:]
    assert 20 <= low < 21 < high <= 22
    assert found.notes == []
    assert cell(compare_experiments(root, at=25), "poor", "One-v1").scores == pytest.approx((4.5, 3.5, 2.5))


def test_groups_filters_and_axes(root):
    by_key = compare_experiments(
        root, ["environment=One-v1"], group_by="algorithm.gamma", axis="wall", statistic="mean"
    )
    assert [(each.group, each.at) for each in by_key.scores] == [("10", 50.0), ("20", 50.0)]  # 0.5 s a step
    band = next(each for each in by_key.bands if each.group == "20")
    assert np.allclose(band.center, [20 * x / 50 + 1 for x in band.x])
    assert (band.low <= band.center).all()
    assert (band.high >= band.center).all()
    assert band.num_seeds == 3


def test_a_short_run_is_told(root):
    short = make_run(root, "short", name="short", environment={"name": "One-v1"}, curve=[(0, 0.0), (10, 1.0)])
    try:
        (note,) = compare_experiments(root, ["environment=One-v1"]).notes
        assert note == "One-v1: compared at 10 of 100 env steps, where the shortest run ends"
        found = compare_experiments(root, at=60)
        assert found.notes == ["2 runs end before 60 env steps and are left out"]
        with pytest.raises(UsageError, match="--at 500: the longest run ends at 100 env steps"):
            compare_experiments(root, at=500)
    finally:
        (short / "manifest.json").unlink()


def test_improvement_and_profiles(root):
    found = compare_experiments(root, ["environment=One-v1"])
    pairs = {(each.better, each.worse): each for each in found.improvements}
    assert pairs["good", "poor"].probability == 1.0
    assert pairs["poor", "good"].probability == 0.0
    both = compare_experiments(root)
    probability = {(each.better, each.worse): each.probability for each in both.improvements}["good", "poor"]
    assert probability == 1.0  # on Two-v1: 10, 11, 12 against 5, 6, 7
    good, poor = (next(each for each in both.profiles if each.group == group) for group in ("good", "poor"))
    assert good.share[0] == 1.0
    assert poor.share[0] == pytest.approx(4 / 6)  # the lowest of each environment is not above itself
    assert (good.share >= poor.share).all()
    assert poor.share[-1] == good.share[-1] == 0.0


def test_one_seed_has_no_interval(root):
    found = compare_experiments(root, ["environment=One-v1", "seed=1"])
    assert [each.probability for each in found.improvements] == [1.0, 0.0]
    assert all(np.isnan(each.low) and np.isnan(each.high) for each in found.improvements)
    assert [row[2] for row in tables.improvement_table(found)[1]] == ["1", "0"]
    assert tables.to_object(found, [])["improvements"][0] == {
        "better": "good",
        "worse": "poor",
        "probability": 1.0,
        "low": None,
        "high": None,
    }
    assert not any(np.isnan(each.low) for each in compare_experiments(root).improvements)


def test_what_cannot_be_compared(root, tmp_path):
    with pytest.raises(UsageError, match="unknown metric 'eval/retrun'; did you mean 'eval/return'"):
        compare_experiments(root, metric="eval/retrun")
    with pytest.raises(UsageError, match="did you mean 'algorithm.gamma'"):
        compare_experiments(root, group_by="algorithm.gama")
    with pytest.raises(UsageError, match="no runs to compare in"):
        compare_experiments(tmp_path)
    with pytest.raises(ConfigError, match="unknown statistic 'mode'"):
        compare_experiments(root, statistic="mode")


def test_runs_without_the_metric_are_left_out(tmp_path):
    make_run(tmp_path, "with")
    make_run(tmp_path, "without", metric="train/loss")
    found = compare_experiments(tmp_path)
    assert found.notes == ["1 of 2 runs have no eval/return and are left out, such as without"]
    assert len(found.members) == 1


class Page(html.parser.HTMLParser):
    """Collects what a page refers to, and its tags."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.links = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in ("src", "href", "xlink:href")]


def test_the_page_is_whole_and_escapes(tmp_path):
    for seed in range(2):
        make_run(tmp_path, f"a{seed}", name="<script>alert(1)</script>", seed=seed, curve=[(0, seed), (9, 1.0)])
        make_run(tmp_path, f"b{seed}", name="b & c", seed=seed, curve=[(0, 0.0), (9, 2.0)])
    text = tables.to_html([compare_experiments(tmp_path)])
    page = Page(text)
    assert page.tags.count("svg") == 3
    assert "script" not in page.tags
    assert all(link.startswith("#") for link in page.links)
    assert "b &amp; c" in text
    assert "http" not in text.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    ).replace("https://matplotlib.org", "")


def test_figures_are_pictures_and_the_same_each_time(root, tmp_path):
    found = compare_experiments(root, ["environment=One-v1"])
    for ending, start in (("png", b"\x89PNG\r\n"), ("svg", b"<?xml")):
        figures.write_figure(figures.draw_curves(found), tmp_path / f"a.{ending}")
        assert (tmp_path / f"a.{ending}").read_bytes().startswith(start)
    assert figures.render(figures.draw_curves(found), "svg") == (tmp_path / "a.svg").read_bytes()


def test_without_matplotlib_one_line_says_what_to_install(root, monkeypatch):
    monkeypatch.setattr(figures, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'rl-lab\[plot\]'"):
        figures.draw_curves(compare_experiments(root))


def test_tables_for_other_programs(root):
    found = compare_experiments(root, ["environment=One-v1"])
    told = tables.to_object(found, [])
    assert json.loads(json.dumps(told, allow_nan=False))["scores"][0]["group"] == "good"
    assert len(tables.long_table(found)[1]) == 6


def published_run(root, directory, task, shift, frames, *, name="sac", seed=0):
    """A run whose evaluations are the published means of a task, moved by `shift`."""
    points = {row[0]: row[1] for row in published_curves()[task]["sac"]["curve"]}
    return make_run(
        root,
        directory,
        name=name,
        seed=seed,
        curve=[(frame, points[frame] + shift) for frame in frames],
        workflow={"_target_": "rl_lab.workflows.sac.SAC"},
        environment={"name": "dm_control/" + task.replace("cup-catch", "ball_in_cup-catch")},
    )


def test_published_gates(tmp_path):
    frames = [0, 100_000, 200_000, 300_000]
    for seed, noise in enumerate((-3.0, 0.0, 3.0)):
        published_run(tmp_path, f"same{seed}", "walker-walk", noise, frames, name="same", seed=seed)
        published_run(tmp_path, f"low{seed}", "walker-walk", noise - 400, frames, name="low", seed=seed)
        published_run(tmp_path, f"high{seed}", "cup-catch", noise + 400, frames[1:3], name="high", seed=seed)
    found = gates(compare_experiments(tmp_path, axis="frames"))
    verdicts = {(gate.group, gate.frames): gate.verdict for gate in found}
    assert {verdicts["same", frame] for frame in frames[2:]} == {"reproduced"}
    assert {verdicts["low", frame] for frame in frames[2:]} == {"below"}
    assert verdicts["same", 100_000] == "cannot tell"  # theirs spread by 167 there: three seeds could be 400 lower
    assert verdicts["low", 100_000] == "cannot tell"
    assert [frame for group, frame in verdicts if group == "high"] == frames[1:3]  # only where the runs were
    assert {verdicts["high", frame] for frame in frames[1:3]} == {"above"}
    titles, rows = tables.gate_table(found)
    assert len(titles) == len(rows[0])


def test_published_points_are_drawn_on_their_own_task(tmp_path):
    """`walker-walk` is no part of another environment that has it in its name."""
    published_run(tmp_path, "a", "walker-walk", 0.0, [0, 100_000])
    make_run(tmp_path, "b", curve=[(0, 1.0), (100_000, 2.0)], environment={"name": "own/walker-walk-hard"})
    published_run(tmp_path, "c", "cup-catch", 0.0, [0, 100_000])
    comparison = compare_experiments(tmp_path, axis="frames")
    figure = figures.draw_curves(comparison, gates(comparison))
    with_points = {
        panel.get_title() for panel in figure.axes if "published: sac" in str(panel.get_legend_handles_labels())
    }
    assert with_points == {"dm_control/walker-walk", "dm_control/ball_in_cup-catch"}


def test_the_margin_is_that_of_welch(tmp_path):
    """By hand, at 100 k frames of walker-walk: ours 3 seeds with standard deviation 30, theirs as published."""
    step, mean_, std, seeds = next(
        row for row in published_curves()["walker-walk"]["sac"]["curve"] if row[0] == 100_000
    )
    for seed, noise in enumerate((-30.0, 0.0, 30.0)):
        published_run(tmp_path, f"r{seed}", "walker-walk", noise, [0, step, 2 * step], seed=seed)
    gate = next(g for g in gates(compare_experiments(tmp_path, axis="frames"), tolerance=0.0) if g.frames == step)
    ours, theirs = 900 / 3, std**2 / seeds
    freedom = int((ours + theirs) ** 2 / (ours**2 / 2 + theirs**2 / (seeds - 1)))
    quantile = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}[freedom]
    assert gate.margin == pytest.approx(quantile * (ours + theirs) ** 0.5)
    assert gate.value == pytest.approx(mean_)


def test_quantiles_of_student():
    """Integrate the density instead: half of it lies below zero."""
    from math import gamma, pi, sqrt

    from rl_lab.tracking.published import _T_975

    for freedom in (1, 2, 5, 30):
        t = np.linspace(0, _T_975[freedom - 1], 200_001)
        scale = gamma((freedom + 1) / 2) / (sqrt(freedom * pi) * gamma(freedom / 2))
        density = scale * (1 + t**2 / freedom) ** (-(freedom + 1) / 2)
        assert 0.5 + np.trapezoid(density, t) == pytest.approx(0.975, abs=1e-4)


def test_what_is_published_of_nothing(tmp_path):
    make_run(tmp_path, "a")
    with pytest.raises(UsageError, match="nothing is published of ppo on CartPole-v1"):
        gates(compare_experiments(tmp_path, axis="frames"))
    published_run(tmp_path, "b", "walker-walk", 0.0, [0, 100_000])
    found = compare_experiments(tmp_path, ["b"], axis="frames")
    assert {gate.source for gate in gates(found)} == {"sac"}
    assert {gate.source for gate in gates(found, "tdmpc2")} == {"tdmpc2"}
    with pytest.raises(UsageError, match="did you mean 'tdmpc'"):
        gates(found, "tdmpc3")


def test_which_curve_a_run_answers_to(tmp_path):
    tdmpc = {"_target_": "rl_lab.workflows.tdmpc.TDMPC"}
    walker = {"name": "dm_control/walker-walk"}
    curve = [(0, 0.0), (200_000, 500.0)]
    make_run(tmp_path, "one", name="tdmpc_dmc_walker_walk", workflow=tdmpc, environment=walker, curve=curve)
    make_run(tmp_path, "two", name="tdmpc2_dmc_walker_walk", workflow=tdmpc, environment=walker, curve=curve)
    make_run(tmp_path, "ppo", name="ppo", environment=walker, curve=curve)
    found = gates(compare_experiments(tmp_path, axis="frames"))
    assert {(gate.group, gate.source) for gate in found} == {
        ("tdmpc_dmc_walker_walk", "tdmpc"),
        ("tdmpc2_dmc_walker_walk", "tdmpc2"),
    }


def test_groups_that_differ_in_the_last_digit_stay_apart(tmp_path):
    for number, gamma in enumerate((0.1234567, 0.1234568, 1.0, 2)):
        make_run(tmp_path, f"r{number}", algorithm={"gamma": gamma})
    groups = {each.group for each in compare_experiments(tmp_path, group_by="algorithm.gamma").scores}
    assert groups == {"0.1234567", "0.1234568", "1", "2"}


def test_every_published_curve_can_be_read():
    for task, sources in published_curves().items():
        for name, source in sources.items():
            steps = [row[0] for row in source["curve"]]
            assert steps == sorted(steps), (task, name)
            assert all(len(row) == 4 and row[2] >= 0 and row[3] >= 1 for row in source["curve"])


def test_one_run_is_judged_by_the_spread_of_the_published_seeds(tmp_path):
    step, mean_, std, seeds = published_curves()["walker-walk"]["sac"]["curve"][-1]
    assert seeds == 3
    published_run(tmp_path, "low", "walker-walk", -0.9 * mean_, [step - 100_000, step])
    gate = gates(compare_experiments(tmp_path, axis="frames"), tolerance=0.0)[-1]
    assert gate.margin == pytest.approx(4.303 * std * (4 / 3) ** 0.5)  # two degrees of freedom
    assert gate.verdict == "below"


def test_labels_stay_apart_unless_they_are_the_same_number(tmp_path):
    for name in ("ppo_v1", "ppo_v1.0"):
        make_run(tmp_path, name, name=name)
    assert [each.group for each in compare_experiments(tmp_path).scores] == ["ppo_v1", "ppo_v1.0"]


def test_repeats_of_a_seed_are_no_seeds(tmp_path):
    for directory, seed, end in (("a", 1, 100), ("again", 1, 200), ("b", 2, 150)):
        make_run(tmp_path, directory, seed=seed, curve=[(0, 0.0), (end, end / 10)])
    make_run(tmp_path, "other", seed=1, curve=[(0, 0.0), (150, 3.0)], manifest={"config_hash": "d" * 64})
    found = compare_experiments(tmp_path)
    assert {member.run.path.name for member in found.members} == {"again", "b", "other"}
    assert found.notes == ["1 of 4 runs repeat a seed of the same config: the longest of each counts"]
    assert sorted(found.scores[0].scores) == pytest.approx([3.0, 15.0, 15.0])


def test_profiles_are_over_the_environments_that_all_groups_have(tmp_path):
    runs = [("x", "One", (0.0, 1.0, 1.0)), ("x", "Two", (0.0,)), ("x", "Three", (5.0,)), ("y", "One", (0.0,))]
    for group, environment, ends in [*runs, ("y", "Two", (4.0,))]:
        for seed, end in enumerate(ends):
            curve, where = [(0, 0.0), (10, end)], {"name": environment}
            make_run(tmp_path, f"{group}{environment}{seed}", name=group, seed=seed, curve=curve, environment=where)
    found = compare_experiments(tmp_path)
    assert found.notes == ["profiles are over the 2 of 3 environments that all groups have"]
    assert {each.group: each.share[50] for each in found.profiles} == pytest.approx({"x": (2 / 3 + 0) / 2, "y": 0.5})
    apart = compare_experiments(tmp_path, ["xThree0", "yOne0"])
    assert apart.profiles == []
    assert apart.notes == ["profiles are not drawn: there is no environment that all groups have"]
    figures.draw_profiles(apart)


def test_trials_are_left_out_unless_chosen_and_never_mixed(tmp_path):
    """Two settings of two seeds in a sweep, beside one run of the same experiment."""
    make_run(tmp_path, "lone", name="base", curve=[(0, 0.0), (9, 5.0)])
    rows = []
    for number, (gamma, seed) in enumerate([(0.9, 1), (0.8, 1), (0.9, 2), (0.8, 2)]):
        rows.append({"name": f"trial_{number}", "values": {"algorithm.gamma": gamma, "experiment.seed": seed}})
        make_run(tmp_path / "m" / "trials", f"trial_{number}", name="base", seed=seed, curve=[(0, 0.0), (9, number)])
    (tmp_path / "m" / "sweep.json").write_text(json.dumps({"trials": rows}))
    for words in ([], ["base"]):
        assert [(each.group, each.scores) for each in compare_experiments(tmp_path, words).scores] == [("base", (5.0,))]
    assert "4 runs of sweeps and launches are left out" in compare_experiments(tmp_path).notes[0]
    found = compare_experiments(tmp_path, ["name=base"])
    assert {each.group: sorted(each.scores) for each in found.scores} == {
        "base": [5.0],
        "base m/trial_0": [0.0, 2.0],
        "base m/trial_1": [1.0, 3.0],
    }
