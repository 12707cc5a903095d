"""Mirror images: gradients against those of both batches, what is refused, and a policy that is its own image."""

from functools import partial

import pytest
import torch

from rl_lab.components.dict_encoder import DictEncoder
from rl_lab.components.mlp import MLP
from rl_lab.components.recurrent import GRU
from rl_lab.components.symmetry import Symmetry
from rl_lab.core import Box, ConfigError, Discrete, EnvSpec, Mirror
from rl_lab.environments.pendulum import MIRROR, Pendulum
from tests.workflows.parts import make_ppo, parameters, phase, train

torch.set_num_threads(1)
ONE = {"num_epochs": 1, "num_minibatches": 1, "normalize_advantages": "none"}
# Two legs: forward speed, sideways speed, then the joints of the left and of the right leg.
LEGS = [(0, 1.0), (1, -1.0), (3, -1.0), (2, -1.0)]
LEGGED = EnvSpec(
    "legs",
    {"actor": Box((4,)), "critic": Box((2, 2))},
    Box((2,), low=-1.0, high=1.0),
    mirror=Mirror({"actor": LEGS, "critic": LEGS}, [(1, -1.0), (0, -1.0)]),
)


def legged_parts():
    torch.manual_seed(0)
    return {key: DictEncoder({key: MLP(4, [8])}) for key in ("actor", "critic")}


def legged_batch(steps=6, num_envs=5):
    torch.manual_seed(1)
    draw = partial(torch.randn, steps, num_envs)
    return {
        "observations": {"actor": draw(4), "critic": draw(2, 2)},
        "final_observations": {"actor": draw(4), "critic": draw(2, 2)},
        "latents": draw(2),
        "actions": draw(2).clamp(-1, 1),
        "rewards": draw(),
        "terminated": torch.rand(steps, num_envs) < 0.1,
        "truncated": torch.zeros(steps, num_envs, dtype=torch.bool),
        "is_first": torch.zeros(steps, num_envs, dtype=torch.bool),
    }


def seen_in_the_mirror(obs):
    """Return the mirror image, entry by entry."""

    def image(x):
        return torch.stack([x[..., 0], -x[..., 1], -x[..., 3], -x[..., 2]], -1)

    critic = image(obs["critic"].flatten(-2)).unflatten(-1, (2, 2))
    return {"actor": image(obs["actor"]), "critic": critic}


def gradient(workflow, minibatch):
    workflow._differentiate(minibatch)
    return workflow.networks.tensor.grad.clone()


