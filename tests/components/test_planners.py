"""Planners: every round against plain loops in float64, and whether they find what is there to be found."""

import itertools
import math

import numpy as np
import pytest
import torch

from rl_lab.components.model_actions import ModelActions
from rl_lab.components.planners import CEM, MPPI
from rl_lab.config.allow_list import AllowList
from rl_lab.config.compose import compose, resolve
from rl_lab.config.targets import Targets
from rl_lab.core import Box, ConfigError, EnvSpec, MultiDiscrete

torch.set_num_threads(1)
CPU = torch.device("cpu")
PULL = (0.4, -0.7)  # what makes the environments differ


def actions_of(num_numbers=0, nvec=()):
    """Return actions with so many numbers and choices of these sizes."""
    parts = {"numbers": Box((num_numbers,), low=-1.0, high=1.0)} if num_numbers else {}
    parts |= {"choices": MultiDiscrete(nvec)} if nvec else {}
    return ModelActions(EnvSpec("x", Box((1,)), parts), "Test")


NUMBERS, CHOICES, MIXED = actions_of(2), actions_of(0, (2, 3)), actions_of(2, (2, 3))


def worth(sequences):
    """Return what sequences [H, N, K, 2] are worth: curved, different in every step and environment."""
    steps = torch.arange(len(sequences)).view(-1, 1, 1)
    pull = torch.tensor(PULL).view(1, -1, 1)
    return ((3.0 * sequences[..., 0] + steps).cos() - (sequences[..., 1] - pull).square()).sum(0)


def naive_worth(sequence, env):
    """Return the same of one sequence [H, 2]."""
    return sum(math.cos(3.0 * a + step) - (b - PULL[env]) ** 2 for step, (a, b) in enumerate(sequence))


def one_hot_worth(sequences):
    """Return what sequences of one-hots [H, N, K, 5] are worth: choices earn more beside the one before."""
    gains = torch.arange(1.0, 6.0).sin() + torch.tensor(PULL).view(-1, 1, 1)
    gains = gains * torch.arange(1.0, len(sequences) + 1).sqrt().view(-1, 1, 1, 1)
    pairs = (sequences[1:] * sequences[:-1].flip(-1)).sum((0, -1))
    return (sequences * gains).sum((0, -1)) + 0.37 * pairs


def naive_one_hot_worth(sequence, env):
    gains = [math.sin(i + 1) + PULL[env] for i in range(5)]
    total = sum(math.sqrt(t + 1) * row[i] * gains[i] for t, row in enumerate(sequence) for i in range(5))
    return total + 0.37 * sum(a[i] * b[4 - i] for b, a in itertools.pairwise(sequence) for i in range(5))


def weighted(elites, weights):
    """Return mean and variance [H, A] of weighted sequences."""
    mean = sum(w * elite for w, elite in zip(weights, elites, strict=True))
    return mean, sum(w * (elite - mean) ** 2 for w, elite in zip(weights, elites, strict=True))


def cem_weights(values):
    return [1 / len(values)] * len(values)


def mppi_weights(values, temperature):
    exps = [math.exp(temperature * (value - max(values))) for value in values]
    return [e / sum(exps) for e in exps]


def best_of(candidates, count, function, env):
    """Return the best sequences and what they are worth."""
    ranked = sorted(candidates, key=lambda sequence: -function(sequence, env))[:count]
    return ranked, [function(sequence, env) for sequence in ranked]


def test_cem_equals_loops():
    steps, envs, count, rounds = 3, 2, 9, 4
    torch.manual_seed(0)
    found = CEM(steps, count, 4, rounds).plan(worth, envs, NUMBERS, CPU)
    torch.manual_seed(0)
    noise = [np.float64(torch.randn(steps, envs, count, 2).numpy()) for _ in range(rounds)]
    for env in range(envs):
        mean, std = np.zeros((steps, 2)), np.ones((steps, 2))
        for drawn in noise:
            candidates = [np.minimum(1, np.maximum(-1, mean + std * drawn[:, env, k])) for k in range(count)]
            elites, values = best_of(candidates, 4, naive_worth, env)
            mean, variance = weighted(elites, cem_weights(values))
            std = np.sqrt(variance + 1e-6)
        np.testing.assert_allclose(found.actions[:, env].numpy(), mean, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found.belief[env].numpy(), mean, rtol=1e-4, atol=1e-5)


