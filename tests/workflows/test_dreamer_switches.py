"""Switches of Dreamer's generations as the presets set them: what they do to numbers, and what is refused."""

import numpy as np
import pytest
import torch

from rl_lab.config.allow_list import AllowList
from rl_lab.config.build import assemble
from rl_lab.config.compose import compose
from rl_lab.config.targets import Targets
from rl_lab.core import ConfigError
from tests.components.test_world_model import make_batch
from tests.workflows.off_policy import phase
from tests.workflows.test_dreamer import CONTINUOUS, DISCRETE, MIXED, SIZES, V1, make_dreamer

torch.set_num_threads(1)
SMALL = ("algorithm.random_steps=0", "experiment.compile=eager", *SIZES)


def made(preset, *overrides, environment="tensor_pendulum"):
    composed = compose([f"+preset={preset}", f"+environment={environment}", *SMALL, *overrides])
    return assemble(composed, Targets(AllowList())).workflow


@pytest.mark.parametrize(
    ("preset", "shrinkage"), [("dreamer_v2", 1e-6), ("dreamer_v2_discrete", 1e-6), ("dreamer_v1", 0)]
)
def test_an_update_shrinks_weights_as_published(preset, shrinkage):
    workflow = made(preset, environment="tensor_cartpole")
    for learner in (workflow.models, workflow.actors, workflow.critics):
        weight = max(learner.parameters, key=torch.Tensor.numel)
        before = weight.detach().double().numpy().copy()
        for _ in range(100):
            learner.apply(tuple(torch.zeros_like(parameter) for parameter in learner.parameters))
        large = np.abs(before) > np.abs(before).mean()
        ratio = (weight.detach().double().numpy() / before)[large]
        found = 1.0 - np.mean(ratio) ** (1 / 100)
        assert found == pytest.approx(shrinkage, rel=0.05, abs=1e-9)  # float32 knows 1 - 1e-6 to 1.4 %


@pytest.mark.parametrize("preset", ["dreamer_v3_2023", "dreamer_v2"])
def test_the_actors_gradient_follows_the_actions(preset):
    for environment, gradient in (
        ("tensor_pendulum", "dynamics"),
        ("tensor_cartpole", "reinforce"),
        ("identity_mixed", "reinforce"),
    ):
        assert made(preset, environment=environment).actor_gradient == gradient


def test_auto_is_the_gradient_that_it_stands_for():
    for spec, gradient in ((CONTINUOUS, "dynamics"), (DISCRETE, "reinforce"), (MIXED, "reinforce")):
        found = []
        for chosen in ("auto", gradient):
            workflow = make_dreamer(spec, **{**V1, "actor_gradient": chosen})
            torch.manual_seed(1)
            found.append(workflow.update_agent(make_batch(spec), phase=phase()))
        assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_one_sum_of_losses_wants_reinforce():
    for gradient in ("auto", "dynamics"):
        with pytest.raises(ConfigError, match=f"algorithm.joint: must be false for actor_gradient {gradient}"):
            make_dreamer(actor_gradient=gradient)


def test_the_continuation_and_the_discount_have_one_horizon():
    with pytest.raises(ConfigError, match=r"algorithm.gamma: 0.997, while .*discount_horizon discounts by 0.9"):
        made("dreamer_small", "components.world_model.discount_horizon=10")
    workflow = made("dreamer_small", "components.world_model.discount_horizon=10", "algorithm.gamma=0.9")
    assert workflow.world_model.cont_target == pytest.approx(workflow.gamma)
    with pytest.raises(ConfigError, match="discount_horizon: is learned by cont, and cont is null"):
        made("dreamer_small", "components.world_model.cont=null")
    plain = made("dreamer_small", "components.world_model.cont=null", "components.world_model.discount_horizon=null")
    assert not plain.world_model.folds_discount


def judged(workflow, batch):
    """Return the losses of actor and critic for one dream."""
    torch.manual_seed(2)
    observed = workflow.world_model.observe(batch)
    torch.manual_seed(3)
    actor, critic, _ = workflow._behavior_losses(observed.latents, observed.latents.deter, batch)
    return torch.stack([actor, critic]).tolist()


