import pytest

from rl_lab.core import Counters
from rl_lab.tracking.tensorboard import TensorBoardSink
from rl_lab.tracking.tracker import Tracker


def scalars(directory, key):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(directory))
    accumulator.Reload()
    return [(event.step, event.value) for event in accumulator.Scalars(key)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scalars_over_env_steps_and_no_doubles_after_a_resume(run):
    tracker = Tracker(run, [TensorBoardSink(run.tb)])
    tracker.open(100)
    tracker.write("eval", {"return": 1.0}, Counters(10), "p")
    state = tracker.get_state()
    tracker.write("eval", {"return": 2.0}, Counters(20), "p")  # after the checkpoint: lost
    tracker.flush(Counters(20), "p")
    tracker.close()
    resumed = Tracker(run, [TensorBoardSink(run.tb)])
    resumed.set_state(state)
    resumed.open(100, Counters(10))
    for step in (20, 30):
        resumed.write("eval", {"return": step / 10}, Counters(step), "p")
    resumed.close()
    assert scalars(run.tb, "eval/return") == [(10, 1.0), (20, 2.0), (30, 3.0)]


def test_close_without_open(run):
    TensorBoardSink(run.tb).close()
