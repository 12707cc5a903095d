from rl_lab.core import Counters
from rl_lab.tracking.csv_export import CsvSink, export_csv
from rl_lab.tracking.tracker import Tracker


def test_union_of_columns(run):
    tracker = Tracker(run, [CsvSink(run)])
    tracker.open(100)
    tracker.write("train", {"loss": 0.5}, Counters(10, 1, 2, 3), "a,b")
    tracker.write("eval", {"return": float("nan")}, Counters(20), "p")
    tracker.close()
    assert (run.path / "metrics.csv").read_text().splitlines() == [
        "step,updates,episodes,cycles,phase,eval/return,train/loss",
        '10,1,2,3,"a,b",,0.5',
        "20,0,0,0,p,nan,",
    ]


def test_nothing_was_logged(tmp_path):
    assert export_csv(tmp_path / "none.jsonl", tmp_path / "x.csv") == 0
    assert (tmp_path / "x.csv").read_text() == "step,updates,episodes,cycles,phase\n"
