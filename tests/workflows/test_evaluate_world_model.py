"""The hook `evaluate_world_model` in whole runs: what it writes, and that training does not notice it."""

import json

import pytest

from rl_lab.tracking.fingerprint import tree_hash
from rl_lab.tracking.run_directory import RunDirectory
from tests.workflows.off_policy import run_tiny

SMALL = ["training.num_eval_episodes=1", "training.eval_frequency=null", "environment.num_envs=2"]


def run(folder, experiment, update, *, every):
    """Run one phase that looks at its model, or never does; return the last checkpoint and the run."""
    look = f"{{evaluate_world_model:{{every_steps:{every}}}}}"
    phase = f"{{name:train,buffer:replay,duration_steps:64,train_ratio:0.25,workflow_hooks:[collect,{update},{look}]}}"
    run = RunDirectory.create(folder, f"every{every}", 1)
    return run_tiny([f"+experiment={experiment}", f"training.phases=[{phase}]", *SMALL], run), run


@pytest.mark.parametrize(
    ("experiment", "update", "part"),
    [
        ("planet_pendulum_mlp", "update_world_model", "vector"),
        ("dreamer_cartpole", "update_agent", "vector"),
        ("tdmpc2_cartpole", "update_agent", "latent"),
    ],
)
def test_training_does_not_notice_it(experiment, update, part, tmp_path):
    (plain, _), (looked, directory) = (run(tmp_path, experiment, update, every=every) for every in (10**6, 32))
    keys = ("workflow", "workflow_state", "optimizers", "buffers", "collector", "rng", "counters")
    assert [key for key in keys if tree_hash(plain[key]) != tree_hash(looked[key])] == []
    assert plain["counters"]["updates"] > 0
    rows = [json.loads(line) for line in directory.metrics_file.read_text().splitlines()]
    found = [row for row in rows if "eval/prediction_error_1" in row]
    assert [row["step"] for row in found] == [32, 64]
    middle, last = (2, 3) if part == "latent" else (6, 11)
    names = {f"eval/prediction_error_{middle}", f"eval/prediction_error_{last}", f"eval/reward_error_{last}"}
    assert all(names <= row.keys() for row in found)
    assert ("eval/continue_brier" in found[0]) == (experiment != "planet_pendulum_mlp")
    assert ("eval/planning_gain" in found[0]) == (experiment != "dreamer_cartpole")
    assert len(list((directory.media / "eval").glob(f"open_loop_{part}_*.png"))) == 2
