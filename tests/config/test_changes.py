import pytest

from rl_lab.config.changes import Change, changes, check_exact
from rl_lab.core import ConfigError

OLD = {
    "experiment": {"seed": 1, "root": "a", "tags": [], "name": "x"},
    "algorithm": {"lr": 0.1},
    "training": {
        "total_timesteps": 100,
        "keep_last": 2,
        "checkpoint_minutes": None,
        "num_eval_episodes": 5,
        "resume_path": None,
        "phases": [{"name": "a", "duration_steps": 100, "workflow_hooks": ["collect"]}],
    },
    "logging": {"every_steps": 10},
}


def changed(path, value):
    tree = {key: {**block} for key, block in OLD.items()}
    tree["training"]["phases"] = [dict(OLD["training"]["phases"][0])]
    node = tree
    *parents, last = path.split(".")
    for key in parents:
        node = node[int(key)] if key.isdigit() else node[key]
    node[last] = value
    return tree


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("training.total_timesteps", 200),
        ("training.phases.0.duration_steps", 300),
        ("training.keep_last", 5),
        ("training.checkpoint_minutes", 3.0),
        ("logging.every_steps", 7),
        ("experiment.tags", ["new"]),
    ],
)
def test_what_an_exact_resume_may_change(path, value):
    (change,) = check_exact(OLD, changed(path, value))
    assert change.key.startswith(path)


@pytest.mark.parametrize(("path", "value"), [("experiment.root", "b"), ("training.resume_path", "c")])
def test_what_is_not_compared(path, value):
    assert check_exact(OLD, changed(path, value)) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("algorithm.lr", 0.2),
        ("algorithm.new", 1),
        ("experiment.seed", 2),
        ("training.total_timesteps", 50),
        ("training.phases.0.duration_steps", 99),
        ("training.phases.0.workflow_hooks", ["collect", "evaluate"]),
        ("training.phases.0.name", "b"),
        ("training.num_eval_episodes", 6),
    ],
)
def test_what_it_may_not(path, value):
    with pytest.raises(ConfigError) as error:
        check_exact(OLD, changed(path, value))
    assert f"an exact resume cannot change {path}" in str(error.value)
    assert "may change: longer training.total_timesteps" in str(error.value)
    assert "\n" not in str(error.value)


def test_every_refused_key_is_listed():
    new = changed("algorithm.lr", 0.2)
    new["experiment"]["seed"] = 3
    with pytest.raises(ConfigError, match=r"experiment.seed: 1 -> 3; algorithm.lr: 0.1 -> 0.2"):
        check_exact(OLD, new)


def test_a_run_from_before_an_option_did_what_its_default_says():
    older, same, other = {"experiment": {"seed": 1}}, {"seed": 1, "num_seeds": 1}, {"seed": 1, "num_seeds": 8}
    assert changes(older, {"experiment": same}) == []
    assert changes(older, {"experiment": other}) == [Change("experiment.num_seeds", 1, 8)]