def test_mppi_equals_loops_with_proposals_and_a_warm_start():
    steps, envs, count, rounds = 3, 2, 9, 3
    generator = torch.Generator().manual_seed(5)
    belief = torch.rand(envs, steps, 2, generator=generator) - 0.5
    proposals = torch.rand(steps, envs, 2, 2, generator=generator) - 0.5
    planner = MPPI(steps, count, 4, rounds, temperature=2.0, min_std=0.2, max_std=0.9)
    torch.manual_seed(0)
    is_first = torch.tensor([False, True])
    found = planner.plan(worth, envs, NUMBERS, CPU, belief=belief, is_first=is_first, proposals=proposals)
    torch.manual_seed(0)
    noise = [np.float64(torch.randn(steps, envs, count, 2).numpy()) for _ in range(rounds)]
    clamped = set()
    for env in range(envs):
        mean, std = np.zeros((steps, 2)), np.full((steps, 2), 0.9)
        if env == 0:  # the other one begins an episode
            mean[:-1] = belief[0, 1:].numpy()
        for drawn in noise:
            candidates = [np.float64(proposals[:, env, k].numpy()) for k in range(2)]
            candidates += [np.minimum(1, np.maximum(-1, mean + std * drawn[:, env, k])) for k in range(count)]
            elites, values = best_of(candidates, 4, naive_worth, env)
            mean, variance = weighted(elites, mppi_weights(values, 2.0))
            clamped |= set((np.sqrt(variance) < 0.2).flatten())
            std = np.minimum(0.9, np.maximum(0.2, np.sqrt(variance)))
        np.testing.assert_allclose(found.actions[:, env].numpy(), mean, rtol=1e-4, atol=1e-5)
    assert clamped == {True, False}


def test_short_wide_plans_with_momentum_equal_loops():
    envs, count, rounds = 2, 9, 3
    belief = torch.rand(envs, 4, 2, generator=torch.Generator().manual_seed(5)) - 0.5
    planner = MPPI(4, count, 4, rounds, temperature=2.0, min_std=0.05, max_std=0.9, momentum=0.1)
    torch.manual_seed(0)
    found = planner.plan(worth, envs, NUMBERS, CPU, belief=belief, horizon=2, min_std=torch.tensor(0.3))
    torch.manual_seed(0)
    noise = [np.float64(torch.randn(2, envs, count, 2).numpy()) for _ in range(rounds)]
    for env in range(envs):
        mean, std = np.float64(belief[env, 1:3].numpy()), np.full((2, 2), 0.9)
        for drawn in noise:
            candidates = [np.minimum(1, np.maximum(-1, mean + std * drawn[:, env, k])) for k in range(count)]
            elites, values = best_of(candidates, 4, naive_worth, env)
            new, variance = weighted(elites, mppi_weights(values, 2.0))
            mean = 0.1 * mean + 0.9 * new
            std = np.maximum(0.3, np.sqrt(variance))
        np.testing.assert_allclose(found.actions[:, env].numpy(), mean, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found.std[:, env].numpy(), std, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found.belief[env].numpy(), np.concatenate([mean, np.zeros((2, 2))]), atol=1e-4)
    assert found.actions.shape == (2, envs, 2)
    assert float(found.std.min()) == pytest.approx(0.3)


def test_momentum_keeps_chances_too_and_choices_have_no_spread():
    planner = MPPI(2, 40, 1, 1, temperature=0.0, momentum=0.25)
    torch.manual_seed(0)
    found = planner.plan(one_hot_worth, 2, CHOICES, CPU)
    assert found.std.shape == (2, 2, 0)
    open_chances = torch.tensor([1 / 2, 1 / 2, 1 / 3, 1 / 3, 1 / 3])
    torch.testing.assert_close(found.belief.transpose(0, 1), 0.25 * open_chances + 0.75 * found.actions)
    torch.manual_seed(0)
    both = planner.plan(mixed_worth, 2, MIXED, CPU)
    assert both.std.shape == (2, 2, 2)


