"""PPO with a motion prior: its losses by hand, its replay, and a point that learns to go round by style alone."""

import numpy as np
import pytest
import torch
from torch import nn

from rl_lab.buffers.motions import MotionBuffer
from rl_lab.components.discriminator import Discriminator
from rl_lab.components.mlp import MLP
from rl_lab.components.rnd import RND
from rl_lab.config.signatures import meanings
from rl_lab.core import Box, ConfigError, EnvSpec, LabError
from rl_lab.environments.reach import Reach
from rl_lab.workflows.ppo import PPO
from rl_lab.workflows.ppo_amp import PPOAMP
from tests.workflows.parts import collect, make_collector, make_ppo, phase, trunks

torch.set_num_threads(1)
SPEC = EnvSpec("x", {"state": Box((3,)), "amp": Box((2,))}, Box((1,), low=-1.0, high=1.0))
SMALL = {"hidden_dims": [8], "activation": "tanh"}


def make(spec=SPEC, *, judge=None, extensions=None, batch_size=16, num_envs=4, seed=0, hidden=(16,), **options):
    key = (judge or {}).get("key", "amp")
    motions = MotionBuffer("packaged/circle", batch_size, key=key, spec=spec, seed=seed)
    torch.manual_seed(seed)
    return make_ppo(
        spec,
        trunks(spec, hidden),
        extensions={"discriminator": Discriminator(**SMALL | (judge or {}))} | (extensions or {}),
        workflow_class=PPOAMP,
        buffers={"motions": motions},
        num_envs=num_envs,
        seed=seed,
        **options,
    )


def fixed_batch(steps=6, num_envs=4):
    count = torch.arange(steps * num_envs * 3, dtype=torch.float32).view(steps, num_envs, 3)
    index = torch.arange(steps * num_envs).view(steps, num_envs)
    never = torch.zeros(steps, num_envs, dtype=torch.bool)
    return {
        "observations": {"state": count.mul(0.37).sin(), "amp": count[..., :2].mul(0.21).cos()},
        "final_observations": {"state": count.mul(0.37).cos(), "amp": count[..., :2].mul(0.21).add(0.3).cos()},
        "latents": count[..., :1].mul(0.13).cos(),
        "actions": count[..., :1].mul(0.13).cos(),
        "rewards": index.mul(0.11).cos(),
        "terminated": index % 11 == 10,
        "truncated": never,
        "is_first": never,
    }


def steps_of(batch):
    """Return position and change [B, 4] of a rollout, in float64."""
    here, there = (batch[key]["amp"].flatten(0, 1).double().numpy() for key in ("observations", "final_observations"))
    return np.concatenate([here, there - here], -1)


def judged(discriminator, x):
    """Return the network's output and its gradient by normalised steps [B, 4], written out in float64."""
    first, last = discriminator.trunk[0], discriminator.head
    w, b, v, c = (p.detach().double().numpy() for p in (first.weight, first.bias, last.weight, last.bias))
    hidden = np.tanh(x @ w.T + b)
    return hidden @ v[0] + c[0], ((1.0 - hidden**2) * v[0]) @ w


def test_reward_mixes_task_and_style():
    workflow = make(judge={"task_weight": 0.3, "style_weight": 0.7, "style_scale": 2.0})
    judge, batch = workflow.discriminator, fixed_batch()
    judge.normalizer.update(torch.randn(50, 2, 2) * 2.0 + 1.0)
    mean, std = judge.normalizer.mean.double().numpy().ravel(), judge.normalizer.var.double().numpy().ravel() ** 0.5
    output, _ = judged(judge, (steps_of(batch) - mean) / std)
    style = 2.0 * np.maximum(0.0, 1.0 - 0.25 * (output - 1.0) ** 2)
    expected = 0.3 * batch["rewards"].double().numpy().ravel() + 0.7 * style
    with torch.no_grad():
        found = judge.rewards(batch, batch["rewards"], 0.0)
    np.testing.assert_allclose(found.numpy().ravel(), expected, rtol=1e-4, atol=1e-5)


def test_a_bonus_for_novelty_is_not_weighted_as_the_task():
    """Beside a motion prior RND adds its own weight times its own reward; task_weight is of the environment's alone."""
    found = []
    for weight in (0.0, 0.5):
        workflow = make(judge={"task_weight": 0.3}, extensions={"rnd": RND(weight, key="state", hidden_dims=[4])})
        found.append(workflow.extensions.rewards(fixed_batch(), fixed_batch()["rewards"], 0.0))
    rnd, batch = workflow.extensions["rnd"], fixed_batch()
    seen = rnd.normalizer(batch["final_observations"]["state"])
    errors = (rnd.predictor(seen) - rnd.target(seen)).square().mean(-1)
    torch.testing.assert_close(found[1] - found[0], 0.5 * rnd.scaler(errors), rtol=1e-4, atol=1e-5)


