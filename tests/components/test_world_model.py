"""The world model's losses: KL in its four forms, continuation targets, states that were recorded."""

import numpy as np
import pytest
import torch

from rl_lab.components.dynamics import Latent, Observed
from rl_lab.components.layers import LayerStyle
from rl_lab.components.rssm import RSSM
from rl_lab.components.scalar_heads import ContinueHead, ScalarHead
from rl_lab.components.world_decoder import WorldDecoder
from rl_lab.components.world_encoder import WorldEncoder
from rl_lab.components.world_model import LATENT, KLTerms, WorldModel
from rl_lab.core import Box, ConfigError, Discrete, EnvSpec, leaves_of, tree_map

torch.set_num_threads(1)
SPEC = EnvSpec("fixed", Box((3,)), Box((2,), low=-2.0, high=2.0))


def gaussian():
    return RSSM(16, 8, 4, latent="gaussian", core="gru", prior_layers=1)


def make_model(spec=SPEC, rssm=None, **options):
    torch.manual_seed(0)
    style = LayerStyle()
    model = WorldModel(
        WorldEncoder(8, 1, style),
        RSSM(16, 8, 4, 3, num_blocks=4) if rssm is None else rssm(),
        WorldDecoder(8, 1, style),
        ScalarHead(8, 1, style, num_bins=41),
        ContinueHead(8, 1, style),
        **options,
    )
    model.bind(spec, "Test")
    return model


def make_batch(spec=SPEC, size=3, length=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lead = (size, length)
    actions = {
        name: 4.0 * torch.rand(*lead, 2, generator=generator) - 2.0
        if isinstance(leaf, Box)
        else torch.randint(leaf.n, lead, generator=generator)
        for name, leaf in leaves_of(spec.action).items()
    }
    actions = actions.get("", actions)
    is_first = torch.zeros(lead, dtype=torch.bool)
    is_first[:, 0] = True
    is_first[1, 3] = True
    is_terminal = torch.zeros(lead, dtype=torch.bool)
    is_terminal[1, 2] = True
    return {
        "observations": torch.randn(*lead, 3, generator=generator),
        "actions": actions,
        "rewards": torch.randn(*lead, generator=generator),
        "is_first": is_first,
        "is_last": is_terminal.clone(),
        "is_terminal": is_terminal,
    }


def categorical_kl(left, right):
    p, q = np.exp(left), np.exp(right)
    return (p * (np.log(p) - np.log(q))).sum((-2, -1))


@pytest.mark.parametrize("form", ["step", "mean", "balanced", "separate"])
def test_kl_losses_in_every_form(form):
    model = make_model(kl=KLTerms(form, free_nats=0.9, dyn_scale=0.5, rep_scale=0.1))
    model.rssm.prior[-1].weight.data *= 4.0
    torch.manual_seed(1)
    loss = model.losses(make_batch())
    posterior, prior = (x.detach().double().numpy() for x in (loss.observed.posterior, loss.observed.prior))
    kl = categorical_kl(posterior, prior)  # [T, B]
    assert kl.min() < 0.9 < kl.max()
    whole, each = max(kl.mean(), 0.9), np.maximum(kl, 0.9).mean()
    expected = {
        "step": {"kl": 0.5 * each},
        "mean": {"kl": 0.5 * whole},
        "balanced": {"dyn": 0.5 * whole, "rep": 0.1 * whole},
        "separate": {"dyn": 0.5 * each, "rep": 0.1 * each},
    }[form]
    found = {name: loss.terms[name].item() for name in expected}
    assert found == pytest.approx(expected, rel=1e-5)


def gaussian_kl(left, right):
    (m1, s1), (m2, s2) = (np.split(belief, 2, -1) for belief in (left, right))
    return (np.log(s2 / s1) + (s1**2 + (m1 - m2) ** 2) / (2.0 * s2**2) - 0.5).sum(-1)


@pytest.mark.parametrize("form", ["step", "mean", "balanced", "separate"])
def test_kl_losses_of_gaussian_latents_in_every_form(form):
    model = make_model(kl=KLTerms(form, free_nats=0.9, dyn_scale=0.5, rep_scale=0.1), rssm=gaussian)
    model.rssm.prior[-1].weight.data *= 4.0
    torch.manual_seed(1)
    loss = model.losses(make_batch())
    raw = (loss.observed.posterior, loss.observed.prior)
    kl = gaussian_kl(*(x.detach().double().numpy() for x in raw))  # [T, B]
    assert kl.shape == (5, 3)
    assert kl.min() < 0.9 < kl.max()
    whole, each = max(kl.mean(), 0.9), np.maximum(kl, 0.9).mean()
    expected = {
        "step": {"kl": 0.5 * each},
        "mean": {"kl": 0.5 * whole},
        "balanced": {"dyn": 0.5 * whole, "rep": 0.1 * whole},
        "separate": {"dyn": 0.5 * each, "rep": 0.1 * each},
    }[form]
    assert {name: loss.terms[name].item() for name in expected} == pytest.approx(expected, rel=1e-5)
    frozen = model.rssm.latent_space.kl(torch.tensor([0.0, 1.0, 2.0, 0.5]), torch.tensor([1.0, 1.0, 1.0, 2.0]))
    assert frozen.item() == pytest.approx(2.2243971805599454, abs=1e-6)  # log 2 + 49 / 32, by hand


def test_planet_learns_nothing_from_single_steps_below_the_free_nats():
    posterior, prior = torch.randn(6, 4, 8), torch.randn(6, 4, 8)
    posterior[..., 4:], prior[..., 4:] = 1.0, 1.0  # means, then standard deviations
    posterior[:3, :, :4] = prior[:3, :, :4] + 0.1
    kl = 0.5 * ((posterior - prior) ** 2).double().numpy().sum(-1)
    assert kl[:3].max() < 0.9 < kl.mean()
    gradients = {}
    for form in ("step", "mean"):
        model = make_model(kl=KLTerms(form, free_nats=0.9), rssm=gaussian)
        leaf = posterior.clone().requires_grad_()
        terms, _ = model._kl_losses(Observed(Latent(prior, prior), leaf, prior))
        gradients[form] = torch.autograd.grad(terms["kl"], leaf)[0][..., :4].numpy()
    wanted = (posterior - prior)[..., :4].double().numpy() / 24
    np.testing.assert_allclose(gradients["mean"], wanted, atol=1e-6)
    np.testing.assert_allclose(gradients["step"], np.where((kl > 0.9)[..., None], wanted, 0.0), atol=1e-6)


def test_without_free_nats_one_kl_is_the_same_by_step_and_by_mean():
    found = []
    for form in ("step", "mean"):
        model = make_model(kl=KLTerms(form, free_nats=0.0), rssm=gaussian)
        torch.manual_seed(1)
        loss = model.losses(make_batch()).terms["kl"]
        found.append((loss.detach(), *torch.autograd.grad(loss, [*model.rssm.prior.parameters()])))
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-8)


