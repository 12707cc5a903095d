"""A run whose environment fails: what was learned is kept, and can be gone on from."""

import math

import pytest
import torch

from rl_lab.config.resume import find_start
from rl_lab.core import EnvironmentFault, NotFiniteError
from rl_lab.orchestration.cadence import CheckpointCadence
from rl_lab.tracking.checkpoint import CheckpointStore
from tests.orchestration.test_orchestrator import assert_same, build

PHASES = [{"name": "learn", "duration_steps": 200, "hooks": [{"collect": 4}, "update_policy"]}]


def failing(path, at, **options):
    """Return a run whose environment fails in that vector step, and what its workflow was before it."""
    run = build(path, phases=PHASES, cadence=CheckpointCadence(steps=10_000), **options)
    env, steps, seen = run.collector.env, [], {}
    step, update = env.step, run.workflow.update_policy

    def fails(actions):
        steps.append(actions)
        if len(steps) == at:
            raise EnvironmentFault("the motor is on fire")
        return step(actions)

    def update_policy(*args, **kwargs):
        metrics = update(*args, **kwargs)
        seen.update({name: value.clone() for name, value in run.workflow.state_dict().items()})
        return metrics

    env.step, run.workflow.update_policy = fails, update_policy
    return run, seen


def test_what_was_learned_is_kept_beside_the_checkpoints(tmp_path):
    run, learned = failing(tmp_path / "run", at=11)  # the third step of the third rollout
    with pytest.raises(EnvironmentFault) as caught:
        run.run()
    aside = tmp_path / "run" / "crash" / "000001"
    assert str(caught.value).startswith(f"the motor is on fire; what was learned is in {aside} (")
    assert not run.checkpoints.entries()  # an exact resume does not begin there
    state = CheckpointStore.load(aside).state
    assert find_start(aside, "warm_start_optimizer").source.path == tmp_path / "run"
    assert state["counters"] == {"env_steps": 24, "updates": 2, "episodes": state["counters"]["episodes"], "cycles": 2}
    assert_same(state["workflow"], learned)
    again = build(tmp_path / "again", phases=PHASES)
    again.restore(state, "warm_start_optimizer", is_own=False)
    assert_same(dict(again.workflow.state_dict()), learned)
    assert again.context.optimizers["policy"].state_dict()["state"][0]["step"] == 2
    again.run()
    assert again.counters.env_steps >= 200


def test_nothing_is_kept_twice(tmp_path):
    run, _ = failing(tmp_path / "fresh", at=3)  # nothing was learned yet
    with pytest.raises(EnvironmentFault, match="^the motor is on fire$"):
        run.run()
    run, _ = failing(tmp_path / "saved", at=9)
    run.cadence = CheckpointCadence(updates=1)  # saved after every update
    with pytest.raises(EnvironmentFault, match="^the motor is on fire$"):
        run.run()
    assert not (tmp_path / "saved" / "crash").exists()


def test_a_poisoned_policy_is_to_blame_and_is_not_kept(tmp_path):
    run, _ = failing(tmp_path / "run", at=11)
    update = run.workflow.update_policy

    def poisoned(*args, **kwargs):
        metrics = update(*args, **kwargs)
        if len(run.workflow.calls) == 2:
            run.workflow.weight.data.mul_(math.nan)
        return metrics

    run.workflow.update_policy = poisoned
    run._guard.end = lambda is_rollout: None  # as after updates from replay, which are not looked at one by one
    with pytest.raises(NotFiniteError, match="weight holds NaN"):
        run.run()
    (dump,) = (tmp_path / "run" / "crash").glob("0*")
    assert "term" in CheckpointStore.load(dump).state
    assert torch.isnan(run.workflow.weight).any()