def test_decay_of_trunk_and_head_is_that_of_adam():
    """Three steps are those of Adam with a weight_decay for each group of parameters, on the loss without it."""
    options = {"learning_rate": 1e-2, "trunk_decay": 0.05, "head_decay": 0.4}
    torch.manual_seed(5)
    rounds = [torch.randn(7, 2, 2) for _ in range(3)]
    workflow, plain = make(judge=options), make(judge=options).discriminator
    for judge in (workflow.discriminator, plain):
        judge.learn(fixed_batch(), workflow.policy)
    groups = [
        {"params": list(plain.trunk.parameters()), "weight_decay": 0.05},
        {"params": list(plain.head.parameters()), "weight_decay": 0.4},
    ]
    adam = torch.optim.Adam(groups, lr=1e-2)
    for number, reference in enumerate(rounds):
        torch.manual_seed(number)
        workflow.discriminator.fit(reference)
        torch.manual_seed(number)
        drawn = torch.randint(24, (7,))
        steps = torch.cat((reference, plain.get_state()["replay"][drawn]))
        losses = plain.losses(*plain.normalizer(steps).chunk(2))
        adam.zero_grad()
        (losses["discriminator_loss"] + 10.0 * losses["gradient_penalty"]).backward()
        adam.step()
        plain.normalizer.update(steps)
    for ours, theirs in zip(workflow.discriminator.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_losses_are_least_squares_and_a_penalty_on_normalised_inputs():
    judge = make().discriminator
    torch.manual_seed(1)
    real, fake = torch.randn(7, 2, 2), torch.randn(7, 2, 2)
    losses = {name: float(value.detach()) for name, value in judge.losses(real, fake).items()}
    (d_real, slope), (d_fake, _) = (judged(judge, x.flatten(1).double().numpy()) for x in (real, fake))
    assert losses["discriminator_loss"] == pytest.approx(
        0.5 * (np.mean((d_real - 1) ** 2) + np.mean((d_fake + 1) ** 2)), rel=1e-4
    )
    assert losses["gradient_penalty"] == pytest.approx(np.mean(np.sum(slope**2, -1)), rel=1e-4)
    assert losses["judged_reference"] == pytest.approx(d_real.mean(), abs=1e-5)


def test_the_penalty_does_not_depend_on_units():
    """Observations in other units, with statistics that know of it, are judged and penalised the same."""
    found = []
    for unit in (1.0, 1000.0):
        judge = make().discriminator
        torch.manual_seed(2)
        steps = torch.randn(64, 2, 2) * unit
        judge.normalizer.update(steps)
        losses = judge.losses(*judge.normalizer(steps).chunk(2))
        found.append([float(value.detach()) for value in losses.values()])
    assert found[0] == pytest.approx(found[1], rel=1e-3)


def test_the_policys_steps_are_replayed_the_newest_ones():
    workflow, batch = make(judge={"replay_capacity": 30}), fixed_batch()
    judge = workflow.discriminator
    judge.learn(batch, workflow.policy)
    expected = torch.from_numpy(steps_of(batch)).float().view(24, 2, 2)
    torch.testing.assert_close(judge.get_state()["replay"], expected)
    later = {**batch, "observations": {**batch["observations"], "amp": batch["observations"]["amp"] + 9.0}}
    judge.learn(later, workflow.policy)
    kept = judge.get_state()["replay"]
    assert len(kept) == 30
    assert int((kept[:, 0, 0] > 5.0).sum()) == 24  # all of the second rollout, and six of the first
    judge.learn({key: _doubled(value) for key, value in later.items()}, workflow.policy)  # 48 steps into 30 places
    assert int((judge.get_state()["replay"][:, 0, 0] > 5.0).sum()) == 30


def _doubled(tree):
    return {key: torch.cat((x, x)) for key, x in tree.items()} if isinstance(tree, dict) else torch.cat((tree, tree))


def test_statistics_take_in_reference_and_policy_row_by_row():
    workflow, batch = make(), fixed_batch()
    workflow.update_policy(batch, phase=phase())
    assert workflow.discriminator.normalizer.count == 0
    workflow.update_discriminator(phase=phase())
    assert workflow.discriminator.normalizer.count == 2 * 16
    assert workflow.discriminator.normalizer.mean.shape == (2, 2)


def test_the_judge_has_an_optimiser_of_its_own_and_learns():
    workflow = make(judge={"learning_rate": 1e-2, "gradient_penalty": 0.1}, batch_size=64)
    workflow.update_policy(fixed_batch(), phase=phase())
    policy = [p.clone() for p in workflow.policy.parameters()]
    losses = [float(workflow.update_discriminator(phase=phase())["discriminator_loss"]) for _ in range(60)]
    assert losses[-1] < 0.5 * losses[0]
    assert all(torch.equal(a, b) for a, b in zip(policy, workflow.policy.parameters(), strict=True))


# style_reward, policy_loss, discriminator_loss and gradient_penalty of three rounds on `fixed_batch`.
GOLDEN = [
    [1.50297, -0.00315993, 0.986695, 0.0134082],
    [1.48677, -0.00299119, 0.983964, 0.00505049],
    [1.49096, -0.00278493, 0.979104, 0.00136386],
]


def golden_workflow():
    workflow = make(num_minibatches=1, judge={"learning_rate": 0.01})
    for index, parameter in enumerate([p for p in workflow.parameters() if p.ndim == 2]):
        count = torch.arange(parameter.numel(), dtype=torch.float32).view_as(parameter)
        parameter.data.copy_((count * 0.7 + index).sin() * 0.3)
    return workflow


def golden_round(workflow):
    """Update the policy, and then the judge on all of its steps and the first of the circle."""
    metrics = dict(workflow.update_policy(fixed_batch(), phase=phase()))
    reference = workflow.motions._steps[:, :16].transpose(0, 1)
    reference = torch.stack((reference[:, 0], reference[:, 1] - reference[:, 0]), 1)
    torch.manual_seed(0)
    return metrics | dict(workflow.discriminator.fit(reference))


NAMES = ("style_reward", "policy_loss", "discriminator_loss", "gradient_penalty")


def test_golden_losses():
    workflow = golden_workflow()
    for expected in GOLDEN:
        metrics = golden_round(workflow)
        assert [float(metrics[name]) for name in NAMES] == pytest.approx(expected, rel=1e-3, abs=1e-6)


def go_round(updates, seed=0):
    """Let a point learn to look like the packaged circle; return the workflow."""
    env = Reach(64, dims=2, speed=0.15)
    judge = {
        **{"key": "achieved_goal", "task_weight": 0.0, "style_weight": 1.0},
        **{"hidden_dims": [64, 32], "activation": "leaky_relu", "learning_rate": 1e-3},
    }
    options = {"gamma": 0.95, "initial_log_std": -1.0, "lr": 2e-3, "hidden": (64, 64)}
    workflow = make(env.spec, judge=judge, batch_size=256, num_envs=64, seed=seed, **options)
    collector = make_collector(env, seed)
    for _ in range(updates):
        workflow.update_policy(collect(collector, workflow, 32), phase=phase())
        for _ in range(8):
            workflow.update_discriminator(phase=phase())
    return workflow


def motion(workflow):
    """Return the mean distance from the circle and the median angle per step of the later half of greedy episodes."""
    env = Reach(128, dims=2, speed=0.15)
    obs, first, places = env.reset(7), torch.zeros(128, dtype=torch.bool), []
    for _ in range(49):
        with torch.no_grad():
            actions, _, _ = workflow.act(obs, None, is_first=first, explore=False, step=0)
        obs = env.step(actions).observations
        places.append(obs["achieved_goal"])
    x, y = torch.stack(places)[24:].unbind(-1)
    turned = torch.atan2(y, x).diff(dim=0)
    return float((x.hypot(y) - 0.5).abs().mean()), float(((turned + 3 * torch.pi) % (2 * torch.pi) - torch.pi).median())


def test_style_alone_teaches_the_motion_of_the_reference():
    off, turn = motion(go_round(20))
    assert 0.12 < turn < 0.28  # the circle turns by 0.2 a step
    assert off < 0.25  # 0.32 before


@pytest.mark.learning
@pytest.mark.parametrize("seed", range(3))
def test_the_circle_is_learned(seed):
    off, turn = motion(go_round(100, seed))
    assert 0.18 < turn < 0.22
    assert off < 0.15


def test_same_seed_same_parameters_other_seed_others():
    runs = [torch.cat([v.flatten().float() for v in go_round(2, seed).state_dict().values()]) for seed in (3, 3, 4)]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_what_does_not_fit_is_told_in_one_line():
    with pytest.raises(ConfigError, match="unknown component 'discriminator'"):
        make_ppo(SPEC, workflow_class=PPOAMP, buffers={"motions": MotionBuffer("packaged/circle")})
    with pytest.raises(ConfigError, match=r"components.discriminator: needs an extension of PPO, not MLP"):
        make_ppo(SPEC, workflow_class=PPOAMP, extensions={"discriminator": MLP(4, [8])})
    with pytest.raises(ConfigError, match="unknown buffer 'motions'"):
        make_ppo(SPEC, workflow_class=PPOAMP, extensions={"discriminator": Discriminator()})
    with pytest.raises(ConfigError, match=r"components.discriminator.key: unknown observation 'amb'"):
        make_ppo(SPEC, workflow_class=PPOAMP, extensions={"discriminator": Discriminator(key="amb")})
    with pytest.raises(LabError, match="it comes after update_policy"):
        make().update_discriminator(phase=phase())


def test_its_options_are_documented_as_those_of_ppo():
    assert meanings(PPOAMP) == meanings(PPO)
    assert "gamma" in meanings(PPOAMP)


def test_the_judge_is_saved_once():
    workflow = make()
    assert isinstance(workflow.extensions, nn.ModuleDict)
    names = [name for name in workflow.state_dict() if name.endswith("head.weight") and "policy" not in name]
    assert names == ["extensions.discriminator.head.weight"]