@pytest.mark.parametrize("kind", ["cem", "mppi"])
def test_choices_equal_loops(kind):
    steps, envs, count, rounds = 4, 2, 11, 3
    planner = CEM(steps, count, 4, rounds) if kind == "cem" else MPPI(steps, count, 4, rounds, temperature=0.8)
    mask = torch.tensor([[True, True, True, False, True], [False, True, True, True, False]])
    torch.manual_seed(0)
    found = planner.plan(one_hot_worth, envs, CHOICES, CPU, mask=mask)
    torch.manual_seed(0)
    luck = [np.float64(torch.empty(steps, envs, count, 5).exponential_().numpy()) for _ in range(rounds)]
    for env in range(envs):
        chances = np.tile([1 / 2, 1 / 2, 1 / 3, 1 / 3, 1 / 3], (steps, 1))
        for drawn in luck:
            candidates = [naive_choice(chances + 1e-3, drawn[:, env, k], mask[env].numpy()) for k in range(count)]
            elites, values = best_of(candidates, 4, naive_one_hot_worth, env)
            weights = cem_weights(values) if kind == "cem" else mppi_weights(values, 0.8)
            chances, _ = weighted(elites, weights)
        np.testing.assert_allclose(found.belief[env].numpy(), chances, atol=1e-5)
        np.testing.assert_array_equal(
            found.actions[:, env].numpy(), naive_choice(chances, np.ones((steps, 5)), mask[env])
        )


def mixed_worth(sequences):
    """Return what sequences [H, N, K, 2 + 5] are worth: a number pays by the choice beside it."""
    numbers, choices = sequences.split((2, 5), -1)
    return worth(numbers) + one_hot_worth(choices) + (numbers.sum(-1) * choices[..., 2]).sum(0)


def naive_mixed_worth(sequence, env):
    bonus = sum(row[:2].sum() * row[4] for row in sequence)
    return naive_worth(sequence[:, :2], env) + naive_one_hot_worth(sequence[:, 2:], env) + bonus


@pytest.mark.parametrize("kind", ["cem", "mppi"])
def test_numbers_and_choices_equal_loops(kind):
    steps, envs, count, rounds = 4, 2, 11, 3
    shared = {"warm_start": True}
    planner = CEM(steps, count, 4, rounds, **shared)
    if kind == "mppi":
        planner = MPPI(steps, count, 4, rounds, temperature=0.8, min_std=0.1, max_std=1.0, **shared)
    mask = torch.tensor([[True, True, True, False, True], [False, True, True, True, False]])
    belief = torch.rand(envs, steps, 7, generator=torch.Generator().manual_seed(3))
    torch.manual_seed(0)
    is_first = torch.tensor([False, True])
    found = planner.plan(mixed_worth, envs, MIXED, CPU, belief=belief, is_first=is_first, mask=mask)
    torch.manual_seed(0)
    noise = []
    for _ in range(rounds):
        drawn = torch.randn(steps, envs, count, 2), torch.empty(steps, envs, count, 5).exponential_()
        noise.append([np.float64(part.numpy()) for part in drawn])
    for env in range(envs):
        mean, std = np.zeros((steps, 2)), np.ones((steps, 2))
        chances = np.tile([1 / 2, 1 / 2, 1 / 3, 1 / 3, 1 / 3], (steps, 1))
        if env == 0:  # goes on a step further: numbers as they were, choices half open
            mean[:-1] = belief[0, 1:, :2]
            chances[:-1] = 0.5 * (chances[:-1] + belief[0, 1:, 2:].numpy())
        for drawn, luck in noise:
            numbers = [np.minimum(1, np.maximum(-1, mean + std * drawn[:, env, k])) for k in range(count)]
            choices = [naive_choice(chances + 1e-3, luck[:, env, k], mask[env].numpy()) for k in range(count)]
            candidates = [np.concatenate(pair, -1) for pair in zip(numbers, choices, strict=True)]
            elites, values = best_of(candidates, 4, naive_mixed_worth, env)
            weights = cem_weights(values) if kind == "cem" else mppi_weights(values, 0.8)
            centre, variance = weighted(elites, weights)
            mean, chances = centre[:, :2], centre[:, 2:]
            std = np.sqrt(variance[:, :2] + (1e-6 if kind == "cem" else 0.0))
            std = std if kind == "cem" else np.minimum(1.0, np.maximum(0.1, std))
        np.testing.assert_allclose(found.belief[env].numpy(), centre, rtol=1e-4, atol=1e-5)
        best = naive_choice(chances, np.ones((steps, 5)), mask[env])
        np.testing.assert_allclose(
            found.actions[:, env].numpy(), np.concatenate([mean, best], -1), rtol=1e-4, atol=1e-5
        )


