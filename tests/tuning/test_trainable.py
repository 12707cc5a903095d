"""Experiments as Trainables of Ray Tune, by Tune's own schedulers: `pytest -m ray`, with `ray[tune]`."""

import json
from pathlib import Path

import pytest

pytest.importorskip("ray.tune", exc_type=ImportError)
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]  # Ray's own

LR = "optimizers.policy.lr"
WORDS = [
    "+experiment=ppo_cartpole",
    "environment.num_envs=4",
    "training.phases.0.workflow_hooks=[{collect: 16}, update_policy]",
    "training.total_timesteps=640",
    "training.eval_frequency=64",
    "training.num_eval_episodes=2",
    "training.eval_num_envs=2",
    "logging=quiet",
]


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    """A class for Tune, and a cluster of this machine for it."""
    import ray

    from rl_lab.tuning.trainable import trainable

    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "0")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield trainable(WORDS, every_steps=128)
    ray.shutdown()


def searched(experiment, tmp_path, name, **options):
    """Return the results of a search."""
    from ray import tune

    run = tune.RunConfig(
        name=name,
        storage_path=str(tmp_path),
        verbose=0,
        checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1),
    )
    space = {LR: tune.loguniform(1e-4, 1e-2), "experiment.seed": tune.randint(1, 100)}
    config = tune.TuneConfig(metric="eval/return", mode="max", max_concurrent_trials=2, **options)
    results = tune.Tuner(experiment, param_space=space, tune_config=config, run_config=run).fit()
    assert not results.errors
    return results


def rows(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def runs_of(result):
    return sorted(Path(result.path).glob("**/checkpoint_*/run"))


def test_saved_and_loaded_a_trial_goes_on_to_the_bit(experiment, tmp_path):
    from rl_lab.tracking.fingerprint import fingerprint
    from rl_lab.tracking.run_directory import RunDirectory

    settings = {LR: 1e-3, "experiment.seed": 7}
    whole, first, second = (experiment(settings) for _ in range(3))
    for _ in range(3):
        newest = whole.train()
    assert newest["step"] >= 384
    first.train()
    (tmp_path / "saved").mkdir()
    first.save_checkpoint(str(tmp_path / "saved"))
    second.load_checkpoint(str(tmp_path / "saved"))
    for _ in range(2):
        assert second.train()["done"] is False
    one, other = (RunDirectory.open(trial._run) for trial in (whole, second))
    assert fingerprint(one) == fingerprint(other)
    assert rows(one.path) == rows(other.path)
    for _ in range(2):
        ended = second.train()
    assert ended["done"] is True
    forked = experiment({**settings, LR: 2e-3})
    forked.load_checkpoint(str(tmp_path / "saved"))
    assert forked.train()["step"] == 256
    before = rows(tmp_path / "saved" / "run")
    assert rows(forked._run)[: len(before)] == before != rows(forked._run)


def test_asha_with_optuna_ends_the_worse_trials_early(experiment, tmp_path):
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search.optuna import OptunaSearch

    scheduler = ASHAScheduler(max_t=5, grace_period=1, reduction_factor=2)
    results = searched(
        experiment, tmp_path, "asha", scheduler=scheduler, search_alg=OptunaSearch(seed=1), num_samples=4
    )
    steps = sorted(result.metrics["step"] for result in results)
    assert steps[0] < steps[-1] == 640
    for result in results:
        found = [(row["step"], "eval/return" in row) for row in rows(runs_of(result)[-1])]
        assert len(found) == len(set(found))


def test_population_based_training_takes_exact_states_over(experiment, tmp_path):
    from ray import tune
    from ray.tune.schedulers import PopulationBasedTraining

    scheduler = PopulationBasedTraining(
        perturbation_interval=1,
        quantile_fraction=0.5,
        hyperparam_mutations={LR: tune.loguniform(1e-4, 1e-2)},
        time_attr="training_iteration",
    )
    results = searched(experiment, tmp_path, "pbt", scheduler=scheduler, num_samples=2)
    assert {result.metrics["step"] for result in results} == {640}
    events = [(runs_of(result)[-1] / "events.jsonl").read_text() for result in results]
    assert any('"mode": "fork"' in text for text in events)
