"""Candidates and trials: who tries what, and what is credited, against a queue in plain Python."""

import random

import pytest
import torch

from rl_lab.components.population import Population, Trials

CPU = torch.device("cpu")


class Queue:
    """Trials as a list: the same in plain Python, without lost ones."""

    def __init__(self, count, num_envs):
        self.waiting, self.count = list(range(count)), count
        self.current, self.running = [count] * num_envs, [0.0] * num_envs
        self.returns = {}

    def assign(self, is_first):
        for env, first in enumerate(is_first):
            if first:
                self.current[env] = self.waiting.pop(0) if self.waiting else self.count
        return list(self.current)

    def step(self, rewards, ended):
        for env, (reward, end) in enumerate(zip(rewards, ended, strict=True)):
            self.running[env] += reward
            if end:
                if self.current[env] < self.count:
                    self.returns[self.current[env]] = self.running[env]
                self.running[env] = 0.0


@pytest.mark.parametrize(("num_envs", "chunk"), [(3, 4), (7, 1), (20, 9)])
def test_trials_are_handed_out_and_credited_as_by_a_queue(num_envs, chunk):
    rng, trials, queue = random.Random(num_envs), Trials(4, 3, num_envs, CPU), Queue(12, num_envs)
    is_first, generations = [False] * num_envs, 0  # at first, episodes are under way that are nobody's trial
    while generations < 3:
        rows = []
        for _ in range(chunk):
            given = trials.assign(torch.tensor(is_first))
            assert given.tolist() == queue.assign(is_first)
            rewards = [float(rng.randint(-5, 5)) for _ in range(num_envs)]
            ended = [rng.random() < 0.15 for _ in range(num_envs)]
            queue.step(rewards, ended)
            rows.append((torch.tensor(rewards), torch.tensor(ended), given))
            is_first = ended
        trials.credit(*(torch.stack(column) for column in zip(*rows, strict=True)))
        assert bool(trials.is_complete) == (len(queue.returns) == 12)
        if bool(trials.is_complete):
            expected = [sum(queue.returns[t] for t in range(c, 12, 4)) / 3 for c in range(4)]
            assert trials.mean_returns().tolist() == pytest.approx(expected)
            trials.restart()
            running = queue.running
            queue, generations = Queue(12, num_envs), generations + 1
            queue.running = running


def test_a_trial_that_was_abandoned_is_given_again():
    trials, yes = Trials(2, 1, 2, CPU), torch.tensor([True, True])
    assert trials.assign(yes).tolist() == [0, 1]
    trials.credit(torch.tensor([[1.0, 5.0]]), torch.tensor([[True, False]]), torch.tensor([[0, 1]]))
    trials.abandon()  # a phase in which somebody else acts
    assert trials.current.tolist() == [2, 2]
    assert trials.assign(torch.tensor([False, True])).tolist() == [2, 1]
    trials.credit(torch.tensor([[9.0, 3.0]]), torch.tensor([[True, True]]), torch.tensor([[2, 1]]))
    assert bool(trials.is_complete)
    assert trials.mean_returns().tolist() == [1.0, 3.0]


def test_the_state_is_all_there_is():
    ours, other = Trials(3, 2, 4, CPU), Trials(3, 2, 4, CPU)
    ours.assign(torch.tensor([True, True, False, True]))
    ours.credit(torch.ones(1, 4), torch.tensor([[False, True, False, False]]), ours.current[None])
    held = other.current
    other.set_state({name: leaf.clone() for name, leaf in ours.get_state().items()})
    assert other.current is held  # static functions hold on to it
    first = torch.tensor([False, True, True, False])
    assert torch.equal(ours.assign(first), other.assign(first))
    for trials in (ours, other):
        trials.credit(torch.ones(1, 4), torch.ones(1, 4, dtype=torch.bool), trials.current[None])
    assert all(torch.equal(leaf, other.get_state()[name]) for name, leaf in ours.get_state().items())


def test_a_population_climbs():
    torch.manual_seed(0)
    population, target = Population(6, 10, 0.5), torch.linspace(-1.0, 1.0, 6)
    assert float(population.candidates.std()) == pytest.approx(0.5, rel=0.3)
    for _ in range(80):
        population.learn(-(population.candidates - target).square().sum(1))
    torch.testing.assert_close(population.favourite, target, atol=1e-3, rtol=0)
    assert float(population.generation) == 80.0


def test_a_population_goes_on_from_its_arrays():
    torch.manual_seed(0)
    ours, other = Population(4, 6, 0.5), Population(4, 6, 0.1)
    for _ in range(3):
        ours.learn(-ours.candidates.square().sum(1))
    other.load_state_dict(ours.state_dict())
    for population in (ours, other):
        torch.manual_seed(1)
        population.learn(-population.candidates.square().sum(1))
    assert all(torch.equal(leaf, other.state_dict()[name]) for name, leaf in ours.state_dict().items())
    assert set(ours.state_dict()) >= {"mean", "sigma", "covariance", "mean_path", "sigma_path", "candidates"}