def naive_choice(chances, luck, mask):
    """Return one-hots [H, 5] of a draw: an event of rate p comes first with probability p."""
    result = np.zeros(chances.shape)
    for step in range(len(chances)):
        for start, stop in ((0, 2), (2, 5)):
            allowed = [i for i in range(start, stop) if step > 0 or mask[i]]
            result[step, min(allowed, key=lambda i: luck[step, i] / max(1e-12, chances[step, i]))] = 1.0
    return result


@pytest.mark.parametrize("planner", [CEM(4, 200, 20, 8), MPPI(4, 400, 20, 12, temperature=0.5, min_std=0.01)])
def test_the_best_numbers_are_found_for_every_environment_at_once(planner):
    torch.manual_seed(0)
    target = torch.rand(4, 6, 3) * 2.4 - 1.2  # some of them out of reach
    found = planner.plan(lambda a: -(a - target.unsqueeze(2)).square().sum((0, -1)), 6, actions_of(3), CPU)
    assert found.actions.shape == (4, 6, 3)
    assert float(target.abs().max()) > 1.1
    torch.testing.assert_close(found.actions, target.clamp(-1, 1), rtol=0, atol=0.05)


@pytest.mark.parametrize("planner", [CEM(6, 200, 20, 8), MPPI(6, 200, 20, 8, temperature=5.0)])
def test_the_best_choices_are_found_though_only_their_order_pays(planner):
    torch.manual_seed(0)
    secret = torch.randint(3, (6, 5))  # per step and environment

    def length_of_match(sequences):
        hits = (sequences.argmax(-1) == secret.unsqueeze(2)).float()
        return hits.cumprod(0).sum(0)

    found = planner.plan(length_of_match, 5, actions_of(0, (3,)), CPU)
    assert torch.equal(found.actions.argmax(-1), secret)
    assert torch.equal(found.actions.sum(-1), torch.ones(6, 5))


def test_a_sequence_whose_worth_is_no_number_never_wins():
    torch.manual_seed(0)

    def broken(sequences):
        first = sequences[0, ..., 0]
        return torch.where(first > 0, torch.nan, torch.where(first < -0.5, -torch.inf, first))

    found = CEM(2, 100, 10, 6).plan(broken, 3, actions_of(1), CPU)
    assert bool((found.actions[0] <= 0.0).all())
    assert float(found.actions[0].min()) > -0.2
    nothing = MPPI(2, 50, 10, 3).plan(lambda a: torch.full(a.shape[1:3], torch.nan), 3, actions_of(1), CPU)
    assert bool(nothing.actions.isfinite().all())


def test_proposals_win_where_drawing_finds_nothing():
    torch.manual_seed(0)
    needle = torch.rand(3, 2, 1, 4) * 2 - 1
    planner = MPPI(3, 32, 8, 2, temperature=100.0, execute="elite")
    found = planner.plan(lambda a: (a == needle).all(-1).all(0).float(), 2, actions_of(4), CPU, proposals=needle)
    assert torch.equal(found.actions, needle.squeeze(2))


def test_elites_are_executed_in_proportion_to_their_weights():
    torch.manual_seed(0)
    proposals = torch.tensor([-0.5, 0.0, 0.5]).view(1, 1, 3, 1).expand(1, 5000, 3, 1)
    planner = MPPI(1, 3, 3, 1, temperature=2.0, execute="elite")
    worths = torch.tensor([0.0, 0.3, 0.6, -99.0, -99.0, -99.0])
    found = planner.plan(lambda a: worths.expand(5000, -1), 5000, actions_of(1), CPU, proposals=proposals)
    for value, share in zip((-0.5, 0.0, 0.5), mppi_weights([0.0, 0.3, 0.6], 2.0), strict=True):
        assert float((found.actions == value).float().mean()) == pytest.approx(share, abs=0.02)


