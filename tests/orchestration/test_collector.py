import pytest
import torch

from rl_lab.core import EnvironmentFault, tree_cat
from rl_lab.environments.counting import ENV, EPISODE, LAST_ACTION, STEP, Counting
from rl_lab.orchestration.collector import Collector
from tests.orchestration.parts import Counter, Reporting, no_timer

NUM_ENVS = 5


def collect(collector, workflow, steps, stop=lambda: False):
    return collector.collect(workflow, steps, env_steps=0, should_stop=stop)


def new_collector():
    return Collector(Counting(NUM_ENVS), 0, no_timer)


def test_a_trajectory_is_continuous_and_keeps_the_true_last_observation():
    torch.manual_seed(0)
    result = collect(new_collector(), Counter(), 60)
    rows = result.trajectory
    assert (result.steps, result.vector_steps) == (300, 60)
    obs, final, done = rows["observations"], rows["final_observations"], rows["terminated"] | rows["truncated"]
    assert torch.equal(obs[:, :, ENV], torch.arange(NUM_ENVS).expand(60, NUM_ENVS).float())
    assert torch.equal(final[..., STEP], obs[..., STEP] + 1)
    assert torch.equal(final[..., EPISODE], obs[..., EPISODE])
    assert torch.equal(final[..., LAST_ACTION], rows["actions"].float())
    assert torch.equal(rows["rewards"], final[..., STEP])
    goes_on = ~done[:-1]
    assert torch.equal(obs[1:][goes_on], final[:-1][goes_on])
    assert torch.equal(obs[1:][done[:-1]][:, STEP], torch.zeros(int(done[:-1].sum())))
    assert torch.equal(rows["is_first"][1:], done[:-1])
    assert rows["is_first"][0].all()
    assert not (rows["terminated"] & rows["truncated"]).any()


def test_carries_are_reset_at_episode_starts_and_extras_are_recorded():
    rows = collect(new_collector(), Counter(), 40).trajectory
    assert torch.equal(rows["count"], rows["observations"][..., STEP] + 1)
    assert torch.equal(rows["carry"][1:], rows["count"][:-1])
    assert not rows["observations"].is_inference()
    assert not rows["count"].is_inference()


def test_chunks_and_a_restore_between_them_change_nothing():
    torch.manual_seed(1)
    whole_collector = new_collector()
    whole = collect(whole_collector, Counter(), 30).trajectory
    torch.manual_seed(1)
    collector, chunks = new_collector(), []
    assert collector.get_state() == {"started": False}
    for size in (1, 7, 2, 20):
        chunks.append(collect(collector, Counter(), size).trajectory)
        successor = new_collector()
        successor.set_state(collector.get_state())
        collector = successor
    joined = tree_cat(chunks)
    assert whole.keys() == joined.keys()
    assert all(torch.equal(whole[key], joined[key]) for key in whole)
    a, b = whole_collector.drain_metrics(), collector.drain_metrics()
    assert [float(x) for x in (*a["return"], *a["length"])] == [float(x) for x in (*b["return"], *b["length"])]


def test_episode_statistics_against_a_naive_count():
    collector = new_collector()
    rows = collect(collector, Counter(), 50).trajectory
    returns, lengths = [], []
    for env in range(NUM_ENVS):
        total = length = 0
        for t in range(50):
            total, length = total + float(rows["rewards"][t, env]), length + 1
            if rows["terminated"][t, env] or rows["truncated"][t, env]:
                returns.append(total)
                lengths.append(length)
                total = length = 0
    metrics = collector.drain_metrics()
    assert float(metrics["return"].total / metrics["return"].weight) == pytest.approx(sum(returns) / len(returns))
    assert float(metrics["length"].total) == sum(lengths)
    assert collector.episodes == len(returns)
    assert float(collector.drain_metrics()["return"].weight) == 0


def mean(metric):
    return float(metric.total / metric.weight)


