"""DQN: its losses against an independent implementation, its options one by one."""

import copy
import math

import pytest
import torch
from torch.nn import functional as F

from rl_lab.buffers.prioritized import PrioritizedReplayBuffer
from rl_lab.components.action_values import ValueRange
from rl_lab.components.cnn import CNN
from rl_lab.components.dict_encoder import DictEncoder
from rl_lab.components.ensemble import EnsembleMLP
from rl_lab.components.mlp import MLP
from rl_lab.core import ACTION_MASK, Box, ConfigError, Discrete, EnvSpec, MultiDiscrete, Update, flat_dim
from rl_lab.environments.identity import Identity
from rl_lab.orchestration.static_step import StaticSteps
from rl_lab.workflows.dqn import DQN
from tests.workflows.off_policy import phase, random_batch, start

torch.set_num_threads(1)
SPEC = EnvSpec("made-up", Box((3,)), Discrete(4))
ATOMS = ValueRange(-4.0, 4.0, 9)
RAINBOW = {"double": True, "dueling": True, "noisy": True, "distribution": "categorical", "value_range": ATOMS}


def networks(spec, hidden=(16,)):
    return {"critic": MLP(flat_dim(spec.observation), hidden, "relu")}


def make_dqn(spec=SPEC, components=None, *, seed=0, static=None, num_envs=4, lr=1e-3, **options):
    made = components or (lambda: networks(spec))
    return start(DQN(**options), spec, made, lr=lr, names=("critic",), seed=seed, static=static, num_envs=num_envs)


def parameters(workflow):
    return torch.cat([p.detach().flatten() for p in workflow.parameters()])


def with_other_target(workflow):
    """Move the target network away from the critic, so that it matters who is asked."""
    torch.manual_seed(7)
    for parameter in workflow.target_critic.parameters():
        parameter.add_(0.5 * torch.randn_like(parameter))
    return workflow


def q_values(critic, x):
    """Return the values of a plain critic, layer by layer."""
    first = critic.trunk[0]
    hidden = torch.relu(x @ first.weight.T + first.bias)
    return hidden @ critic.head.weight.T + critic.head.bias


def targets_of(workflow, batch):
    rows = workflow.perception(batch, workflow.target_perception, workflow.gamma)
    return workflow._soft_targets(rows, batch) if workflow.munchausen else workflow._targets(rows)


