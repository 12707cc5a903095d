import json

import numpy as np
import pytest

from rl_lab.core.errors import ConfigError, UsageError
from rl_lab.tracking.curves import Curve, expand_metrics, read_curve
from tests.tracking.synthetic import make_run, position


def test_a_curve_over_each_axis(tmp_path):
    run = make_run(tmp_path, "a", curve=[(10, 1.0), (20, 3.0), (40, 2.0)], wall_per_step=0.25)
    assert read_curve(run, "eval/return").x.tolist() == [10, 20, 40]
    assert read_curve(run, "eval/return", "updates").x.tolist() == [5, 10, 20]
    assert read_curve(run, "eval/return", "frames").x.tolist() == [10, 20, 40]  # no action repeat
    wall = read_curve(run, "eval/return", "wall")
    assert wall.x.tolist() == [2.5, 5.0, 10.0]
    assert wall.at(np.array([0.0, 3.75, 99.0])).tolist() == [1.0, 2.0, 2.0]


def test_frames_are_those_of_the_rows(tmp_path):
    run = make_run(tmp_path, "a")
    rows = [{"step": step, "frames": 2 * step, "updates": 0, "eval/return": 1.0} for step in (5, 6)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_curve(run, "eval/return", "frames").x.tolist() == [10, 12]


@pytest.mark.parametrize("separators", [(", ", ": "), (",", ":")])
def test_odd_rows_are_passed_over(tmp_path, separators):
    """Not finite, of another kind, damaged, half written; and a file that another program wrote."""
    run = make_run(tmp_path, "a")
    rows = [
        {**position(1), "eval/return": 1.0},
        {**position(2), "eval/return": float("nan")},
        {**position(3), "train/loss": 3.0},
        {**position(4), "eval/return": "high"},
        {**position(4), "eval/return": 4.0, "eval/return_std": 9.0},
        {**position(4), "eval/return_std": 9.0, "eval/return": 5.0},
    ]
    lines = [json.dumps(row, separators=separators) for row in rows]
    (run / "metrics.jsonl").write_text(
        "\n".join([*lines, '{"eval/return": 3.0, "ste', '["eval/return"]', '{"step": 9'])
    )
    curve = read_curve(run, "eval/return")
    assert (curve.x.tolist(), curve.y.tolist()) == ([1, 4], [1.0, 5.0])  # the last of equal steps


def test_steps_that_were_done_twice_count_once_on_the_clock(tmp_path):
    """A killed process had come to step 30 at 3 s; the next one did it again from step 10 on, from 3 s on."""
    run = make_run(tmp_path, "a", curve=[(10, 0.0), (20, 1.0), (30, 2.0)])
    times = [(10, 1.0), (20, 2.0), (30, 3.0), (20, 4.0), (30, 5.0)]
    rows = [{**position(step), "perf/elapsed_s": elapsed} for step, elapsed in times]
    (run / "perf.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_curve(run, "eval/return", "wall").x.tolist() == [1.0, 4.0, 5.0]


def test_what_is_not_there(tmp_path):
    run = make_run(tmp_path, "a")
    with pytest.raises(UsageError, match=r"a: unknown metric 'eval/retrun'; did you mean 'eval/return'\?"):
        read_curve(run, "eval/retrun")
    with pytest.raises(ConfigError, match="unknown axis 'hours'"):
        read_curve(run, "eval/return", "hours")
    (run / "perf.jsonl").unlink()
    assert len(read_curve(run, "eval/return", "wall")) == 0
    (run / "metrics.jsonl").unlink()
    with pytest.raises(UsageError, match=r"choices: none"):
        read_curve(run, "eval/return")


def test_thinning_keeps_ends_and_means():
    x = np.arange(1000.0)
    thin = Curve(x, x**2).thinned(101)
    assert len(thin) <= 101
    assert (thin.x[0], thin.y[0], thin.x[-1], thin.y[-1]) == (0, 0, 999, 999**2)
    assert np.interp(500, thin.x, thin.y) == pytest.approx(500**2, rel=0.01)
    zigzag = Curve(x, x % 2).thinned(11)  # 9 pieces of 111 or 112 rows between the ends
    assert zigzag.y[1:-1] == pytest.approx(np.full(len(zigzag) - 2, 0.5), abs=0.01)
    assert np.all(np.diff(thin.x) > 0)
    few = Curve(x[:5], x[:5])
    assert few.thinned(101) is few


def test_patterns_are_the_metrics_that_runs_have(tmp_path):
    runs = []
    for name, metrics in (("a", ["train/value_loss", "train/loss"]), ("b", ["train/policy_loss", "eval/return"])):
        runs.append(make_run(tmp_path, name))
        row = {**position(1), **dict.fromkeys(metrics, 1.0)}
        (runs[-1] / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    found = expand_metrics(["eval/return", "train/*loss", "train/loss"], lambda: runs)
    assert found == ["eval/return", "train/loss", "train/policy_loss", "train/value_loss"]
    assert expand_metrics(["a", "a"], lambda: 1 / 0) == ["a", "a"]  # nobody is asked
    assert expand_metrics(["train/*"], list) == ["train/*"]  # refused where there is nothing to compare
    with pytest.raises(UsageError, match=r"unknown metric 'train/\*los'; did you mean 'train/loss'\?"):
        expand_metrics(["train/*los"], lambda: runs)