def test_augmented_gradient_is_the_mean_of_both_batches():
    batch, options = legged_batch(), {**ONE, "entropy_coef": 0.02, "max_grad_norm": None}
    ours = make_ppo(LEGGED, legged_parts(), extensions={"symmetry": Symmetry()}, num_envs=5, **options)
    plain = make_ppo(LEGGED, legged_parts(), num_envs=5, **options)
    for workflow in (ours, plain):
        torch.manual_seed(3)
        for parameter in workflow.policy.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    rollout, _ = plain._evaluate(batch)
    shift = torch.randn(len(rollout["values"]))
    rollout["log_probs"] = rollout["log_probs"] + 0.1 * shift  # as if the policy had moved: some ratios are clipped
    there, _ = plain._evaluate(batch | {"observations": seen_in_the_mirror(batch["observations"])})
    image = {**rollout, "inputs": there["inputs"], "latents": -batch["latents"].flatten(0, 1).flip(-1)}
    mean = 0.5 * (gradient(plain, rollout) + gradient(plain, image))
    mirrored, _ = ours._evaluate(batch)
    mirrored["log_probs"] = rollout["log_probs"]
    torch.testing.assert_close(gradient(ours, mirrored), mean, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(mean, gradient(plain, rollout), rtol=1e-2)


def test_mirror_loss_is_the_squared_difference_of_the_means():
    batch, options = legged_batch(), {**ONE, "max_grad_norm": None}
    mirror = {"symmetry": Symmetry(augment=False, loss_coef=0.7)}
    ours = make_ppo(LEGGED, legged_parts(), extensions=mirror, num_envs=5, **options)
    plain = make_ppo(LEGGED, legged_parts(), num_envs=5, **options)
    plain.policy.load_state_dict(ours.policy.state_dict())
    actor, head = plain.policy.actor, plain.policy.head
    obs = {key: value.flatten(0, 1) for key, value in batch["observations"].items()}
    here, there = (head.mean(actor(x)) for x in (obs, seen_in_the_mirror(obs)))
    loss = 0.7 * (here - torch.stack([-there[:, 1], -there[:, 0]], -1)).square().mean()
    parts = torch.autograd.grad(loss, plain.networks.parts, materialize_grads=True)
    extra = torch.cat([part.flatten() for part in parts])
    expected = gradient(plain, plain._evaluate(batch)[0]) + extra
    torch.testing.assert_close(gradient(ours, ours._evaluate(batch)[0]), expected, rtol=1e-4, atol=1e-6)
    assert extra.abs().max() > 1e-4


def test_the_kl_is_that_of_what_was_done():
    workflow = make_ppo(LEGGED, legged_parts(), extensions={"symmetry": Symmetry()}, num_envs=5, **ONE)
    rollout, _ = workflow._evaluate(legged_batch())
    _, log_ratio = workflow._differentiate(rollout)
    torch.testing.assert_close(log_ratio, torch.zeros(30), atol=1e-6, rtol=0)  # of the images it is not 0


def test_normalised_observations_are_mirrored_before_they_are_normalised():
    workflow = make_ppo(
        LEGGED, legged_parts(), extensions={"symmetry": Symmetry()}, num_envs=5, normalize_observations=True, **ONE
    )
    batch = legged_batch()
    skewed = {key: value + 3.0 for key, value in batch["observations"].items()}
    workflow.policy.update_normalizer(skewed)  # statistics that are not symmetric
    rollout, _ = workflow._evaluate(batch)
    obs = {key: value.flatten(0, 1) for key, value in batch["observations"].items()}
    expected = workflow.policy.inputs(seen_in_the_mirror(obs))[0]
    torch.testing.assert_close(rollout["mirrored"][0], expected)


def test_a_policy_that_learns_by_the_loss_becomes_its_own_image():
    asymmetry = {}
    for coef in (0.0, 3.0):
        env = Pendulum(16, max_episode_steps=50)
        mirror = {"symmetry": Symmetry(augment=coef == 0.0, loss_coef=coef)}
        workflow = make_ppo(env.spec, extensions=mirror, num_envs=16, lr=1e-2)
        with torch.no_grad():
            workflow.policy.head.mean.bias.fill_(0.5)  # prefers one side
        _, metrics = train(workflow, env, steps=32, updates=12)
        obs = env.reset(9)
        image = obs * torch.tensor([1.0, -1.0, -1.0])
        first = torch.ones(16, dtype=torch.bool)
        with torch.no_grad():
            (_, left, _), (_, right, _) = (
                workflow.act(x, None, is_first=first, explore=False, step=0) for x in (obs, image)
            )
        asymmetry[coef] = float((left["latents"] + right["latents"]).square().mean().sqrt())
        assert float(metrics["asymmetry"]) > 0.0
    assert asymmetry[3.0] < 0.03
    assert asymmetry[3.0] < 0.5 * asymmetry[0.0]


# policy_loss, value_loss, approx_kl and asymmetry of three full-batch updates on `fixed_batch`.
GOLDEN = [
    [1.19357, 1.72628, 0.000718937, 0.367],
    [1.06051, 1.73637, 0.000514017, 0.219244],
    [0.960785, 1.75016, 0.000393123, 0.1168],
]


def golden_workflow():
    mirror = {"symmetry": Symmetry(loss_coef=1.0)}
    workflow = make_ppo(LEGGED, legged_parts(), extensions=mirror, num_envs=5, lr=0.01, **ONE | {"num_epochs": 2})
    for parameter in workflow.policy.parameters():
        count = torch.arange(parameter.numel(), dtype=torch.float32).view_as(parameter)
        parameter.data.copy_(count.mul(0.7).sin() * 0.3)
    return workflow


def fixed_batch():
    count = torch.arange(6 * 5 * 4, dtype=torch.float32).view(6, 5, 4)
    index = torch.arange(30).view(6, 5)
    obs = {"actor": count.mul(0.37).sin(), "critic": count.mul(0.21).cos().view(6, 5, 2, 2)}
    return legged_batch() | {
        "observations": obs,
        "final_observations": obs,
        "latents": count[..., :2].mul(0.13).cos(),
        "rewards": index.mul(0.11).cos(),
        "terminated": index % 11 == 10,
    }


def test_golden_losses():
    workflow = golden_workflow()
    for expected in GOLDEN:
        metrics = workflow.update_policy(fixed_batch(), phase=phase())
        names = ("policy_loss", "value_loss", "approx_kl", "asymmetry")
        assert [float(metrics[name]) for name in names] == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_same_seed_same_parameters_other_seed_others():
    env, runs = Pendulum(4, max_episode_steps=9), []
    for seed in (3, 3, 4):
        mirror = {"symmetry": Symmetry(loss_coef=1.0)}
        workflow = make_ppo(env.spec, extensions=mirror, seed=seed, normalize_observations=True)
        train(workflow, env, steps=16, updates=2, seed=seed)
        runs.append(parameters(workflow))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


PENDULUM = EnvSpec("p", Box((3,)), Box((1,), low=-2.0, high=2.0), mirror=MIRROR)


@pytest.mark.parametrize(
    ("spec", "options", "text"),
    [
        (EnvSpec("p", Box((3,)), Box((1,))), {}, "'p' tells no mirror"),
        (EnvSpec("p", Box((3,)), Discrete(2), mirror=MIRROR), {}, "needs continuous actions"),
        (EnvSpec("p", Box((4,)), Box((1,)), mirror=MIRROR), {}, "observation '' has 3 entries, not 4"),
        (EnvSpec("p", {"a": Box((3,))}, Box((1,)), mirror=MIRROR), {}, "has no observation 'a'"),
        (EnvSpec("p", Box((3,)), Box((1,), low=0.0, high=1.0), mirror=MIRROR), {}, "not symmetric around 0"),
        (PENDULUM, {"augment": False}, "would do nothing"),
        (PENDULUM, {"action": [(0, -1.0)]}, "come together"),
        (PENDULUM, {"observation": [(1, 1.0), (2, 1.0), (0, 1.0)], "action": [(0, -1.0)]}, "mirrored twice, entry 0"),
        (PENDULUM, {"observation": [(0, 1.0), (1, 2.0), (2, 1.0)], "action": [(0, -1.0)]}, "signs of 1 or -1"),
        (PENDULUM, {"observation": [(0, 1.0), (7, 1.0), (2, 1.0)], "action": [(0, -1.0)]}, "sources of 0 to 2"),
    ],
)
def test_what_does_not_fit_is_told_in_one_line(spec, options, text):
    with pytest.raises(ConfigError, match=f"^components.symmetry: .*{text}"):
        make_ppo(spec, extensions={"symmetry": Symmetry(**options)})


def test_memories_are_refused():
    parts = {"actor": MLP(8, [8]), "memory": GRU(3, 8), "symmetry": Symmetry()}
    with pytest.raises(ConfigError, match=r"does not go with components\.memory"):
        make_ppo(PENDULUM, parts)


def test_pairs_given_in_yaml_count_more_than_those_of_the_environment():
    mirror = {"symmetry": Symmetry(observation=[(0, 1.0), (1, 1.0), (2, 1.0)], action=[(0, 1.0)])}
    workflow = make_ppo(PENDULUM, extensions=mirror)
    obs = torch.randn(4, 3)
    assert torch.equal(workflow.extensions["symmetry"].mirrored(obs), obs)


def test_pendulum_is_the_same_in_its_mirror():
    left, right = Pendulum(8), Pendulum(8)
    left.reset(0)
    right.reset(0)
    right._state = right._state | {key: -right._state[key] for key in ("angle", "speed")}
    torch.manual_seed(0)
    for _ in range(30):
        torque = torch.randn(8, 1)
        ours, theirs = left.step(torque), right.step(-torque)
        torch.testing.assert_close(ours.rewards, theirs.rewards, rtol=1e-4, atol=1e-4)
        image = ours.observations * torch.tensor([sign for _, sign in MIRROR.observation[""]])
        torch.testing.assert_close(theirs.observations, image, rtol=1e-4, atol=1e-4)
