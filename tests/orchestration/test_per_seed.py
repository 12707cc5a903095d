"""What agents that are trained as one have apart."""

import numpy as np
import pytest
import torch

from rl_lab.buffers.sequence import SequenceBuffer
from rl_lab.core import Box, EnvSpec, RngStreams, Witness
from rl_lab.environments.counting import Counting
from rl_lab.orchestration.collector import Collector
from rl_lab.orchestration.evaluator import Evaluator
from rl_lab.orchestration.per_seed import EpisodesOfAgents, PerSeedBuffer
from tests.orchestration.parts import Counter

SPEC = EnvSpec("fixed", Box((1,)), Box((1,)))


def trajectory(start, steps=12):
    """Return steps of four copies whose observations say which copy and step they are."""
    rows = torch.arange(start, start + steps).view(-1, 1) + 1000.0 * torch.arange(4)
    nothing = torch.zeros(steps, 4, dtype=torch.bool)
    return {
        "observations": rows.unsqueeze(-1),
        "final_observations": rows.unsqueeze(-1) + 1.0,
        "actions": torch.zeros(steps, 4, 1),
        "rewards": rows.clone(),
        "terminated": nothing,
        "truncated": nothing,
        "is_first": torch.arange(start, start + steps).eq(0).view(-1, 1).expand(-1, 4).contiguous(),
        "latent": rows.unsqueeze(-1).clone(),
    }


def make():
    def one(seed):
        return SequenceBuffer(100, 3, 4, refreshed=["latent"], num_envs=2, spec=SPEC, seed=seed)

    return PerSeedBuffer([one(7), one(8)]), one


@pytest.mark.parametrize("agent", [0, 1])
def test_every_agent_learns_from_its_own_copies_as_it_would_alone(agent):
    buffer, one = make()
    alone, copies, rows = one(7 + agent), slice(2 * agent, 2 * agent + 2), slice(3 * agent, 3 * agent + 3)
    buffer.add(trajectory(0))
    alone.add({key: leaf[:, copies] for key, leaf in trajectory(0).items()})
    assert (buffer.size, buffer.is_ready(), buffer.batch_rows) == (alone.size, True, alone.batch_rows)
    batch, own = buffer.sample(), alone.sample()
    assert torch.equal(batch["observations"][rows], own["observations"])
    assert (batch["rewards"][rows, 1:].div(2000.0, rounding_mode="floor") == agent).all()  # first rows may have none
    assert torch.equal(buffer.peek(3)["observations"][rows], alone.peek(3)["observations"])
    buffer.write_back({"latent": -batch["latent"]})
    alone.write_back({"latent": -own["latent"]})
    assert (buffer.sample()["latent"][rows] < 0.0).any()
    assert torch.equal(buffer.sample()["latent"][rows], [alone.sample(), alone.sample()][1]["latent"])


def test_a_buffer_of_all_goes_on_from_its_state_and_says_what_it_takes():
    buffer, one = make()
    buffer.add(trajectory(0))
    buffer.sample()
    state = buffer.get_state()
    expected = buffer.sample()
    again, _ = make()
    again.set_state(state)
    assert torch.equal(again.sample()["rewards"], expected["rewards"])
    assert [2 * taken.num_bytes for taken in one(7).footprint()] == [taken.num_bytes for taken in buffer.footprint()]
    assert buffer.statistics() == one_filled(one).statistics()


def one_filled(one):
    buffer = one(7)
    buffer.add({key: leaf[:, :2] for key, leaf in trajectory(0).items()})
    return buffer


def test_returns_are_those_of_every_agent():
    generator = np.random.default_rng(0)
    rewards, done = generator.normal(size=(40, 6)).astype(np.float32), generator.random((40, 6)) < 0.15
    ended = [[], [], []]
    running = np.zeros(6)
    for row, ends in zip(rewards, done, strict=True):
        running += row
        for copy in np.flatnonzero(ends):
            ended[copy // 2].append(running[copy])
            running[copy] = 0.0
    whole = EpisodesOfAgents(3, 6)
    whole.add(torch.tensor(rewards[:17]), torch.tensor(done[:17]))
    again = EpisodesOfAgents(3, 6)
    again.set_state(whole.get_state())
    again.add(torch.tensor(rewards[17:]), torch.tensor(done[17:]))
    means = again.drain()
    assert again.count == sum(map(len, ended))
    assert float(means["return"].total) == pytest.approx(sum(map(sum, ended)), rel=1e-5)
    for agent, returns in enumerate(ended):
        total, weight = means[f"return/seed_{agent}"]
        assert (float(total), float(weight)) == (pytest.approx(sum(returns), rel=1e-4), len(returns))
    assert all(float(mean.weight) == 0.0 for mean in again.drain().values())


def test_steps_are_counted_for_each_agent_and_each_plays_its_episodes():
    env = Counting(6, min_length=2, max_length=9)
    collector = Collector(env, 0, lambda name: torch.no_grad(), num_seeds=3)
    found = collector.collect(Counter(), 5, env_steps=0, should_stop=lambda: False)
    assert (found.steps, found.vector_steps, collector.steps_at_once) == (10, 5, 2)
    metrics = Evaluator(env, 3, RngStreams(3), num_seeds=3).evaluate(Counter(), step=0)
    assert metrics["episodes"] == 9
    for agent in range(3):
        lengths = [env.episode_length(copy, n) for copy, n in ((2 * agent, 0), (2 * agent, 1), (2 * agent + 1, 0))]
        expected = sum(length * (length + 1) / 2 for length in lengths) / 3
        assert metrics[f"return/seed_{agent}"] == pytest.approx(expected)


class Listening(SequenceBuffer):
    """Writes down what it hears beside the steps."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.heard = []

    def witness(self, seen):
        self.heard.append(seen)

    def end_episodes(self):
        self.heard.append("end")


def test_all_parts_hear_who_watched_and_that_an_environment_failed():
    parts = [Listening(100, 3, 4, num_envs=2, spec=SPEC) for _ in range(2)]
    buffer, seen = PerSeedBuffer(parts), Witness((1.0,), "anna")
    buffer.witness(seen)
    buffer.end_episodes()
    assert [part.heard for part in parts] == [[seen, "end"]] * 2