def test_a_warm_start_begins_a_step_further_and_choices_stay_open():
    secret = torch.tensor([2, 0, 1, 1])
    planner = CEM(3, 64, 8, 4, warm_start=True)

    def match(sequences):
        return (sequences.argmax(-1) == secret[:3].view(3, 1, 1)).float().sum(0)

    torch.manual_seed(0)
    actions = actions_of(0, (3,))
    begun = planner.initial_belief(2, actions, CPU)
    torch.testing.assert_close(begun, torch.full((2, 3, 3), 1 / 3))
    plan = planner.plan(match, 2, actions, CPU, belief=begun, is_first=torch.ones(2, dtype=torch.bool))
    seen = []

    def watch(sequences):
        seen.append(sequences)
        return match(sequences)

    wide = CEM(3, 6000, 8, 1, warm_start=True)
    wide.plan(watch, 2, actions, CPU, belief=plan.belief, is_first=torch.tensor([False, True]))
    chances = seen[0].mean(2)  # of the choices that were tried
    assert float(chances[0, 0, 0]) == pytest.approx(2 / 3, abs=0.03)  # the second choice of the plan before
    assert float(chances[1, 0, 1]) == pytest.approx(2 / 3, abs=0.03)
    torch.testing.assert_close(chances[2, 0], torch.full((3,), 1 / 3), rtol=0, atol=0.03)
    torch.testing.assert_close(chances[:, 1], torch.full((3, 3), 1 / 3), rtol=0, atol=0.03)
    assert CEM(3, 64, 8, 4).initial_belief(2, actions, CPU) is None


@pytest.mark.parametrize("planner", [CEM(3, 8, 4, 2), MPPI(3, 8, 4, 2, execute="elite")])
@pytest.mark.parametrize("actions", [NUMBERS, CHOICES, MIXED])
def test_nothing_waits_for_the_device(planner, actions):
    meta = torch.device("meta")  # has no values: reading one raises
    belief = torch.zeros(2, 3, actions.dim, device=meta)
    is_first = torch.zeros(2, dtype=torch.bool, device=meta)
    found = planner.plan(lambda a: a.sum((0, -1)), 2, actions, meta, belief=belief, is_first=is_first)
    assert found.actions.shape == (3, 2, actions.dim)
    assert found.belief.shape == (2, 3, actions.dim)


def test_the_seed_decides():
    plans = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        plans.append(MPPI(3, 16, 4, 2, execute="elite").plan(worth, 2, NUMBERS, CPU).actions)
    assert torch.equal(plans[0], plans[1])
    assert not torch.equal(plans[0], plans[2])


def test_wrong_sizes_are_one_line():
    with pytest.raises(ConfigError, match=r"num_elites: 11 of only 10 candidates \(num_candidates\)"):
        CEM(3, 10, 11)
    with pytest.raises(ConfigError, match=r"min_std: 0\.5 is more than max_std=0\.1"):
        MPPI(min_std=0.5, max_std=0.1)


@pytest.mark.parametrize(("width", "rounds"), [(19, 6), (20, 8)])
def test_tdmpc2_plans_two_rounds_more_for_wide_actions(width, rounds):
    node = compose(["+preset=tdmpc2", "+environment=identity", "experiment.name=x", "training.total_timesteps=9"])
    planner = Targets(AllowList()).instantiate("components.planner", resolve(node)["components"]["planner"])
    calls = []

    def rollout(candidates):
        calls.append(candidates.shape)
        return candidates.sum((0, -1))

    actions = ModelActions(EnvSpec("Wide-v0", Box((1,)), Box((width,), low=-1.0, high=1.0), 9), "TD-MPC")
    planner.plan(rollout, 1, actions, CPU)
    assert calls == [(3, 1, 488, width)] * rounds