def test_infos_are_recorded_and_their_last_values_logged():
    collector = Collector(Reporting(NUM_ENVS), 0, no_timer)
    rows = collect(collector, Counter(), 50).trajectory
    assert list(rows["infos"]) == ["steps", "copy"]
    assert torch.equal(rows["infos"]["steps"], rows["final_observations"][..., STEP])
    lengths, copies = [], []
    for t in range(50):
        for env in range(NUM_ENVS):
            if rows["terminated"][t, env] or rows["truncated"][t, env]:
                lengths.append(float(rows["final_observations"][t, env, STEP]))
                copies.append(0.5 * env)
    metrics = collector.drain_metrics()
    assert list(metrics) == ["return", "length", "info/steps", "info/copy"]
    assert mean(metrics["info/steps"]) == pytest.approx(sum(lengths) / len(lengths))
    assert mean(metrics["info/copy"]) == pytest.approx(sum(copies) / len(copies))
    assert float(collector.drain_metrics()["info/copy"].total) == 0
    assert "infos" not in collect(new_collector(), Counter(), 2).trajectory


def test_infos_do_not_notice_chunks_and_restores():
    torch.manual_seed(1)
    whole = Collector(Reporting(NUM_ENVS), 0, no_timer)
    collect(whole, Counter(), 30)
    torch.manual_seed(1)
    collector = Collector(Reporting(NUM_ENVS), 0, no_timer)
    for size in (3, 20, 7):
        collect(collector, Counter(), size)
        successor = Collector(Reporting(NUM_ENVS), 0, no_timer)
        successor.set_state(collector.get_state())
        collector = successor
    a, b = whole.drain_metrics(), collector.drain_metrics()
    assert [(name, [float(x) for x in value]) for name, value in a.items()] == [
        (name, [float(x) for x in value]) for name, value in b.items()
    ]


def test_a_stop_request_ends_the_rollout_after_the_running_step():
    asked = iter([False, False, True])
    assert collect(new_collector(), Counter(), 30, stop=lambda: next(asked)).vector_steps == 3


def test_extras_may_not_shadow_what_the_collector_records():
    class Clashing(Counter):
        def act(self, *args, **kwargs):
            actions, extras, carry = super().act(*args, **kwargs)
            return actions, {"rewards": extras["count"], "infos": {}}, carry

    with pytest.raises(
        ValueError, match=r"Clashing.act returned extras that the collector records itself: \['infos', 'rewards'\]"
    ):
        collect(new_collector(), Clashing(), 1)


def test_nan_from_an_environment_is_named():
    class Broken(Counting):
        def _observe(self, state):
            obs = super()._observe(state)
            return torch.where((state["elapsed"] == 2).unsqueeze(-1), torch.nan, obs)

    collector = Collector(Broken(NUM_ENVS), 0, no_timer)
    with pytest.raises(
        EnvironmentFault, match=r"'tensor/Counting' returned NaN or infinity in final_observations: copy 0"
    ):
        collect(collector, Counter(), 5)


def test_an_environment_that_raises_or_returns_another_shape_is_named():
    class Raising(Counting):
        def step(self, actions):
            raise RuntimeError("the motor\nis on fire")

    with pytest.raises(EnvironmentFault, match="'tensor/Counting' raised RuntimeError: the motor is on fire"):
        collect(Collector(Raising(NUM_ENVS), 0, no_timer), Counter(), 1)

    class Wide(Counting):
        def _observe(self, state):
            return super()._observe(state).repeat(1, 2)

    with pytest.raises(
        EnvironmentFault, match=r"returned observations of shape {'': .5, 8.}, its spec says {'': .5, 4.}"
    ):
        collect(Collector(Wide(NUM_ENVS), 0, no_timer), Counter(), 1)

    class Nested(Counting):
        def step(self, actions):
            step = super().step(actions)
            return step._replace(rewards=step.rewards.unsqueeze(-1))

    with pytest.raises(EnvironmentFault, match=r"returned rewards of shape .5, 1., expected .5,."):
        collect(Collector(Nested(NUM_ENVS), 0, no_timer), Counter(), 1)

    class Talkative(Counting):
        def step(self, actions):
            return super().step(actions)._replace(infos={"speed": torch.zeros(NUM_ENVS, 2)})

    with pytest.raises(EnvironmentFault, match=r"returned info 'speed' of shape .5, 2., expected .5,."):
        collect(Collector(Talkative(NUM_ENVS), 0, no_timer), Counter(), 1)
