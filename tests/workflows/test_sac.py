"""SAC: its losses against an independent implementation, its options one by one."""

import copy
import math

import pytest
import torch
from torch import distributions as td

from rl_lab.buffers.prioritized import PrioritizedReplayBuffer
from rl_lab.components.action_values import ValueRange
from rl_lab.components.cnn import CNN
from rl_lab.components.dict_encoder import DictEncoder
from rl_lab.components.ensemble import EnsembleMLP
from rl_lab.components.mlp import MLP
from rl_lab.core import Box, ConfigError, Discrete, EnvSpec, MultiDiscrete, Update
from rl_lab.environments.identity import Identity
from rl_lab.environments.pendulum import Pendulum
from rl_lab.orchestration.static_step import StaticSteps
from rl_lab.workflows.sac import SAC
from tests.workflows.off_policy import networks, phase, random_batch, resumes_exactly, score, start, train

torch.set_num_threads(1)
CONTINUOUS = EnvSpec("made-up", Box((3,)), Box((2,), low=-2.0, high=2.0))
DISCRETE = EnvSpec("made-up", Box((3,)), Discrete(4))


def make_sac(spec=CONTINUOUS, components=None, *, lr=1e-3, seed=0, num_envs=4, static=None, **options):
    return start(
        SAC(**options),
        spec,
        components or (lambda: networks(spec)),
        lr=lr,
        num_envs=num_envs,
        seed=seed,
        static=static,
        names=("critic", "actor") if options.get("target_entropy", "auto") is None else ("critic", "actor", "alpha"),
    )


def parameters(workflow):
    return torch.cat([p.detach().flatten() for p in workflow.parameters()])


def critic_values(critic, x):
    """Return both critics' values [2, B], member by member and layer by layer."""
    outputs = []
    for member in range(2):
        first, head = critic.trunk.layers[0], critic.head
        hidden = torch.relu(x @ first.weight[member] + first.bias[member])
        outputs.append((hidden @ head.weight[member] + head.bias[member]).squeeze(-1))
    return torch.stack(outputs)


def gaussian_policy(workflow, obs):
    mean, log_std = workflow.policy.head.layer(workflow.policy.trunk(obs)).chunk(2, -1)
    return td.TransformedDistribution(
        td.Normal(mean, log_std.clamp(-5, 2).exp()), td.transforms.TanhTransform(cache_size=1)
    )


def naive_update(workflow, batch, *, tau=0.005, reward_scale=1.0, reduction=torch.Tensor.amin):
    """One step written from the paper, with torch.distributions and torch's own Adam on a copy."""
    obs, next_obs = batch["observations"], batch["next_observations"]
    adam = {
        name: torch.optim.Adam(params, lr=1e-3)
        for name, params in {
            "critic": list(workflow.critic.parameters()),
            "actor": list(workflow.policy.parameters()),
            "alpha": [workflow.log_alpha],
        }.items()
    }
    alpha = workflow.log_alpha.exp().detach()
    with torch.no_grad():
        pi = gaussian_policy(workflow, next_obs)
        action = pi.rsample()
        log_prob = pi.log_prob(action).sum(-1)
        value = critic_values(workflow.target_critic, torch.cat([next_obs, action], -1)).amin(0) - alpha * log_prob
        target = reward_scale * batch["rewards"] + 0.99 * (~batch["terminated"]).float() * value
    unit = batch["actions"] / 2.0  # the bounds are -2 and 2
    q = critic_values(workflow.critic, torch.cat([obs, unit], -1))
    critic_loss = 0.5 * (q - target).square().mean(1).sum()
    adam["critic"].zero_grad()
    critic_loss.backward()
    adam["critic"].step()
    pi = gaussian_policy(workflow, obs)
    action = pi.rsample()
    log_prob = pi.log_prob(action).sum(-1)
    actor_loss = (alpha * log_prob - reduction(critic_values(workflow.critic, torch.cat([obs, action], -1)), 0)).mean()
    adam["actor"].zero_grad()
    actor_loss.backward()
    adam["actor"].step()
    alpha_loss = -(workflow.log_alpha.exp() * (log_prob.detach() - 2.0)).mean()  # the goal is minus two dimensions
    adam["alpha"].zero_grad()
    alpha_loss.backward()
    adam["alpha"].step()
    with torch.no_grad():
        pairs = zip(workflow.target_critic.parameters(), workflow.critic.parameters(), strict=True)
        for old, new in pairs:
            old += tau * (new - old)
    terms = {"critic_loss": critic_loss, "actor_loss": actor_loss, "entropy": -log_prob.mean()}
    return {name: float(term.detach()) for name, term in terms.items()}