def test_a_discount_cannot_be_folded_into_a_continuation_that_is_not_there():
    style = LayerStyle()
    parts = WorldEncoder(8, 1, style), RSSM(16, 8, 4, 3, num_blocks=4), WorldDecoder(8, 1, style), ScalarHead(8, 1)
    with pytest.raises(ConfigError, match=r"discount_horizon: is learned by cont, and cont is null: set it to null"):
        WorldModel(*parts, discount_horizon=333)
    assert not WorldModel(*parts).folds_discount


def test_prior_and_posterior_each_learn_from_their_own_term():
    model = make_model(kl=KLTerms(free_nats=0.0))
    terms = model.losses(make_batch()).terms
    prior, posterior = list(model.rssm.prior.parameters()), list(model.rssm.posterior_output.parameters())
    of_dyn = torch.autograd.grad(terms["dyn"], prior, retain_graph=True)
    assert all(g.abs().sum() > 0 for g in of_dyn)
    of_rep = torch.autograd.grad(terms["rep"], prior, retain_graph=True, allow_unused=True)
    assert all(g is None or not g.any() for g in of_rep)
    assert all(g.abs().sum() > 0 for g in torch.autograd.grad(terms["rep"], posterior))


def test_the_continuation_learns_the_discount_where_it_is_folded_in():
    for horizon, target in ((None, 1.0), (10, 0.9)):
        model = make_model(discount_horizon=horizon)
        torch.manual_seed(1)
        loss = model.losses(make_batch())
        logits = model.cont_head(loss.features).detach().double().numpy()
        wanted = np.full((5, 3), target)
        wanted[2, 1] = 0.0
        probs = 1.0 / (1.0 + np.exp(-logits))
        expected = -(wanted * np.log(probs) + (1.0 - wanted) * np.log(1.0 - probs)).mean()
        assert loss.terms["cont"].item() == pytest.approx(expected, rel=1e-5)


def test_batches_begin_in_the_states_that_were_recorded():
    model = make_model()
    batch = make_batch()
    batch["is_first"][:, 0] = False
    states = {"deter": torch.randn(3, 5, 16), "stoch": torch.randn(3, 5, 12)}
    results = []
    for scale in (0.0, 1.0):
        torch.manual_seed(1)
        recorded = {key: scale * value for key, value in states.items()}
        results.append(model.observe({**batch, LATENT: recorded}).latents.deter)
    torch.manual_seed(1)
    torch.testing.assert_close(model.observe(batch).latents.deter, results[0])  # zeros are an episode's start
    assert not torch.allclose(results[0][0], results[1][0])
    torch.testing.assert_close(results[0][3:, 1], results[1][3:, 1])  # what follows the start of an episode


def test_models_read_actions_as_one_hots_or_in_units():
    assert make_model().actions(torch.tensor([[2.0, -1.0]])).tolist() == [[1.0, -0.5]]
    discrete = EnvSpec("fixed", Box((3,)), Discrete(3))
    model = make_model(discrete)
    assert model.actions(torch.tensor([2])).tolist() == [[0.0, 0.0, 1.0]]
    assert torch.isfinite(torch.stack(list(model.losses(make_batch(discrete)).terms.values()))).all()


def test_an_unknown_form_is_refused():
    with pytest.raises(ConfigError, match="components.world_model.kl.form"):
        KLTerms("both")


def test_two_rows_are_a_sequence():
    assert make_model().losses(tree_map(lambda leaf: leaf[:, :2], make_batch())).total.isfinite()
