"""The chain rule that is written out, against autograd on the same networks."""

import copy

import pytest
import torch

from rl_lab.components.action_heads import action_head
from rl_lab.components.actor_critic import ActorCritic
from rl_lab.components.flat import FlatActorCritic
from rl_lab.components.mlp import MLP
from rl_lab.components.paired import PairedActorCritic
from rl_lab.components.recurrent import GRU
from rl_lab.core import ACTION_MASK, Box, Discrete, EnvSpec, MultiDiscrete

OPTIONS = {"initial_log_std": -0.3, "state_dependent_std": False, "squash": False}
ACTIONS = {"discrete": Discrete(3), "multi_discrete": MultiDiscrete((2, 3)), "continuous": Box((2,), low=-1, high=1)}
ROWS = 17


def network(action, *, observation=None, activation="tanh", hidden=(8, 6), critic=(8, 6), options=OPTIONS, **parts):
    torch.manual_seed(0)
    spec = EnvSpec("x", observation or Box((5,)), action)
    components = {"actor": MLP(5, hidden, activation), **parts}
    if critic is not None:
        components["critic"] = MLP(5, critic, activation)
    head = action_head(hidden[-1], action, **options)
    policy = ActorCritic(spec, components, head, normalize_observations=False)
    for parameter in policy.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return policy


def actions_for(action):
    if isinstance(action, Box):
        return torch.randn(ROWS, 2)
    if isinstance(action, Discrete):
        return torch.randint(action.n, (ROWS,))
    return torch.stack([torch.randint(n, (ROWS,)) for n in action.nvec], -1)


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu"])
@pytest.mark.parametrize("kind", ACTIONS)
@pytest.mark.parametrize("entropy_grad", [0.0, -0.7])
def test_evaluation_and_gradient_are_those_of_autograd(kind, activation, entropy_grad):
    policy = network(ACTIONS[kind], activation=activation)
    by_hand, by_autograd = PairedActorCritic(policy), FlatActorCritic(copy.deepcopy(policy))
    inputs, actions = (torch.randn(ROWS, 5), None), actions_for(ACTIONS[kind])
    ours = by_hand.evaluate(*by_hand.native((inputs, None, None, actions)))
    theirs = by_autograd.evaluate(inputs, None, None, actions)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(torch.as_tensor(mine), other, rtol=1e-5, atol=1e-5)
    log_prob_grad, value_grad = torch.randn(ROWS), torch.randn(ROWS)
    norm = by_hand.set_gradient(log_prob_grad.numpy(), entropy_grad, value_grad.numpy(), 0.5)
    expected = by_autograd.set_gradient(log_prob_grad, entropy_grad, value_grad, 0.5)
    torch.testing.assert_close(torch.as_tensor(norm), expected)
    torch.testing.assert_close(by_hand.tensor.grad, by_autograd.tensor.grad, rtol=1e-4, atol=1e-6)


def test_masked_actions_get_no_gradient():
    observation = {"observation": Box((5,)), ACTION_MASK: Box((3,), torch.bool)}
    policy = network(Discrete(3), observation=observation)
    mask = torch.ones(ROWS, 3, dtype=torch.bool)
    mask[:, 1] = False
    by_hand, by_autograd = PairedActorCritic(policy), FlatActorCritic(copy.deepcopy(policy))
    inputs, actions = (torch.randn(ROWS, 5), mask), torch.randint(2, (ROWS,)) * 2
    log_prob_grad, value_grad = torch.randn(ROWS), torch.randn(ROWS)
    for networks in (by_hand, by_autograd):
        networks.evaluate(*networks.native((inputs, None, None, actions)))
        networks.set_gradient(networks.native(log_prob_grad), -0.1, networks.native(value_grad), None)
    torch.testing.assert_close(by_hand.tensor.grad, by_autograd.tensor.grad, rtol=1e-4, atol=1e-6)
    assert (by_hand._heads[0].weight_grad[1] == 0).all()


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu"])
@pytest.mark.parametrize("rows", [3, 100])
def test_acting_is_the_modules_forward_pass(activation, rows):
    policy = network(Box((2,), low=-1, high=1), activation=activation)
    paired, x = PairedActorCritic(policy), torch.randn(rows, 5)
    with torch.inference_mode():
        ours, _ = paired.policy((x, None), None, torch.ones(rows, dtype=torch.bool))
        theirs, _ = policy.policy((x, None), None, torch.ones(rows, dtype=torch.bool))
    torch.testing.assert_close(ours.mode(), theirs.mode(), rtol=1e-5, atol=1e-6)


def test_parameters_and_what_acts_are_views_of_one_tensor():
    policy = network(Discrete(3))
    paired = PairedActorCritic(policy)
    policy.load_state_dict({name: torch.full_like(value, 0.5) for name, value in policy.state_dict().items()})
    assert (paired.tensor == 0.5).all()
    layers = [*paired._layers, *paired._heads]
    assert all((layer.weight == 0.5).all() and (layer.bias == 0.5).all() for layer in layers)


def test_only_two_plain_networks_of_one_shape_fit():
    assert PairedActorCritic.fits(network(Discrete(3)))
    assert not PairedActorCritic.fits(network(Discrete(3), critic=None))
    assert not PairedActorCritic.fits(network(Discrete(3), critic=(8, 7)))
    assert not PairedActorCritic.fits(network(Discrete(3), activation="gelu"))
    assert not PairedActorCritic.fits(network(Discrete(3), memory=GRU(5, 5)))
    box = Box((2,), low=-1, high=1)
    assert not PairedActorCritic.fits(network(box, options=OPTIONS | {"squash": True}))
    assert not PairedActorCritic.fits(network(box, options=OPTIONS | {"state_dependent_std": True}))