@pytest.mark.parametrize(
    ("options", "naive"),
    [
        ({}, {}),
        ({"actor_reduction": "mean", "reward_scale": 5.0}, {"reduction": torch.Tensor.mean, "reward_scale": 5.0}),
    ],
)
def test_an_update_is_that_of_the_paper(options, naive):
    workflow = make_sac(**options)
    other = copy.deepcopy(make_sac(**options))
    batch = random_batch(CONTINUOUS)
    torch.manual_seed(3)
    metrics = workflow.update_agent(batch, phase=phase())
    torch.manual_seed(3)
    expected = naive_update(other, batch, **naive)
    assert {key: float(metrics[key]) for key in expected} == pytest.approx(expected, rel=1e-4)
    torch.testing.assert_close(parameters(workflow), parameters(other), atol=2e-6, rtol=1e-4)


def test_golden_losses():
    """Three updates on fixed numbers: a change that must not change computation leaves them as they are."""
    workflow, batch = make_sac(), random_batch(CONTINUOUS)
    torch.manual_seed(0)
    found = [float(workflow.update_agent(batch, phase=phase())["critic_loss"]) for _ in range(3)]
    assert found == pytest.approx(GOLDEN, rel=1e-4)


GOLDEN = [1.599062442779541, 1.767531156539917, 1.4957777261734009]


def test_discrete_values_are_exact_means():
    workflow, batch = make_sac(DISCRETE), random_batch(DISCRETE)
    rows = workflow.perception(batch, workflow.target_perception, 0.99)
    logits = workflow.policy.head.logits(workflow.policy.trunk(batch["next_observations"])).detach()
    q = workflow.target_critic(batch["next_observations"], None).amin(0)  # [B, 4]
    expected = []
    for row in range(32):
        probs = [math.exp(float(x)) for x in logits[row].log_softmax(-1)]
        value = sum(p * (float(q[row, a]) - math.log(p)) for a, p in enumerate(probs))
        expected.append(float(batch["rewards"][row]) + float(batch["discounts"][row]) * value)
    assert workflow._targets(rows).tolist() == pytest.approx(expected, rel=1e-4)


def test_discrete_target_entropy_is_near_the_largest():
    assert make_sac(DISCRETE).entropy_goal == pytest.approx(0.98 * math.log(4))
    assert make_sac().entropy_goal == -2.0
    assert make_sac(target_entropy=-0.5).entropy_goal == -0.5


@pytest.mark.parametrize(
    ("spec", "goal", "text"),
    [
        (DISCRETE, 1.4, "1.4 nats are out of reach, policies here have between 0 and 1.39"),  # log 4
        (DISCRETE, -0.1, "-0.1 nats are out of reach, policies here have between 0 and 1.39"),
        (CONTINUOUS, 1.4, "1.4 nats are out of reach, policies here have at most 1.39"),  # 2 log 2
    ],
)
def test_an_entropy_that_no_policy_has_is_refused(spec, goal, text):
    with pytest.raises(ConfigError, match=f"^algorithm.target_entropy: {text} .choices: auto, null, a number.$"):
        make_sac(spec, target_entropy=goal)


def test_a_fixed_temperature_stays():
    workflow = make_sac(target_entropy=None, initial_alpha=0.2)
    for _ in range(3):
        metrics = workflow.update_agent(random_batch(CONTINUOUS), phase=phase())
    assert float(metrics["alpha"]) == pytest.approx(0.2)


def test_the_temperature_rises_when_the_policy_is_too_narrow():
    narrow, wide = make_sac(), make_sac()
    with torch.no_grad():  # of two actions of standard deviation e^-3: -3.2 nats, the goal is -2
        narrow.policy.head.layer.bias[2:] = -3.0
    for workflow in (narrow, wide):
        for _ in range(3):
            workflow.update_agent(random_batch(CONTINUOUS), phase=phase())
    assert narrow.log_alpha.item() > 0.0 > wide.log_alpha.item()


