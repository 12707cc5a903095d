"""Squashed Gaussians, mixtures and flows: their densities integrate to 1 over the actions, their means are means."""

import math

import pytest
import torch

from rl_lab.components.array_mlp import FEW_ROWS, fast_forward
from rl_lab.components.flow import Flow, FlowDistribution
from rl_lab.components.mlp import MLP, orthogonal_linear
from rl_lab.components.squashed_heads import GaussianPolicyHead, MixturePolicyHead, squashed_head
from rl_lab.core import ConfigError
from rl_lab.ops.distributions import SquashedGaussian, SquashedMixture

torch.set_num_threads(1)


def wild_flow(dim, layers=3):
    """Return a flow that is far from the identity."""
    torch.manual_seed(1)
    flow = Flow(dim, 4, layers)
    for coupling in flow.couplings:
        torch.nn.init.normal_(coupling.out.weight, std=0.5)
    return flow


def distributions():
    torch.manual_seed(0)
    features = torch.randn(1, 4)
    yield "gaussian", SquashedGaussian(torch.tensor([[0.3]]), torch.tensor([[-0.2]]))
    yield (
        "mixture",
        SquashedMixture(torch.tensor([[0.1, 1.0]]), torch.tensor([[[-1.0], [0.8]]]), torch.tensor([[[-1.0], [-0.3]]])),
    )
    yield "flow", FlowDistribution(wild_flow(1), features)


@pytest.mark.parametrize(("name", "pi"), list(distributions()))
def test_the_density_of_actions_integrates_to_one(name, pi):
    actions = torch.linspace(-1 + 1e-6, 1 - 1e-6, 40_001, dtype=torch.float64)
    latents = torch.atanh(actions).float().view(-1, 1)
    if name == "flow":
        pi = FlowDistribution(pi._flow, pi._features.expand(len(latents), -1))
    with torch.no_grad():
        density = pi.log_prob(latents).exp().flatten().double()
    assert torch.trapezoid(density, actions) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(("name", "pi"), list(distributions()))
def test_drawn_log_densities_are_those_of_the_draws(name, pi):
    latents, log_prob = pi.draw()
    torch.testing.assert_close(log_prob, pi.log_prob(latents), atol=1e-4, rtol=1e-4)


def test_a_flow_is_inverted():
    flow, context, noise = wild_flow(3), torch.randn(16, 4), torch.randn(16, 3)
    with torch.no_grad():
        image, log_det = flow(noise, context)
        back, same = flow.inverse(image, context)
    torch.testing.assert_close(back, noise, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(log_det, same, atol=1e-4, rtol=1e-4)
    jacobian = torch.autograd.functional.jacobian(lambda x: flow(x, context[:1])[0], noise[:1]).view(3, 3)
    assert float(log_det[0]) == pytest.approx(math.log(abs(float(torch.linalg.det(jacobian)))), abs=1e-4)


def test_expectations_over_a_mixture_are_unbiased():
    torch.manual_seed(0)
    logits = torch.tensor([[0.5, -0.5]]).expand(4000, 2)
    mean = torch.tensor([[-1.5], [0.5]]).expand(4000, 2, 1)
    pi = SquashedMixture(logits, mean, torch.full_like(mean, -1.0))
    (found,) = pi.expect(lambda latents, log_prob: (latents.squeeze(-1),))
    weights = torch.tensor([0.5, -0.5]).softmax(-1)
    assert float(found.mean()) == pytest.approx(float(weights @ torch.tensor([-1.5, 0.5])), abs=0.02)
    assert float(pi.sample().mean()) == pytest.approx(float(weights @ torch.tensor([-1.5, 0.5])), abs=0.06)


def test_gradients_reach_the_weights_of_a_mixture():
    head = MixturePolicyHead(4, 2, 3)
    (value,) = head(torch.randn(8, 4)).expect(lambda latents, log_prob: (latents.sum(-1),))
    value.mean().backward()
    assert (head.layer.weight.grad[:3].abs().sum(-1) > 0).all()


def test_modes():
    pi = SquashedMixture(torch.tensor([[0.0, 5.0]]), torch.tensor([[[1.0], [2.0]]]), torch.zeros(1, 2, 1))
    assert pi.mode().tolist() == [[2.0]]
    flow = FlowDistribution(Flow(2, 4, 2), torch.zeros(1, 4))
    assert flow.mode().abs().max() < 0.5  # nearly the identity at first


def test_unknown_policies_are_refused():
    with pytest.raises(ConfigError, match=r"algorithm\.policy"):
        squashed_head("uniform", 4, 2, num_components=1, num_layers=1)
    assert isinstance(squashed_head("gaussian", 4, 2, num_components=1, num_layers=1), GaussianPolicyHead)


@pytest.mark.parametrize("activation", ["relu", "tanh", "elu", "gelu"])
@pytest.mark.parametrize("rows", [1, FEW_ROWS + 1])
def test_acting_in_numpy_is_acting_in_torch(activation, rows):
    trunk, head = MLP(5, (16, 8), activation), orthogonal_linear(8, 3, 1.0)
    forward = fast_forward(trunk, head)
    x = torch.randn(rows, 5)
    with torch.no_grad():
        torch.testing.assert_close(forward(x), head(trunk(x)))
        head.weight.add_(1.0)  # as an update does
        torch.testing.assert_close(forward(x), head(trunk(x)))
