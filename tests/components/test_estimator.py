"""An estimator beside the policy: what it reads, learns and hands to the actor."""

import numpy as np
import pytest
import torch

from rl_lab.components.dict_encoder import DictEncoder
from rl_lab.components.estimator import Estimator
from rl_lab.components.mlp import MLP
from rl_lab.core import Box, ConfigError, EnvSpec
from rl_lab.environments.tensor_env import TensorEnv
from tests.workflows.parts import make_ppo, phase, train

torch.set_num_threads(1)
SPEC = EnvSpec("x", {"actor": Box((4,)), "critic": Box((3,))}, Box((1,), low=-1.0, high=1.0))


class Hidden(TensorEnv):
    """Shows the actor two mixtures of two hidden numbers, and pays for the action that equals the first of them."""

    def __init__(self, num_envs):
        spec = EnvSpec("tensor/Hidden", {"actor": Box((2,)), "critic": Box((2,))}, Box((1,), low=-2.0, high=2.0), 4)
        super().__init__(spec, num_envs)

    def _initial(self):
        return {"hidden": self._uniform(2, low=-1.0, high=1.0)}

    def _advance(self, state, actions):
        rewards = -(actions[:, 0] - state["hidden"][:, 0]).square()
        hidden = self._uniform(2, low=-1.0, high=1.0)
        return {"hidden": hidden}, rewards, torch.zeros_like(rewards, dtype=torch.bool)

    def _observe(self, state):
        a, b = state["hidden"].unbind(-1)
        return {"actor": torch.stack((a + b, a - 2.0 * b), -1), "critic": state["hidden"]}


def trunks(actor=5, critic=3):
    return {"actor": DictEncoder({"actor": MLP(actor, [16])}), "critic": DictEncoder({"critic": MLP(critic, [16])})}


def fixed_batch(steps=6, num_envs=4):
    count = torch.arange(steps * num_envs * 4, dtype=torch.float32).view(steps, num_envs, 4)
    index = torch.arange(steps * num_envs).view(steps, num_envs)
    obs = {"actor": count.mul(0.37).sin(), "critic": count[..., :3].mul(0.21).cos()}
    never = torch.zeros(steps, num_envs, dtype=torch.bool)
    return {
        "observations": obs,
        "final_observations": obs,
        "latents": count[..., :1].mul(0.13).cos(),
        "actions": count[..., :1].mul(0.13).cos(),
        "rewards": index.mul(0.11).cos(),
        "terminated": index % 11 == 10,
        "truncated": never,
        "is_first": never,
    }


def make(seed=0, normalize=False, **options):
    torch.manual_seed(seed)
    estimator = Estimator("critic", **{"entries": [2], "hidden_dims": [8], "num_epochs": 1, **options})
    return make_ppo(SPEC, trunks(), extensions={"estimator": estimator}, seed=seed, normalize_observations=normalize)


def test_the_actor_reads_the_estimate_and_the_critic_does_not():
    workflow, obs = make(), {key: value[0] for key, value in fixed_batch()["observations"].items()}
    network = workflow.extensions["estimator"].network
    with torch.no_grad():
        inputs, _ = workflow.read(obs)
        estimate = network(obs["actor"])
        first = torch.ones(4, dtype=torch.bool)
        _, extras, _ = workflow.act(obs, None, is_first=first, explore=False, step=0)
        wide = torch.cat((obs["actor"], estimate), -1)
        expected = workflow.policy.head.mean(workflow.policy.actor.encoders["actor"](wide))
    assert torch.equal(inputs["actor"], wide)
    assert torch.equal(inputs["critic"], obs["critic"])
    torch.testing.assert_close(extras["latents"], expected)


def test_it_descends_the_squared_error_by_an_optimiser_of_its_own():
    ours, naive = make(num_minibatches=1), make(num_minibatches=1)
    batch, policy = fixed_batch(), [p.clone() for p in naive.policy.parameters()]
    network = naive.extensions["estimator"].network
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    for _ in range(3):
        seen, truth = batch["observations"]["actor"].flatten(0, 1), batch["observations"]["critic"].flatten(0, 1)[:, 2:]
        loss = ((network(seen) - truth) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        metrics = ours.update_policy(batch, phase=phase())
        torch.testing.assert_close(metrics["estimator_loss"], loss.detach(), rtol=1e-4, atol=1e-6)
        share = loss.item() / np.var(truth.numpy())
        assert float(metrics["estimator_unexplained"]) == pytest.approx(share, rel=1e-3)
    theirs = torch.cat([p.flatten() for p in network.parameters()])
    mine = torch.cat([p.flatten() for p in ours.extensions["estimator"].network.parameters()])
    torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-5)
    known = {id(p) for p in ours.networks.parts}
    assert not any(id(p) in known for p in ours.extensions["estimator"].parameters())  # the policy's optimiser has none
    assert all(torch.equal(a, b) for a, b in zip(policy, naive.policy.parameters(), strict=True))