def test_all_learning_rates_fall_to_0_at_the_end_of_the_phase():
    workflow, batch = make_sac(learning_rate_schedule="linear", lr=0.01), random_batch(CONTINUOUS)
    learnt = {"critic": workflow.critic, "actor": workflow.policy, "alpha": workflow}
    moves = {name: [] for name in learnt}
    for progress in (0.0, 0.5, 0.75, 1.0):
        before = {name: trained_of(name, module) for name, module in learnt.items()}
        metrics = workflow.update_agent(batch, phase=phase(progress))
        assert metrics["learning_rate"] == pytest.approx(0.01 * (1.0 - progress))
        for name, module in learnt.items():
            moves[name].append(float((trained_of(name, module) - before[name]).abs().max()))
    # Adam's steps on one batch again and again are about as long as its learning rate.
    assert all(moved == pytest.approx([0.01, 0.005, 0.0025, 0.0], rel=0.2) for moved in moves.values())
    assert "learning_rate" not in make_sac().update_agent(batch, phase=phase(0.5))


def trained_of(name, module):
    """Return the parameters that the optimiser of this name changes."""
    own = [module.log_alpha] if name == "alpha" else list(module.parameters())
    return torch.cat([parameter.detach().flatten() for parameter in own]).clone()


def test_only_every_delayed_update_moves_the_policy():
    workflow = make_sac(policy_delay=3)
    before = [p.clone() for p in workflow.policy.parameters()]
    moved = []
    for _ in range(6):
        workflow.update_agent(random_batch(CONTINUOUS), phase=phase())
        now = [p.detach().clone() for p in workflow.policy.parameters()]
        moved.append(any(not torch.equal(a, b) for a, b in zip(now, before, strict=True)))
        before = now
    assert moved == [False, False, True, False, False, True]


def test_random_subsets_take_the_lowest_of_as_many():
    workflow = make_sac(components=lambda: networks(CONTINUOUS, num_members=10), subset_size=2)
    outputs = torch.arange(10.0).view(10, 1).expand(10, 4000)
    lowest = torch.stack([workflow._lowest(outputs)[0] for _ in range(3000)])
    # the lowest of 2 of 0..9 without replacement is 3 on average: sum over k of k * (9 - k) / 45
    assert float(lowest.mean()) == pytest.approx(sum(k * (9 - k) / 45 for k in range(10)), abs=0.15)
    with pytest.raises(ConfigError, match=r"algorithm\.subset_size: 3 of 2 critics"):
        make_sac(subset_size=3)


def test_distributional_critics_agree_with_plain_ones_on_a_point_mass():
    workflow = make_sac(value_range=ValueRange(-10.0, 10.0, 201))
    batch = random_batch(CONTINUOUS)
    rows = workflow.perception(batch, workflow.target_perception, 0.99)
    torch.manual_seed(1)
    target = workflow._targets(rows)  # [B, atoms]
    torch.manual_seed(1)
    latents, log_prob = workflow.policy(rows.next_features, None).draw()
    outputs = workflow.target_critic(rows.next_features, torch.tanh(latents))
    value = (outputs.softmax(-1) * torch.linspace(-10, 10, 201)).sum(-1).amin(0)
    mean = (target * torch.linspace(-10, 10, 201)).sum(-1)
    torch.testing.assert_close(target.sum(-1), torch.ones(32))
    assert ((mean - batch["rewards"] - batch["discounts"] * (value - log_prob)).abs() < 1.5).all()  # atoms end at 10
    before = float(workflow.update_agent(batch, phase=phase())["critic_loss"])
    for _ in range(50):
        after = float(workflow.update_agent(batch, phase=phase())["critic_loss"])
    assert after < before


def test_priorities_are_the_temporal_differences():
    workflow, batch = make_sac(), random_batch(CONTINUOUS)
    batch["weights"] = torch.linspace(0.1, 1.0, 32)
    rows = workflow.perception(batch, workflow.target_perception, 0.99)
    torch.manual_seed(2)
    expected = (workflow.critic(batch["observations"], batch["actions"] / 2) - workflow._targets(rows)).abs().mean(0)
    torch.manual_seed(2)
    update = workflow.update_agent(batch, phase=phase())
    assert isinstance(update, Update)
    torch.testing.assert_close(update.write_back["priorities"], expected.detach())


