"""What plans in a latent model are worth, against loops in float64; what the policy proposes; discounts."""

import numpy as np
import pytest
import torch

from rl_lab.components.latent_encoder import TDMPC2_STYLE
from rl_lab.components.latent_planning import LatentPlanning, discount_of
from rl_lab.components.planners import MPPI
from rl_lab.components.q_ensemble import QEnsemble
from rl_lab.components.task_embedding import TaskEmbedding
from rl_lab.components.world_actors import WorldActor
from rl_lab.core import Box, ConfigError, Discrete, EnvSpec
from rl_lab.ops.world_distributions import BoundedNormal
from tests.components.test_latent_model import SPEC, hidden, linear, naive_encode, naive_next, scrambled, small_model
from tests.components.test_q_ensemble import naive as naive_critic

torch.set_num_threads(1)
CHOICES = EnvSpec("choices", Box((5,)), Discrete(4), 100)


def planning(spec=SPEC, *, cont=True, reduction="min", num_proposals=3, planner=None):
    model = scrambled(small_model(spec, cont=cont))
    actor = WorldActor(6, 1, TDMPC2_STYLE, kind="squashed_normal", scale=1.0)
    critic = QEnsemble(6, num_members=3, subset_size=None, num_bins=11, limit=3.0)
    actor.bind(model.feature_dim, spec, "Test")
    critic.bind(model.joint_dim)
    options = {"discount": 0.9, "reduction": reduction, "num_proposals": num_proposals}
    return LatentPlanning(model, scrambled(actor), scrambled(critic), planner or MPPI(3, 16, 4, 2), **options)


def symexp_mean(logits):
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    mean = (shares * np.linspace(-3, 3, 11)).sum(-1)
    return np.sign(mean) * np.expm1(abs(mean))


def naive_worth(plans, obs, actions, noise):
    """Return what one sequence is worth: rewards until the end, and then the value of the policy's action."""
    model, total, share = plans.model, 0.0, 1.0
    z = naive_encode(model, obs)
    for action in actions:
        joint = np.concatenate([z, action])
        total += share * symexp_mean(linear(model.reward_head.out, hidden(model.reward_head.trunk, joint)))
        z = naive_next(model, z, action)
        share *= 0.9
        if model.cont_head is not None:
            logit = linear(model.cont_head.out, hidden(model.cont_head.trunk, z))[0]
            share /= 1.0 + np.exp(-logit)
    features = hidden(plans.actor.trunk, z)
    std = np.exp(-10.0 + 6.0 * (np.tanh(linear(plans.actor.std, features)) + 1.0))
    action = np.tanh(linear(plans.actor.mean, features) + std * noise)
    joint = np.concatenate([z, action])[None]
    values = np.stack([symexp_mean(naive_critic(plans.critic, joint, member))[0] for member in range(3)])
    return total + share * (values.min() if plans.reduction == "min" else values.mean())


@pytest.mark.parametrize(("cont", "reduction"), [(True, "min"), (False, "mean")])
def test_sequences_are_worth_rewards_until_the_end_and_the_value_behind(cont, reduction, monkeypatch):
    plans = planning(cont=cont, reduction=reduction)
    generator = torch.Generator().manual_seed(1)
    obs, sequences = torch.randn(2, 5, generator=generator), torch.rand(4, 2, 3, 2, generator=generator) * 2 - 1
    noise = torch.randn(6, 2, generator=generator)
    monkeypatch.setattr(BoundedNormal, "noise", staticmethod(lambda shape, device: noise))
    with torch.no_grad():
        found = plans.worth(plans.model.encode(obs), sequences)
    assert found.shape == (2, 3)
    for env, k in np.ndindex(2, 3):
        drawn = noise[3 * env + k].double().numpy()
        expected = naive_worth(plans, obs[env].double().numpy(), sequences[:, env, k].double().numpy(), drawn)
        assert float(found[env, k]) == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_the_policy_proposes_what_it_would_do_and_choices_only_where_they_are_allowed():
    plans = planning(CHOICES, num_proposals=50)
    mask = torch.tensor([[True, False, True, False], [False, True, True, True]])
    seen = []

    def watched(rollout, *args, proposals, mask, **options):
        seen.append(proposals)
        return MPPI.plan(plans.planner, rollout, *args, proposals=proposals, mask=mask, **options)

    plans.planner.plan = watched
    torch.manual_seed(0)
    with torch.no_grad():
        state = plans.model.encode(torch.randn(2, 5))
        plan = plans.plan(state, 2, mask=mask)
    assert plan.actions.shape == (2, 2, 4)
    assert seen[0].shape == (2, 2, 50, 4)
    assert torch.equal(seen[0].sum(-1), torch.ones(2, 2, 50))
    assert not bool((seen[0][0] * ~mask.unsqueeze(1)).any())
    assert bool((seen[0][1] * ~mask.unsqueeze(1)).any())  # only the first choice is bound
    assert bool(mask.gather(1, plan.actions[0].argmax(-1, keepdim=True)).all())
    silent = planning(CHOICES, num_proposals=0)
    silent.planner.plan = watched
    with torch.no_grad():
        silent.plan(state, 3)
    assert seen[1] is None


@pytest.mark.parametrize(("length", "expected"), [(500, 0.99), (50, 0.95), (125, 0.96), (5000, 0.995)])
def test_longer_episodes_are_discounted_less(length, expected):
    assert discount_of(EnvSpec("x", Box((1,)), Discrete(2), length)) == pytest.approx(expected)


def test_tasks_with_discounts_of_their_own_ask_for_no_other():
    endless = EnvSpec("x", Box((1,)), Discrete(2))
    assert discount_of(endless, tasks=TaskEmbedding(episode_steps=[250, 40])) is None
    with pytest.raises(ConfigError, match=r"algorithm\.gamma: episodes of 'x' have no limit"):
        discount_of(endless, tasks=TaskEmbedding())


def test_without_an_end_there_is_no_discount_to_compute():
    with pytest.raises(ConfigError, match=r"algorithm\.gamma: episodes of 'x' have no limit"):
        discount_of(EnvSpec("x", Box((1,)), Discrete(2)))
