import math

import pytest
import torch

from rl_lab.components.action_heads import GaussianHead, action_head
from rl_lab.components.actor_critic import ActorCritic
from rl_lab.components.dict_encoder import DictEncoder
from rl_lab.components.flat import FlatParameters, clip_gradient, masked_step
from rl_lab.components.mlp import MLP
from rl_lab.components.observation import ObservationReader
from rl_lab.components.recurrent import GRU
from rl_lab.core import ACTION_MASK, Box, ConfigError, Discrete, EnvSpec, MultiDiscrete
from rl_lab.ops.distributions import MultiCategorical

OPTIONS = {"initial_log_std": -0.5, "state_dependent_std": False, "squash": False}


def test_reader_of_choices_arrays_and_dicts():
    x, mask = ObservationReader(Discrete(3), keep_dict=False)(torch.tensor([2, 0]))
    assert x.tolist() == [[0, 0, 1], [1, 0, 0]]
    assert mask is None
    x, _ = ObservationReader(MultiDiscrete((2, 3)), keep_dict=False)(torch.tensor([[1, 2]]))
    assert x.tolist() == [[0, 1, 0, 0, 1]]
    x, _ = ObservationReader(Box((2, 2)), keep_dict=False)(torch.arange(8.0).view(1, 2, 2, 2))
    assert x.tolist() == [[[0, 1, 2, 3], [4, 5, 6, 7]]]
    space = {"a": Box((1,)), ACTION_MASK: Box((2,), torch.bool), "b": Discrete(2)}
    obs = {"a": torch.tensor([[5.0]]), "b": torch.tensor([1]), ACTION_MASK: torch.tensor([[True, False]])}
    reader = ObservationReader(space, keep_dict=False)
    assert reader.dim == 3
    x, mask = reader(obs)
    assert x.tolist() == [[5, 0, 1]]
    assert mask.tolist() == [[True, False]]
    x, _ = ObservationReader(space, keep_dict=True)(obs)
    assert sorted(x) == ["a", "b"]
    with pytest.raises(ConfigError, match=r"components\.encoder"):
        ObservationReader({"image": Box((3, 8, 8), torch.uint8)}, keep_dict=False)


def test_gaussian_head_stays_within_the_bounds():
    torch.manual_seed(0)
    space = Box((2,), low=-2.0, high=4.0)
    latents = torch.tensor([[-100.0, 0.0], [1.0, 100.0]])
    clamped = GaussianHead(3, space, **OPTIONS).to_environment(latents)
    assert clamped.tolist() == [[-2.0, 0.0], [1.0, 4.0]]
    squashed = GaussianHead(3, space, **{**OPTIONS, "squash": True}).to_environment(latents)
    assert squashed.tolist() == [[-2.0, 1.0], [pytest.approx(1.0 + 3.0 * math.tanh(1.0)), 4.0]]
    with pytest.raises(ConfigError, match=r"algorithm\.squash_actions"):
        GaussianHead(3, Box((2,)), **{**OPTIONS, "squash": True})


def test_standard_deviation_depends_on_the_state_or_not():
    torch.manual_seed(0)
    features = torch.randn(5, 3)
    fixed = GaussianHead(3, Box((2,)), **OPTIONS)(features, None)
    assert fixed.log_std.shape == (2,)
    assert fixed.log_std.tolist() == [-0.5, -0.5]
    free = GaussianHead(3, Box((2,)), **{**OPTIONS, "state_dependent_std": True})(features, None)
    assert free.log_std.shape == (5, 2)
    assert free.log_std.std() > 0


def test_shared_and_separate_trunks():
    torch.manual_seed(0)
    spec, inputs, first = (
        EnvSpec("x", Box((3,)), MultiDiscrete((2, 3))),
        (torch.randn(4, 3), None),
        torch.ones(4).bool(),
    )
    shared = ActorCritic(
        spec, {"actor": MLP(3, [8])}, action_head(8, spec.action, **OPTIONS), normalize_observations=False
    )
    separate = ActorCritic(
        spec,
        {"actor": MLP(3, [8]), "critic": MLP(3, [6])},
        action_head(8, spec.action, **OPTIONS),
        normalize_observations=False,
    )
    for net in (shared, separate):
        pi, value, carry = net(inputs, None, first)
        assert isinstance(pi, MultiCategorical)
        assert value.shape == (4,)
        assert carry is None
        torch.testing.assert_close(net.value(inputs, None, first), value)
        torch.testing.assert_close(net.policy(inputs, None, first)[0].logits, pi.logits)
    value_gradient = torch.autograd.grad(
        separate.value(inputs, None, first).sum(), separate.actor.parameters(), allow_unused=True
    )
    assert all(gradient is None for gradient in value_gradient)
    assert torch.autograd.grad(shared.value(inputs, None, first).sum(), shared.actor[0].weight)[0].abs().sum() > 0