def test_importance_weights_do_not_scale_the_entropy():
    """Weights are at most 1 in a batch: what they are on average says nothing of how narrow the policy is."""
    plain, weighted, batch = make_sac(), make_sac(), random_batch(CONTINUOUS)
    for workflow in (plain, weighted):
        with torch.no_grad():  # of two actions of standard deviation e^-3: -3.2 nats, the goal is -2
            workflow.policy.head.layer.bias[2:] = -3.0
    torch.manual_seed(5)
    alone = plain.update_agent(batch, phase=phase())
    torch.manual_seed(5)
    update = weighted.update_agent({**batch, "weights": torch.full((32,), 0.25)}, phase=phase())
    assert float(update.metrics["entropy"]) == pytest.approx(float(alone["entropy"]), rel=1e-5)
    assert plain.log_alpha.item() > 0.0
    assert weighted.log_alpha.item() == pytest.approx(plain.log_alpha.item(), rel=1e-4)


def test_the_entropy_is_the_mean_by_importance_weights():
    workflow, batch, weights = make_sac(), random_batch(CONTINUOUS), torch.linspace(0.02, 1.0, 32)
    drawn = []
    draw = type(workflow.policy(batch["observations"], None)).draw
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rl_lab.ops.distributions.SquashedGaussian.draw", lambda pi: drawn.append(draw(pi)) or drawn[-1])
        update = workflow.update_agent({**batch, "weights": weights}, phase=phase())
    log_prob = drawn[-1][1].tolist()  # the targets draw before the policy
    expected = -sum(w * x for w, x in zip(weights.tolist(), log_prob, strict=True)) / sum(weights.tolist())
    assert float(update.metrics["entropy"]) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "mixture", "num_components": 3},
        {"policy": "flow", "num_flow_layers": 2},
        {"normalize_observations": True, "max_grad_norm": 0.5},
        {"value_range": ValueRange(-5.0, 5.0, 11)},
    ],
)
def test_every_policy_and_option_is_deterministic_and_changes_all_parameters(options):
    def run():
        workflow = make_sac(**options)
        before = copy.deepcopy(dict(workflow.named_parameters()))
        for seed in range(3):
            workflow.update_agent(random_batch(CONTINUOUS, seed=seed), phase=phase())
        for name, parameter in workflow.named_parameters():
            assert not torch.equal(parameter, before[name]), name
        return parameters(workflow)

    assert torch.equal(run(), run())


@torch.no_grad()
def test_random_steps_are_uniform_and_within_bounds():
    workflow = make_sac(random_steps=100)
    is_first = torch.ones(2000, dtype=torch.bool)
    obs = torch.zeros(2000, 3)
    actions, _, _ = workflow.act(obs, None, is_first=is_first, explore=True, step=99)
    assert float(actions.std()) == pytest.approx(4 / math.sqrt(12), rel=0.05)
    after, _, _ = workflow.act(obs, None, is_first=is_first, explore=True, step=100)
    greedy, _, _ = workflow.act(obs, None, is_first=is_first, explore=False, step=0)
    assert float(after.abs().max()) <= 2.0
    assert float(greedy.std()) < 1e-4


def test_images_and_dicts_are_read_by_encoders():
    spec = EnvSpec(
        "made-up", {"pixels": Box((3, 36, 36), dtype=torch.uint8), "speed": Box((2,))}, Box((1,), low=-1.0, high=1.0)
    )

    def components():
        cnn = CNN((3, 36, 36), (4, 4, 4), output_dim=8)
        return {
            "encoder": DictEncoder({"pixels": cnn, "speed": MLP(2, (4,))}),
            "actor": MLP(12, (16,), "relu"),
            "critic": EnsembleMLP(13, (16,)),
        }

    workflow = make_sac(spec, components, image_shift=4)
    pixels = torch.randint(0, 255, (8, 3, 36, 36), dtype=torch.uint8)
    obs = {"pixels": pixels, "speed": torch.randn(8, 2)}
    batch = random_batch(EnvSpec("x", Box((1,)), spec.action), 8) | {"observations": obs, "next_observations": obs}
    before = workflow.perception.encoder.encoders["pixels"].head[0].weight.clone()
    workflow.update_agent(batch, phase=phase())
    assert not torch.equal(before, workflow.perception.encoder.encoders["pixels"].head[0].weight)
    assert not torch.equal(before, workflow.target_perception.encoder.encoders["pixels"].head[0].weight)