@pytest.mark.parametrize(("root", "sees_it"), [("recorded", True), ("predicted", False)])
def test_where_a_dream_starts_is_known_to_have_ended_or_predicted(root, sees_it):
    found = []
    for ends in (False, True):
        workflow = make_dreamer(CONTINUOUS, root_cont=root, replay_value_scale=0.0)
        batch = make_batch()
        batch["is_terminal"][:] = ends
        found.append(judged(workflow, batch))
    assert (found[0] != found[1]) == sees_it
    if sees_it:
        assert found[1] == [0.0, 0.0]  # dreams from ends weigh nothing


def test_the_posteriors_weight_is_clipped_as_the_one_that_was_published():
    workflow = made("dreamer_v3")
    group, halves = workflow.models.optimizer.param_groups[0], workflow.world_model.rssm.posterior_input
    places = [[group["params"][place] for place in parts] for parts in group["joined"]]
    assert [[id(part) for part in parts] for parts in places] == [[id(halves.early.weight), id(halves.late.weight)]]
    assert workflow.actors.optimizer.param_groups[0]["joined"] == []


@pytest.mark.parametrize(
    ("preset", "root"),
    [
        ("dreamer_v1", "predicted"),
        ("dreamer_v2", "recorded"),
        ("dreamer_v3_2023", "recorded"),
        ("dreamer_v3", "predicted"),
    ],
)
def test_presets_start_dreams_as_published(preset, root):
    assert made(preset).root_cont == root


def test_the_tanh_of_rewards_is_what_updates_see():
    assert made("dreamer_v2_discrete", environment="tensor_cartpole").tanh_rewards
    assert not made("dreamer_v2").tanh_rewards
    large = make_batch()
    large["rewards"] = 40.0 * large["rewards"]
    seen = {**large, "rewards": torch.from_numpy(np.tanh(large["rewards"].numpy()))}
    found = []
    for batch, options in ((large, {"tanh_rewards": True}), (seen, {}), (large, {})):
        workflow = make_dreamer(**options)
        torch.manual_seed(1)
        workflow.update_agent(batch, phase=phase())
        found.append((workflow.world_model.reward_head.out.bias.detach(), workflow.critic.out.bias.detach()))
    for squashed, expected, raw in zip(*found, strict=True):
        torch.testing.assert_close(squashed, expected)
        assert not torch.allclose(squashed, raw, rtol=1e-2)
    assert float(large["rewards"].abs().max()) > 40.0  # the batch itself stays what it was


@pytest.mark.parametrize("hook", ["update_agent", "update_world_model", "update_controller"])
def test_the_rate_falls_to_zero_within_the_phase(hook):
    workflow = make_dreamer(learning_rate_schedule="linear", lr=0.01)
    rates = {}
    workflow.update_agent(make_batch(), phase=phase())
    for progress in (0.0, 0.25, 1.0):
        before = {name: value.clone() for name, value in workflow.named_parameters()}
        found = getattr(workflow, hook)(make_batch(), phase=phase(progress))
        assert found["learning_rate"] == pytest.approx(0.01 * (1.0 - progress))
        rates[progress] = [float(learner.optimizer.param_groups[0]["lr"]) for learner in learners(workflow)]
    assert rates == {share: pytest.approx([0.01 * (1.0 - share)] * 3) for share in rates}
    after = dict(workflow.named_parameters())
    learnt = [name for name in before if not name.startswith("slow_critic")]
    assert all(torch.equal(before[name], after[name]) for name in learnt)  # at the very end nothing is learned


def learners(workflow):
    return workflow.models, workflow.actors, workflow.critics


def test_without_a_schedule_the_rate_is_the_optimisers():
    workflow = make_dreamer(lr=0.01)
    assert "learning_rate" not in workflow.update_agent(make_batch(), phase=phase(0.5))
    assert [learner.optimizer.param_groups[0]["lr"] for learner in learners(workflow)] == [0.01] * 3