def test_what_cannot_be_is_refused():
    masked = EnvSpec("x", {"a": Box((3,)), ACTION_MASK: Box((2,), torch.bool)}, Box((2,)))
    with pytest.raises(ConfigError, match="action_mask needs discrete actions"):
        ActorCritic(
            masked, {"actor": MLP(3, [8])}, action_head(8, masked.action, **OPTIONS), normalize_observations=False
        )
    read = EnvSpec("x", {"a": Box((3,))}, Discrete(2))
    parts = {"encoder": DictEncoder({"a": MLP(3, [4])}), "actor": MLP(4, [8])}
    with pytest.raises(ConfigError, match=r"algorithm\.normalize_observations"):
        ActorCritic(read, parts, action_head(8, read.action, **OPTIONS), normalize_observations=True)


def test_flat_parameters_are_the_same_as_single_ones():
    torch.manual_seed(0)
    single, flat_net = MLP(3, [4, 2]), MLP(3, [4, 2])
    flat_net.load_state_dict(single.state_dict())
    flat = FlatParameters(flat_net.parameters())
    one = torch.optim.Adam(single.parameters(), lr=0.1)
    other = torch.optim.Adam([flat.tensor], lr=0.1)
    for x in torch.randn(5, 6, 3):
        one.zero_grad()
        (100 * single(x).square().sum()).backward()
        norm = torch.nn.utils.clip_grad_norm_(single.parameters(), 0.5)
        one.step()
        parts = torch.autograd.grad(100 * flat_net(x).square().sum(), flat.parts)
        flat.tensor.grad = torch.cat([part.flatten() for part in parts])
        torch.testing.assert_close(clip_gradient(flat.tensor.grad, 0.5), norm)
        other.step()
    for a, b in zip(single.parameters(), flat_net.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    flat_net.load_state_dict({name: torch.full_like(value, 3.0) for name, value in flat_net.state_dict().items()})
    assert (flat.tensor == 3.0).all()


def test_masked_step_keeps_parameters_and_optimiser_state_to_the_bit():
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([parameter], lr=0.1, fused=True)

    def snapshot():
        return [parameter.detach().clone(), *(value.clone() for value in optimizer.state[parameter].values())]

    parameter.grad = torch.tensor([1.0, 2.0, 3.0])
    masked_step(optimizer, torch.tensor(True))
    first = snapshot()
    assert not torch.equal(first[0], torch.ones(3))
    masked_step(optimizer, torch.tensor(False))
    assert all(torch.equal(a, b) for a, b in zip(snapshot(), first, strict=True))
    masked_step(optimizer, torch.tensor(True))
    assert not any(torch.equal(a, b) for a, b in zip(snapshot(), first, strict=True))


def test_keyed_trunks_read_their_own_keys_with_their_own_statistics():
    """An asymmetric pair: the critic sees a key that the actor does not."""
    torch.manual_seed(0)
    spec = EnvSpec("x", {"actor": Box((3,)), "critic": Box((5,))}, Box((2,)))
    parts = {"actor": DictEncoder({"actor": MLP(3, [8])}), "critic": DictEncoder({"critic": MLP(5, [6])})}
    net = ActorCritic(spec, parts, action_head(8, spec.action, **OPTIONS), normalize_observations=True)
    with pytest.raises(ConfigError, match=r"components\.memory: reads a vector, not a dict"):
        ActorCritic(
            spec, parts | {"memory": GRU(3, 8)}, action_head(8, spec.action, **OPTIONS), normalize_observations=True
        )
    flat = EnvSpec("x", Box((3,)), Box((2,)))
    narrow = {"memory": GRU(3, 8), "actor": MLP(8, [6]), "critic": MLP(3, [6])}
    with pytest.raises(ConfigError, match=r"components\.critic\.input_dim: must be 8, which .*memory puts out, not 3"):
        ActorCritic(flat, narrow, action_head(6, spec.action, **OPTIONS), normalize_observations=True)
    obs = {"actor": 4.0 + 3.0 * torch.randn(20, 7, 3), "critic": torch.randn(20, 7, 5) - 2.0}  # [T, N, ...]
    net.update_normalizer(obs)
    rows = {key: value.flatten(0, 1) for key, value in obs.items()}
    inputs, mask = net.inputs(rows)
    assert mask is None
    for key, value in rows.items():
        wanted = (value - value.mean(0)) / value.var(0, correction=0).sqrt()
        torch.testing.assert_close(inputs[key], wanted, atol=1e-4, rtol=1e-4)
    first = torch.zeros(140, dtype=torch.bool)
    pi, value, _ = net((inputs, None), None, first)
    other = {**inputs, "critic": torch.zeros(140, 5)}
    changed, new_value, _ = net((other, None), None, first)
    assert torch.equal(pi.mean, changed.mean)  # the policy does not see the critic's key
    assert not torch.equal(value, new_value)
    inputs["actor"] = torch.zeros(140, 3)
    assert torch.equal(net.value((inputs, None), None, first), value)
    assert {"normalizer.parts.actor.mean", "normalizer.parts.critic.var"} <= net.state_dict().keys()