@pytest.mark.parametrize("double", [False, True])
def test_targets_by_hand(double):
    workflow, batch = with_other_target(make_dqn(double=double)), random_batch(SPEC)
    online = q_values(workflow.critic, batch["next_observations"]).tolist()
    target = q_values(workflow.target_critic, batch["next_observations"]).tolist()
    expected = []
    for row in range(32):
        judge = online[row] if double else target[row]
        best = max(range(4), key=lambda action: judge[action])
        discount = 0.0 if bool(batch["terminated"][row]) else 0.99
        expected.append(float(batch["rewards"][row]) + discount * target[row][best])
    assert targets_of(workflow, batch).tolist() == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_munchausen_targets_by_hand():
    workflow = with_other_target(make_dqn(munchausen=True, munchausen_tau=0.3, munchausen_clip=-0.5))
    batch = random_batch(SPEC)
    now = q_values(workflow.target_critic, batch["observations"]).tolist()
    then = q_values(workflow.target_critic, batch["next_observations"]).tolist()

    def policy(values):
        weights = [math.exp((v - max(values)) / 0.3) for v in values]
        return [w / sum(weights) for w in weights]

    expected, clipped = [], 0
    for row in range(32):
        log_prob = 0.3 * math.log(policy(now[row])[int(batch["actions"][row])])
        clipped += log_prob < -0.5
        bonus = 0.9 * min(max(log_prob, -0.5), 0.0)
        value = sum(p * (q - 0.3 * math.log(p)) for p, q in zip(policy(then[row]), then[row], strict=True))
        discount = 0.0 if bool(batch["terminated"][row]) else 0.99
        expected.append(float(batch["rewards"][row]) + bonus + discount * value)
    assert 0 < clipped < 32
    assert targets_of(workflow, batch).tolist() == pytest.approx(expected, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("munchausen", [False, True])
@pytest.mark.parametrize(
    "options",
    [{"distribution": "quantile", "num_quantiles": 5}, {"distribution": "categorical", "value_range": ATOMS}],
    ids=["quantile", "categorical"],
)
def test_the_mean_of_a_distribution_of_targets_is_the_plain_target(options, munchausen):
    workflow = with_other_target(make_dqn(munchausen=munchausen, munchausen_tau=0.3, **options))
    batch = random_batch(SPEC)
    critic = workflow.target_critic
    now, then = (critic.values(critic(batch[key])) for key in ("observations", "next_observations"))
    if munchausen:
        log_pi = (then / 0.3).log_softmax(-1)
        bonus = 0.3 * (now / 0.3).log_softmax(-1)[torch.arange(32), batch["actions"]]
        value = (log_pi.exp() * (then - 0.3 * log_pi)).sum(-1)
        expected = batch["rewards"] + 0.9 * bonus.clamp(-1.0, 0.0) + batch["discounts"] * value
    else:
        expected = batch["rewards"] + batch["discounts"] * then.amax(-1)
    targets = targets_of(workflow, batch)
    assert targets.shape == (32, 5 if "num_quantiles" in options else 9)
    if "num_quantiles" in options:
        torch.testing.assert_close(targets.mean(-1), expected)
        return
    torch.testing.assert_close(targets.sum(-1), torch.ones(32))
    inside = targets[:, [0, -1]].amax(-1) < 1e-6  # where no mass was cut off at the ends the mean is exact
    means = (targets * torch.linspace(-4.0, 4.0, 9)).sum(-1)
    assert inside.sum() > 3
    torch.testing.assert_close(means[inside], expected[inside], atol=1e-3, rtol=1e-3)


def naive_update(workflow, batch, adam, *, loss, max_norm=0.7, tau=0.01):
    """One double-DQN step with importance weights, written from the papers with torch's own Adam."""
    with torch.no_grad():
        best = q_values(workflow.critic, batch["next_observations"]).argmax(-1)
        value = q_values(workflow.target_critic, batch["next_observations"])[torch.arange(32), best]
        target = batch["rewards"] + 0.99 * (~batch["terminated"]).float() * value
    q = q_values(workflow.critic, batch["observations"])[torch.arange(32), batch["actions"]]
    error = loss(q, target, reduction="none")
    total = (batch["weights"] * error).mean()
    adam.zero_grad()
    total.backward()
    torch.nn.utils.clip_grad_norm_(workflow.critic.parameters(), max_norm)
    adam.step()
    with torch.no_grad():
        for old, new in zip(workflow.target_critic.parameters(), workflow.critic.parameters(), strict=True):
            old += tau * (new - old)
    return float(total.detach()), (q - target).abs().detach()


@pytest.mark.parametrize(("name", "loss"), [("huber", F.smooth_l1_loss), ("mse", F.mse_loss)])
def test_updates_are_those_of_the_papers(name, loss):
    options = {"double": True, "tau": 0.01, "target_update_every": 1, "max_grad_norm": 0.7, "loss": name}
    workflow = with_other_target(make_dqn(**options))
    other = copy.deepcopy(workflow)
    adam = torch.optim.Adam(other.critic.parameters(), lr=1e-3)
    for seed in range(3):
        batch = random_batch(SPEC, seed=seed) | {"weights": torch.rand(32) + 0.1}
        metrics, write_back = workflow.update_agent(batch, phase=phase())
        expected, errors = naive_update(other, batch, adam, loss=loss)
        assert float(metrics["critic_loss"]) == pytest.approx(expected, rel=1e-4)
        torch.testing.assert_close(write_back["priorities"], errors, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(parameters(workflow), parameters(other), atol=1e-5, rtol=1e-3)


def fixed_batch():
    grid = torch.arange(96, dtype=torch.float32).view(32, 3)
    index = torch.arange(32)
    return {
        "observations": grid.mul(0.37).sin(),
        "next_observations": grid.mul(0.37).add(0.2).sin(),
        "actions": index * 7 % 4,
        "rewards": index.mul(0.11).cos(),
        "discounts": 0.99 * (index % 5 != 4).float(),
    }


GOLDEN = {  # critic_loss of three updates on `fixed_batch`, computed in float64 from the formulas of the papers
    "plain": [0.337203, 0.325796, 0.326647],
    "categorical": [2.174327, 2.15205, 2.134167],
    "quantile": [1.365601, 1.291514, 1.208815],
    "munchausen": [0.301625, 0.295077, 0.290683],
}
OPTIONS = {
    "plain": {"double": True, "dueling": True},
    "categorical": {"distribution": "categorical", "value_range": ATOMS},
    "quantile": {"distribution": "quantile", "num_quantiles": 8},
    "munchausen": {"munchausen": True},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_golden_losses(name):
    """Fixed parameters and fixed numbers: a change that must not change computation leaves them as they are."""
    workflow = make_dqn(lr=0.01, target_update_every=2, **OPTIONS[name])
    for network in (workflow.critic, workflow.target_critic):
        for parameter in network.parameters():
            count = torch.arange(parameter.numel(), dtype=torch.float32).view_as(parameter)
            parameter.data.copy_(count.mul(0.7).sin() * 0.3)
    found = [float(workflow.update_agent(fixed_batch(), phase=phase())["critic_loss"]) for _ in range(3)]
    assert found == pytest.approx(GOLDEN[name], rel=1e-4)


def test_epsilon_falls_along_a_line():
    workflow = make_dqn(epsilon_start=0.9, epsilon_end=0.1, epsilon_steps=1000, random_steps=100)
    assert [workflow.epsilon(step) for step in (0, 99, 100, 500, 1000, 9999)] == pytest.approx(
        [1.0, 1.0, 0.82, 0.5, 0.1, 0.1]
    )
    noisy = make_dqn(noisy=True, random_steps=100)
    assert [noisy.epsilon(step) for step in (99, 100)] == [1.0, 0.0]
    noisy.counters.env_steps = 99
    assert noisy.update_agent(random_batch(SPEC), phase=phase())["epsilon"] == 1.0


def test_the_learning_rate_falls_to_0_at_the_end_of_the_phase():
    workflow, batch = make_dqn(learning_rate_schedule="linear", lr=0.01), random_batch(SPEC)
    moves = []
    for progress in (0.0, 0.5, 0.75, 1.0):
        twin = copy.deepcopy(workflow.critic)
        metrics = workflow.update_agent(batch, phase=phase(progress))
        assert metrics["learning_rate"] == pytest.approx(0.01 * (1.0 - progress))
        pairs = zip(workflow.critic.parameters(), twin.parameters(), strict=True)
        moves.append(max(float((new - old).detach().abs().max()) for new, old in pairs))
    # Adam's steps on one batch again and again are about as long as its learning rate.
    assert moves == pytest.approx([0.01, 0.005, 0.0025, 0.0], rel=0.1)
    constant = make_dqn(lr=0.01)
    assert constant.update_agent(batch, phase=phase(0.5))["learning_rate"] == 0.01
    assert constant.critics.optimizer.param_groups[0]["lr"] == 0.01


def act(workflow, obs, *, explore, step=10**9):
    rows = len(next(iter(obs.values()))) if isinstance(obs, dict) else len(obs)
    with torch.inference_mode():
        return workflow.act(obs, None, is_first=torch.ones(rows, dtype=torch.bool), explore=explore, step=step)[0]


def test_evaluation_is_greedy_or_nearly_so():
    obs = torch.randn(1, 3).expand(5000, 3)
    greedy = act(make_dqn(), obs, explore=False)
    assert len(set(greedy.tolist())) == 1
    nearly = act(make_dqn(epsilon_eval=0.2), obs, explore=False)
    assert float((nearly != greedy).float().mean()) == pytest.approx(0.15, abs=0.02)  # a quarter hits the best one
    explored = act(make_dqn(epsilon_end=0.4), obs, explore=True)
    assert float((explored != greedy).float().mean()) == pytest.approx(0.3, abs=0.02)
    workflow = make_dqn()
    state = torch.get_rng_state()
    act(workflow, obs, explore=False)
    act(workflow, obs[:2], explore=False)
    assert torch.equal(torch.get_rng_state(), state)  # nothing was drawn


def test_noisy_networks_evaluate_by_their_means():
    workflow, obs = make_dqn(noisy=True), torch.randn(300, 3)
    means = copy.deepcopy(workflow.critic).eval()(obs).argmax(-1)
    assert torch.equal(act(workflow, obs, explore=False), means)
    assert not torch.equal(act(workflow, obs, explore=True), means)


@pytest.mark.parametrize("options", [{}, {"noisy": True}, {"epsilon_eval": 0.5}])
@pytest.mark.parametrize("num_envs", [4, 64])
def test_forbidden_actions_are_never_taken(options, num_envs):
    env = Identity(num_envs, kind="discrete", sizes=(6,), masked=True)
    workflow = make_dqn(env.spec, num_envs=num_envs, random_steps=5, **options)
    obs = env.reset(0)
    for step in range(60):
        obs = env.step(act(workflow, obs, explore=step < 40, step=step)).observations
    assert int(env.forbidden.sum()) == 0


@pytest.mark.parametrize("options", [{}, {"double": True}, {"munchausen": True}])
def test_targets_do_not_look_at_forbidden_actions(options):
    spec = EnvSpec("x", {"observation": Box((3,)), ACTION_MASK: Box((4,), dtype=torch.bool)}, Discrete(4))
    workflow = with_other_target(make_dqn(spec, **options))
    mask = torch.tensor([True, True, False, True])
    batch = random_batch(SPEC)
    batch |= {"actions": batch["actions"] % 2}
    for key in ("observations", "next_observations"):
        batch[key] = {"observation": batch[key], ACTION_MASK: mask.expand(32, 4)}
    before = targets_of(workflow, batch)
    for critic in (workflow.critic, workflow.target_critic):
        critic.head.bias.data[2] += 1000.0
    torch.testing.assert_close(targets_of(workflow, batch), before, atol=1e-4, rtol=1e-4)
    assert torch.isfinite(workflow.update_agent(batch, phase=phase())["critic_loss"])


def test_the_target_is_copied_every_so_many_updates():
    workflow = make_dqn(target_update_every=3)
    copied = []
    for seed in range(7):
        workflow.update_agent(random_batch(SPEC, seed=seed), phase=phase())
        pairs = zip(workflow.critic.parameters(), workflow.target_critic.parameters(), strict=True)
        copied.append(all(torch.equal(a, b) for a, b in pairs))
    assert copied == [False, False, True, False, False, True, False]


@pytest.mark.parametrize("n_step", [1, 3])
def test_priorities_are_the_errors_and_are_drawn_by(n_step):
    buffer = PrioritizedReplayBuffer(512, 32, spec=SPEC, n_step=n_step, gamma=0.9)
    for seed in range(4):
        rows = random_batch(SPEC, seed=seed)
        rows["final_observations"] = rows.pop("next_observations")
        del rows["discounts"]
        buffer.add({key: value.unsqueeze(1) for key, value in rows.items()} | {"is_first": torch.zeros(32, 1).bool()})
    workflow = with_other_target(make_dqn(gamma=0.9))
    batch = buffer.sample()
    q = q_values(workflow.critic, batch["observations"])[torch.arange(32), batch["actions"]]
    value = q_values(workflow.target_critic, batch["next_observations"]).amax(-1)
    errors = (q - batch["rewards"] - batch["discounts"] * value).abs().detach()
    update = workflow.update_agent(batch, phase=phase())
    assert isinstance(update, Update)
    torch.testing.assert_close(update.write_back["priorities"], errors)
    buffer.write_back(update.write_back)
    expected = {int(i): float(e) for i, e in zip(batch["indices"], errors, strict=True)}
    tree = buffer._chances.refreshed(128)
    found = {index: float(tree.leaves[index]) for index in expected}
    assert found == pytest.approx(
        {i: (e + 1e-6) ** buffer._draws._priority.alpha for i, e in expected.items()}, rel=1e-4
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"double": True, "dueling": True, "max_grad_norm": 0.5, "normalize_observations": True},
        {"distribution": "quantile", "num_quantiles": 5, "noisy": True},
        {"munchausen": True, "distribution": "quantile", "num_quantiles": 5},
        RAINBOW,
    ],
)
def test_every_option_is_deterministic_and_changes_all_parameters(options):
    def run():
        workflow = make_dqn(**options, tau=0.5, target_update_every=1)
        before = copy.deepcopy(dict(workflow.named_parameters()))
        for seed in range(3):
            workflow.update_agent(random_batch(SPEC, 128, seed=seed), phase=phase())
        for name, parameter in workflow.named_parameters():
            assert not torch.equal(parameter, before[name]), name
        return parameters(workflow)

    assert torch.equal(run(), run())


def test_metrics_are_detached_scalars():
    metrics = make_dqn().update_agent(random_batch(SPEC), phase=phase())
    assert set(metrics) == {"critic_loss", "critic_grad_norm", "q", "epsilon", "learning_rate"}
    assert all(not v.requires_grad and v.ndim == 0 for v in metrics.values() if isinstance(v, torch.Tensor))


@pytest.mark.parametrize("munchausen", [False, True])
def test_images_and_dicts_are_read_by_encoders(munchausen):
    spec = EnvSpec("x", {"pixels": Box((3, 36, 36), dtype=torch.uint8), "speed": Box((2,))}, Discrete(3))

    def components():
        cnn = CNN((3, 36, 36), (4, 4, 4), output_dim=8)
        encoder = DictEncoder({"pixels": cnn, "speed": MLP(2, (4,))})
        return {"encoder": encoder, "critic": MLP(12, (16,), "relu"), "value": MLP(12, (8,), "relu")}

    workflow = make_dqn(spec, components, dueling=True, image_shift=2, munchausen=munchausen, target_update_every=1)
    obs = {"pixels": torch.randint(0, 255, (8, 3, 36, 36), dtype=torch.uint8), "speed": torch.randn(8, 2)}
    batch = random_batch(EnvSpec("x", Box((1,)), spec.action), 8) | {"observations": obs, "next_observations": obs}
    before = workflow.target_perception.encoder.encoders["pixels"].head[0].weight.clone()
    workflow.update_agent(batch, phase=phase())
    assert not torch.equal(before, workflow.target_perception.encoder.encoders["pixels"].head[0].weight)
    assert act(workflow, obs, explore=False).shape == (8,)


def test_compiled_and_eager_updates_agree():
    options = {"double": True, "dueling": True, "distribution": "quantile", "num_quantiles": 5, "tau": 0.1}
    eager, compiled = (
        make_dqn(static=static, target_update_every=1, max_grad_norm=0.5, learning_rate_schedule="linear", **options)
        for static in (None, StaticSteps("compiled"))
    )
    for seed in range(3):
        batch, now = random_batch(SPEC, seed=seed), phase(seed / 4)
        one, other = (workflow.update_agent(batch, phase=now) for workflow in (eager, compiled))
        assert {k: float(v) for k, v in one.items()} == pytest.approx({k: float(v) for k, v in other.items()}, rel=1e-3)
    torch.testing.assert_close(parameters(eager), parameters(compiled), atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (EnvSpec("x", Box((3,)), Box((2,), low=-1.0, high=1.0)), r"DQN does not take the continuous .*SAC, SQL, TD3"),
        (
            EnvSpec("x", Box((3,)), MultiDiscrete((2, 2))),
            r"DQN does not take the multi-discrete .*\(fitting: BehaviorCloning, Dreamer, PPO, PPOAMP, ",
        ),
    ],
)
def test_actions_that_do_not_fit_are_refused(spec, message):
    with pytest.raises(ConfigError, match=message):
        make_dqn(spec)


def test_options_that_do_not_go_together_are_refused():
    with pytest.raises(ConfigError, match=r"algorithm\.double"):
        make_dqn(double=True, munchausen=True)
    with pytest.raises(ConfigError, match=r"algorithm\.value_range"):
        make_dqn(distribution="categorical")


@pytest.mark.parametrize(
    ("components", "message"),
    [
        ({"critic": EnsembleMLP(3, (16,))}, r"^components\.critic: needs one network \(such as MLP\), not an Ens"),
        ({"value": EnsembleMLP(3, (16,))}, r"^components\.value: needs one network"),
        ({"value": MLP(5, (16,))}, r"^components\.value\.input_dim: must be 3 \(3 features\), not 5$"),
        ({"critic": MLP(5, (16,))}, r"^components\.critic\.input_dim: must be 3 \(3 features\), not 5$"),
    ],
)
def test_networks_that_do_not_fit_are_refused(components, message):
    with pytest.raises(ConfigError, match=message):
        make_dqn(components=lambda: networks(SPEC) | components, dueling=True)