def test_compiled_and_eager_updates_agree():
    options = {"learning_rate_schedule": "linear"}
    eager, compiled = make_sac(**options), make_sac(static=StaticSteps("compiled"), **options)
    for seed in range(3):
        batch = random_batch(CONTINUOUS, seed=seed)
        torch.manual_seed(seed)
        one = eager.update_agent(batch, phase=phase(seed / 4))
        torch.manual_seed(seed)
        other = compiled.update_agent(batch, phase=phase(seed / 4))
        assert {k: float(v) for k, v in one.items()} == pytest.approx({k: float(v) for k, v in other.items()}, rel=1e-3)
    torch.testing.assert_close(parameters(eager), parameters(compiled), atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            EnvSpec("x", Box((3,)), MultiDiscrete((2, 2))),
            r"SAC does not take the multi-discrete .*\(fitting: BehaviorCloning, Dreamer, PPO, PPOAMP, ",
        ),
        (EnvSpec("x", Box((3,)), Box((2,))), "SAC needs finite action bounds"),
        (EnvSpec("x", Box((3,)), Box((0,), low=-1.0, high=1.0)), "have no dimension"),
    ],
)
def test_actions_that_do_not_fit_are_refused(spec, message):
    with pytest.raises(ConfigError, match=message):
        make_sac(spec, lambda: networks(CONTINUOUS))


@pytest.mark.parametrize(
    ("task", "options", "threshold"),
    [
        ({"kind": "continuous", "sizes": (1, 1)}, {}, 0.97),
        ({"kind": "continuous", "sizes": (1,)}, {"policy": "mixture"}, 0.95),
        ({"kind": "continuous", "sizes": (1, 1)}, {"policy": "flow"}, 0.95),
        ({"kind": "discrete", "sizes": (4,)}, {"target_entropy": 0.1}, 0.95),
        ({"kind": "discrete", "sizes": (6,), "masked": True}, {"target_entropy": 0.1}, 0.95),
    ],
)
def test_identity_is_learned(task, options, threshold):
    env = Identity(8, **task)
    workflow = make_sac(
        env.spec, lambda: networks(env.spec, (32, 32)), num_envs=8, lr=3e-3, tau=0.02, random_steps=256, **options
    )
    train(workflow, env, env_steps=4_800, updates_per_step=0.125)
    assert score(workflow, Identity(8, **task)) > threshold


@pytest.mark.parametrize("buffer", [None, PrioritizedReplayBuffer])
def test_pendulum_gets_better(buffer):
    env = Pendulum(8)
    workflow = make_sac(env.spec, lambda: networks(env.spec, (64, 64)), num_envs=8, lr=2e-3, tau=0.01, gamma=0.95)
    before = score(workflow, Pendulum(8))
    made = None if buffer is None else buffer(100_000, 64, num_envs=8, spec=env.spec, gamma=0.95)
    train(workflow, env, env_steps=8_000, updates_per_step=0.25, buffer=made)
    assert score(workflow, Pendulum(8)) > before + 2.0  # rewards per step, from about -6 to about -1


def test_a_stopped_compiled_run_goes_on_exactly(tmp_path):
    options = ["+experiment=sac_pendulum", "experiment.compile=compiled", "components.actor.hidden_dims=[16]"]
    assert resumes_exactly([*options, "components.critic.hidden_dims=[16]"], tmp_path, stop_at=150)


@pytest.mark.parametrize("stop_at", [37, 150])
@pytest.mark.parametrize(
    "extra",
    [[], ["environment.num_envs=4", "algorithm.policy_delay=3"], ["buffer@buffers.replay=prioritized"]],
    ids=["plain", "delayed", "prioritized"],
)
def test_a_stopped_run_goes_on_exactly(extra, stop_at, tmp_path):
    assert resumes_exactly(["+experiment=sac_pendulum", *extra], tmp_path, stop_at=stop_at)