def test_both_sides_are_normalised_where_observations_are():
    workflow, batch = make(normalize=True), fixed_batch()
    batch["observations"]["critic"] = batch["observations"]["critic"] * 100.0 + 7.0
    workflow.policy.update_normalizer(batch["observations"])
    loss = float(workflow.update_policy(batch, phase=phase())["estimator_loss"])
    assert loss < 10.0  # of the raw numbers it would be thousands


# estimator_loss and policy_loss of three updates on `fixed_batch`, with fixed parameters.
GOLDEN = [
    [0.49983, -0.00214139, 1.1336],
    [0.496326, -0.00216029, 1.13124],
    [0.494783, -0.00220111, 1.1305],
]


def golden_workflow():
    workflow = make(num_minibatches=1, learning_rate=0.01)
    workflow.num_minibatches = 1
    for index, parameter in enumerate([p for p in workflow.parameters() if p.ndim == 2]):
        count = torch.arange(parameter.numel(), dtype=torch.float32).view_as(parameter)
        parameter.data.copy_((count * 0.7 + index).sin() * 0.3)
    return workflow


def test_golden_losses():
    workflow = golden_workflow()
    for expected in GOLDEN:
        metrics = workflow.update_policy(fixed_batch(), phase=phase())
        found = [float(metrics[name]) for name in ("estimator_loss", "policy_loss", "value_loss")]
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-6)


def learned(seed):
    env = Hidden(32)
    torch.manual_seed(seed)
    estimator = Estimator("critic", entries=[0], hidden_dims=[16], learning_rate=1e-2)
    workflow = make_ppo(
        env.spec,
        {"actor": DictEncoder({"actor": MLP(3, [16])}), "critic": DictEncoder({"critic": MLP(2, [16])})},
        extensions={"estimator": estimator},
        num_envs=32,
        lr=1e-2,
        gamma=0.0,
        gae_lambda=0.0,
        initial_log_std=-1.0,
        seed=seed,
    )
    rewards, metrics = train(workflow, env, steps=16, updates=25, seed=seed)
    return workflow, rewards, metrics


def test_it_learns_what_the_actor_cannot_see_and_the_policy_uses_it():
    workflow, rewards, metrics = learned(0)
    assert float(metrics["estimator_unexplained"]) < 0.02
    assert rewards[-1] > -0.1 > rewards[0]
    obs, first = Hidden(64).reset(1), torch.ones(64, dtype=torch.bool)
    with torch.no_grad():
        actions, _, _ = workflow.act(obs, None, is_first=first, explore=False, step=0)
        workflow.extensions["estimator"].network[1].weight.zero_()
        without, _, _ = workflow.act(obs, None, is_first=first, explore=False, step=0)
    truth = obs["critic"][:, 0]
    assert float((actions[:, 0] - truth).square().mean()) < float((without[:, 0] - truth).square().mean())


def test_same_seed_same_parameters_other_seed_others():
    runs = []
    for seed in (3, 3, 4):
        env = Hidden(4)
        torch.manual_seed(seed)
        parts = {"actor": DictEncoder({"actor": MLP(3, [8])}), "critic": DictEncoder({"critic": MLP(2, [8])})}
        extensions = {"estimator": Estimator("critic", entries=[1], hidden_dims=[8])}
        workflow = make_ppo(env.spec, parts, extensions=extensions, seed=seed, normalize_observations=True)
        train(workflow, env, steps=8, updates=2, seed=seed)
        runs.append(torch.cat([value.flatten().float() for value in workflow.state_dict().values()]))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


@pytest.mark.parametrize(
    ("estimator", "parts", "text"),
    [
        (Estimator("truth"), trunks(), r"\.target: unknown observation 'truth' \(choices: actor, critic\)"),
        (Estimator("critic", reads="foot"), trunks(), r"\.reads: unknown observation 'foot'"),
        (Estimator("actor"), trunks(), r"\.target: components\.actor reads 'actor' itself"),
        (Estimator("critic", entries=[3]), trunks(), r"\.entries: must be numbers of 0 to 2, not \[3\]"),
        (Estimator("critic"), {"actor": MLP(7, [8]), "critic": MLP(7, [8])}, "components.actor must be a dict_encoder"),
    ],
)
def test_what_does_not_fit_is_told_in_one_line(estimator, parts, text):
    with pytest.raises(ConfigError, match=f"^components.estimator.*{text}"):
        make_ppo(SPEC, parts, extensions={"estimator": estimator})


def test_a_trunk_without_room_for_the_estimate_is_told():
    text = r"components\.actor\.encoders\.actor\.input_dim: must be 7 \(with the estimate\), not 5"
    with pytest.raises(ConfigError, match=text):
        make_ppo(SPEC, trunks(), extensions={"estimator": Estimator("critic")})
