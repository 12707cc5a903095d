"""What a dream is worth, in float64 NumPy: lambda-returns with a continuation, weights, the loss of the actor."""

import numpy as np
import pytest
import torch

from rl_lab.components.imagination import Dream, actor_loss, outlook
from rl_lab.components.returns import return_computer
from tests.workflows.test_dreamer import CONTINUOUS, DISCRETE, make_dreamer

torch.set_num_threads(1)
STEPS, STARTS, LAM = 6, 5, 0.95


class Known:
    """A model whose rewards and continuations are columns of the features."""

    def __init__(self, *, folds_discount):
        self.folds_discount = folds_discount
        self.cont_target = 0.9 if folds_discount else 1.0

    def reward(self, features):
        return features[..., 0]

    def cont(self, features):
        return features[..., 1]


class Column(torch.nn.Module):
    """A critic whose values are a column of the features."""

    def forward(self, features):
        return features[..., 2]

    def mean(self, outputs):
        return outputs


def dreamt(seed=0):
    rng = np.random.default_rng(seed)
    columns = rng.normal(size=(STEPS + 1, STARTS, 3))
    columns[..., 1] = rng.uniform(size=(STEPS + 1, STARTS))
    return columns


def lambda_returns(rewards, conts, values, gamma):
    """Return the lambda-returns [H, N] as sums of n-step returns, not by recursion."""
    returns = np.zeros((STEPS, STARTS))
    for start in range(STEPS):
        longest = STEPS - start
        for n in range(1, longest + 1):
            share = LAM ** (n - 1) * (1.0 - LAM if n < longest else 1.0)
            reached, total = np.ones(STARTS), np.zeros(STARTS)
            for step in range(start + 1, start + n + 1):
                total += reached * rewards[step]
                reached = reached * gamma * conts[step]
            returns[start] += share * (total + reached * values[start + n])
    return returns


def step_weights(conts, gamma, first=None):
    """Return how likely each step [H, N] is reached, discounted."""
    weights = np.ones((STEPS, STARTS)) * (conts[0] if first is None else first)
    for step in range(1, STEPS):
        for before in range(1, step + 1):
            weights[step] *= gamma * conts[before]
    return weights


@pytest.mark.parametrize("folds_discount", [False, True])
@pytest.mark.parametrize("is_recorded", [False, True])
def test_returns_and_weights(folds_discount, is_recorded):
    columns = dreamt()
    rewards, conts, values = np.moveaxis(columns, -1, 0)
    dream = Dream(torch.from_numpy(columns), torch.zeros(STEPS, STARTS, 1))
    first = np.array([1.0, 0.0, 1.0, 1.0, 0.0]) if is_recorded else None
    found = outlook(
        dream,
        Known(folds_discount=folds_discount),
        Column(),
        return_computer("lambda", lam=LAM, n=5),
        gamma=0.9,
        first=None if first is None else torch.from_numpy(first).bool(),
    )
    gamma = 1.0 if folds_discount else 0.9
    np.testing.assert_allclose(found.returns, lambda_returns(rewards, conts, values, gamma), rtol=1e-12)
    np.testing.assert_allclose(found.weights, step_weights(conts, gamma, first), rtol=1e-12)
    np.testing.assert_allclose(found.baseline, values[:-1])


def test_a_dream_from_the_end_of_an_episode_counts_for_nothing_where_that_is_recorded():
    columns = dreamt()
    columns[0, :, 1] = 0.9  # the model has not noticed
    dream = Dream(torch.from_numpy(columns), torch.zeros(STEPS, STARTS, 1))
    computer, ended = return_computer("lambda", lam=LAM, n=5), torch.tensor([False, True, True, True, True])
    view = outlook(dream, Known(folds_discount=False), Column(), computer, gamma=0.9, first=ended)
    assert view.weights[:, 0].tolist() == [0.0] * STEPS
    assert bool((view.weights[:, 1:] > 0.0).all())


def view_of(workflow, dream):
    with torch.no_grad():
        return outlook(dream, workflow.world_model, workflow.critic, workflow.returns, gamma=workflow.gamma)


