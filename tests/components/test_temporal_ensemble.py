"""Temporal ensembling against a loop that keeps every chunk and averages those that speak of a step."""

import math

import numpy as np
import pytest
import torch

from rl_lab.components.model_actions import ModelActions
from rl_lab.components.temporal_ensemble import TemporalEnsemble
from rl_lab.core import Box, Discrete, EnvSpec

NUM_ENVS, STEPS = 4, 30
NUMBERS = EnvSpec("e", Box((2,)), Box((2,), low=-3.0, high=3.0))
CHOICES = EnvSpec("e", Box((2,)), Discrete(3))


def ensemble(spec, plan, *, history=1, length=4, decay=0.3):
    options = {"history": history, "length": length, "decay": decay, "spec": spec, "device": torch.device("cpu")}
    return TemporalEnsemble(plan, ModelActions(spec, "test"), **options)


@pytest.mark.parametrize(("length", "decay", "history"), [(4, 0.3, 1), (5, 0.0, 2), (2, 2.0, 1), (4, -0.7, 1)])
@pytest.mark.parametrize("spec", [NUMBERS, CHOICES], ids=["numbers", "choices"])
def test_what_is_done_is_the_weighted_mean_of_all_plans_for_the_step(spec, length, decay, history):
    width, generator = 2 if spec is NUMBERS else 3, torch.Generator().manual_seed(length)
    matrix = torch.randn(2 * history, length * width, generator=generator)

    def plan(seen):
        planned = (seen.flatten(1) @ matrix).view(-1, length, width)
        return planned.tanh() if spec is NUMBERS else planned.softmax(-1)

    acting = ensemble(spec, plan, history=history, length=length, decay=decay)
    is_first = torch.rand(STEPS, NUM_ENVS, generator=generator) < 0.15
    is_first[0] = True
    obs = torch.randn(STEPS, NUM_ENVS, 2, generator=generator)
    carry, found = acting.initial_carry(NUM_ENVS), []
    for t in range(STEPS):
        actions, carry = acting(obs[t], carry, is_first[t])
        found.append(actions.numpy())
    for env in range(NUM_ENVS):
        begin, plans = 0, {}
        for t in range(STEPS):
            if is_first[t, env]:
                begin, plans = t, {}
            past = [max(begin, t - k) for k in range(history - 1, -1, -1)]
            plans[t] = plan(obs[past, env][None])[0].double().numpy()
            speaking = [plans[s][t - s] for s in sorted(plans) if t - s < length]  # oldest first
            weights = [math.exp(-decay * i) for i in range(len(speaking))]
            mean = sum(w * p for w, p in zip(weights, speaking, strict=True)) / sum(weights)
            if spec is NUMBERS:
                np.testing.assert_allclose(found[t][env], 3.0 * mean, rtol=1e-4, atol=1e-5)
            else:
                assert found[t][env] == mean.argmax()


def test_old_plans_weigh_more_than_young_ones():
    count = iter(range(100))
    acting = ensemble(NUMBERS, lambda seen: torch.full((1, 3, 2), 0.1 * next(count)), length=3, decay=5.0)
    carry, done = acting.initial_carry(1), []
    for t in range(6):
        action, carry = acting(torch.zeros(1, 2), carry, torch.tensor([t == 0]))
        done.append(float(action[0, 0]) / 3.0)
    assert done == pytest.approx([0.0, 0.0, 0.0, 0.1, 0.2, 0.3], abs=2e-3)  # nearly the plan of two steps before


@pytest.mark.parametrize("decay", [50.0, -50.0])
def test_no_decay_is_too_large(decay):
    count = iter(range(100))
    acting = ensemble(NUMBERS, lambda seen: torch.full((1, 9, 2), 0.1 * next(count)), length=9, decay=decay)
    carry = acting.initial_carry(1)
    for t in range(10):
        action, carry = acting(torch.zeros(1, 2), carry, torch.tensor([t == 0]))
    assert float(action[0, 0]) / 3.0 == pytest.approx(0.1 if decay > 0 else 0.9)  # of the oldest or of the newest plan


def test_nothing_is_drawn_and_all_shapes_stay():
    acting, state = ensemble(NUMBERS, lambda seen: torch.zeros(2, 4, 2)), torch.get_rng_state()
    before = acting.initial_carry(2)
    _, after = acting(torch.zeros(2, 2), before, torch.ones(2, dtype=torch.bool))
    assert {key: leaf.shape for key, leaf in before.items()} == {key: leaf.shape for key, leaf in after.items()}
    assert torch.equal(torch.get_rng_state(), state)