def loss_of(workflow, dream):
    options = {"entropy_scale": workflow.entropy_scale, "through_dynamics": False}
    return actor_loss(workflow.actor, dream, view_of(workflow, dream), workflow.return_scale, **options)


def wake(workflow):
    """Give heads that begin at 0 something to say."""
    generator = torch.Generator().manual_seed(5)
    for head in (workflow.critic, workflow.world_model.reward_head):
        head.out.weight.data.normal_(std=0.1, generator=generator)
        head.bins.copy_(torch.linspace(-3000.0, 3000.0, 41))
    workflow.actor.heads[0].weight.data.normal_(std=0.2, generator=generator)


def expected_reinforce_loss(workflow, dream, log_probs, entropies):
    """Return the actor's loss from what the networks say, in float64."""
    model, critic = workflow.world_model, workflow.critic
    with torch.no_grad():
        rewards, conts = (part(dream.features).double().numpy() for part in (model.reward, model.cont))
        values = critic.mean(critic(dream.features)).double().numpy()
    returns = lambda_returns(rewards, conts, values, workflow.gamma)
    low, high = (0.01 * np.percentile(returns, share) for share in (5, 95))  # the first step of an average from 0
    assert high - low > 1.0
    gain = log_probs * (returns - values[:-1]) / (high - low)
    return -(step_weights(conts, workflow.gamma) * (gain + workflow.entropy_scale * entropies)).mean()


def test_the_actors_loss_on_numbers():
    workflow = make_dreamer(CONTINUOUS, horizon=STEPS, entropy_scale=0.1)
    wake(workflow)
    torch.manual_seed(3)
    dream = Dream(torch.randn(STEPS + 1, STARTS, workflow.world_model.feature_dim), torch.randn(STEPS, STARTS, 2))
    loss, metrics = loss_of(workflow, dream)
    pi = workflow.actor(dream.features[:-1])
    mean, std = (x.detach().double().numpy() for x in (pi.mean, pi.std))
    z = (dream.actions.double().numpy() - mean) / std
    log_probs = (-0.5 * z**2 - np.log(std) - 0.5 * np.log(2.0 * np.pi)).sum(-1)
    entropies = (np.log(std) + 0.5 * np.log(2.0 * np.pi * np.e)).sum(-1)
    expected = expected_reinforce_loss(workflow, dream, log_probs, entropies)
    assert loss.item() == pytest.approx(expected, rel=1e-4)
    assert float(metrics["entropy"]) == pytest.approx(entropies.mean(), rel=1e-5)


def test_the_actors_loss_on_choices_and_its_gradient():
    workflow = make_dreamer(DISCRETE, horizon=STEPS, entropy_scale=0.1)
    wake(workflow)
    torch.manual_seed(3)
    taken = torch.randint(3, (STEPS, STARTS))
    actions = torch.nn.functional.one_hot(taken, 3).float()
    dream = Dream(torch.randn(STEPS + 1, STARTS, workflow.world_model.feature_dim), actions)
    loss, _ = loss_of(workflow, dream)
    layer = workflow.actor.heads[0]
    hidden = workflow.actor.trunk(dream.features[:-1]).detach().double().numpy()
    weight = layer.weight.detach().double().numpy()

    def by_hand(weight):
        logits = hidden @ weight.T + layer.bias.detach().double().numpy()
        log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        chosen = np.take_along_axis(log_probs, taken.numpy()[..., None], -1)[..., 0]
        entropies = -(np.exp(log_probs) * log_probs).sum(-1)
        return expected_reinforce_loss(workflow, dream, chosen, entropies)

    assert loss.item() == pytest.approx(by_hand(weight), rel=1e-4)
    gradient = torch.autograd.grad(loss, layer.weight)[0].numpy()
    for place in ((0, 1), (1, 7), (2, 12)):
        nudge = np.zeros_like(weight)
        nudge[place] = 1e-5
        slope = (by_hand(weight + nudge) - by_hand(weight - nudge)) / 2e-5
        assert gradient[place] == pytest.approx(slope, rel=1e-3, abs=1e-6)
