"""RLPD: what it adds to SAC, against numbers computed another way; corrections from YAML to the batch; resume."""

import json

import pytest
import torch

from rl_lab.buffers.datasets.open import read_episodes
from rl_lab.components.ensemble import EnsembleMLP
from rl_lab.components.hands import Hands
from rl_lab.components.mlp import MLP
from rl_lab.core import Box, ConfigError, Discrete, EnvSpec
from rl_lab.environments.tensor_env import TensorEnv
from rl_lab.tracking.fingerprint import fingerprint
from rl_lab.workflows.rlpd import RLPD
from rl_lab.workflows.sac import SAC
from tests.workflows.off_policy import networks, phase, random_batch, run_packaged, score, start
from tests.workflows.off_policy import train as learn
from tests.workflows.teaching import TINY, composed, newest_state, train

torch.set_num_threads(1)
PLAIN = EnvSpec("made-up", Box((3,)), Box((2,), low=-2.0, high=2.0))
ARM = EnvSpec("arm", Box((3,)), Box((4,), low=-1.0, high=1.0))
HANDS = Hands((1, 3))  # two hands, four choices


def arm_networks(spec=ARM, hidden=(16,), members=2):
    dim = spec.observation.shape[0]
    arms = spec.action.shape[0] - 2
    return {
        "actor": MLP(dim, hidden, "relu"),
        "critic": EnsembleMLP(dim + arms, hidden, members, layer_norm=True),
        "grasp_critic": EnsembleMLP(dim, hidden, 1),
    }


def make_rlpd(spec=PLAIN, components=None, *, lr=1e-3, seed=0, num_envs=4, static=None, **options):
    names = ("critic", "actor", *(["alpha"] if options.get("target_entropy", "auto") is not None else []))
    names += ("grasp_critic",) if "hands" in options else ()
    make = components or (lambda: networks(spec, num_members=4))
    return start(RLPD(**options), spec, make, lr=lr, num_envs=num_envs, seed=seed, static=static, names=names)


def test_with_entropy_in_its_values_it_is_sac():
    """The same seed, weights and batch: only what RLPD changes may differ."""
    options = {"gamma": 0.97, "target_entropy": -1.0, "initial_alpha": 0.01, "subset_size": 2}
    ours = make_rlpd(backup_entropy=True, critic_to_actor_ratio=2, **options)
    theirs = start(
        SAC(actor_reduction="mean", policy_delay=2, **options), PLAIN, lambda: networks(PLAIN, num_members=4)
    )
    batch = random_batch(PLAIN)
    for one in (ours, theirs):
        torch.manual_seed(3)
        for _ in range(4):
            one.update_agent(batch, phase=phase())
    for (name, a), (_, b) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert torch.equal(a, b), name


def test_targets_leave_the_entropy_out():
    workflow, batch = make_rlpd(subset_size=None), random_batch(PLAIN)
    rows = workflow.perception(batch, workflow.target_perception, 0.99)
    torch.manual_seed(5)
    found = workflow._targets(rows)
    torch.manual_seed(5)
    with torch.no_grad():
        mean, log_std = workflow.policy.head.layer(workflow.policy.trunk(batch["next_observations"])).chunk(2, -1)
        action = torch.tanh(mean + log_std.clamp(-5, 2).exp() * torch.randn_like(mean))
        x = torch.cat([batch["next_observations"], action], -1)
        first, head = workflow.target_critic.trunk.layers[0], workflow.target_critic.head
        values = [torch.relu(x @ first.weight[i] + first.bias[i]) @ head.weight[i] + head.bias[i] for i in range(4)]
        expected = batch["rewards"] + batch["discounts"] * torch.cat(values, -1).amin(-1)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert make_rlpd().entropy_goal == -1.0  # minus half of two dimensions


def test_the_policy_moves_once_per_ratio():
    workflow, batch = make_rlpd(critic_to_actor_ratio=3), random_batch(PLAIN)
    actors = []
    for _ in range(6):
        metrics = workflow.update_agent(batch, phase=phase())
        actors.append("actor_loss" in metrics)
    assert actors == [False, False, True] * 2


def test_the_grasp_critic_learns_as_a_double_dqn():
    workflow = make_rlpd(ARM, arm_networks, hands=HANDS)
    batch = random_batch(ARM)
    bits = (batch["actions"][:, [1, 3]] > 0).long()  # nearer to 1 than to -1
    choice = bits[:, 0] + 2 * bits[:, 1]
    grasp, target = workflow.grasp_critic, workflow.target_grasp_critic
    with torch.no_grad():
        for parameter in target.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))  # another network than the one that chooses

    def values(critic, x):
        first, head = critic.trunk.layers[0], critic.head
        return torch.relu(x @ first.weight[0] + first.bias[0]) @ head.weight[0] + head.bias[0]

    with torch.no_grad():
        best = values(grasp, batch["next_observations"]).argmax(-1)
        later = values(target, batch["next_observations"])[torch.arange(32), best]
        wanted = batch["rewards"] + batch["discounts"] * later
    q = values(grasp, batch["observations"])[torch.arange(32), choice]
    expected = 0.5 * (q - wanted).square().mean()
    before = {name: p.detach().clone() for name, p in grasp.named_parameters()}
    gradients = torch.autograd.grad(expected, list(grasp.parameters()))
    metrics = workflow.update_agent(batch, phase=phase())
    assert float(metrics["grasp_loss"]) == pytest.approx(float(expected.detach()), rel=1e-5)
    assert float(metrics["grasp_q"]) == pytest.approx(float(q.detach().mean()), rel=1e-4)
    for (name, parameter), gradient in zip(grasp.named_parameters(), gradients, strict=True):
        step = 1e-3 * gradient / (gradient.abs() + 1e-8)  # the first step of Adam
        torch.testing.assert_close(parameter.detach(), before[name] - step, atol=1e-6, rtol=1e-4)


def test_arms_are_steered_and_hands_are_chosen():
    workflow = make_rlpd(ARM, arm_networks, hands=HANDS, random_steps=100)
    obs, first = torch.randn(64, 3), torch.ones(64, dtype=torch.bool)
    actions, _, _ = workflow.act(obs, None, is_first=first, explore=False, step=1000)
    best = workflow.grasp_critic(obs, None)[0].argmax(-1)
    assert torch.equal(actions[:, 1], (best % 2 * 2 - 1).float())
    assert torch.equal(actions[:, 3], (best // 2 * 2 - 1).float())
    mean, _ = workflow.policy.head.layer(workflow.policy.trunk(obs)).chunk(2, -1)
    torch.testing.assert_close(actions[:, [0, 2]], torch.tanh(mean).detach())
    drawn, _, _ = workflow.act(obs, None, is_first=first, explore=True, step=0)
    assert {tuple(row) for row in drawn[:, [1, 3]].tolist()} == {(a, b) for a in (-1, 1) for b in (-1, 1)}


def test_golden_losses():
    workflow, batch = make_rlpd(ARM, arm_networks, hands=HANDS), random_batch(ARM)
    torch.manual_seed(0)
    found = []
    for _ in range(2):
        metrics = workflow.update_agent(batch, phase=phase())
        found += [float(metrics["critic_loss"]), float(metrics["grasp_loss"])]
    assert [*found, float(metrics["actor_loss"])] == pytest.approx(GOLDEN, rel=1e-4)


GOLDEN = [1.1016781330108643, 0.590386152267456, 0.9900586605072021, 0.5866847634315491, -0.38517189025878906]


def test_the_same_seed_gives_the_same_agent():
    def trained():
        workflow = make_rlpd(ARM, arm_networks, hands=HANDS)
        torch.manual_seed(1)
        for seed in range(4):
            workflow.update_agent(random_batch(ARM, seed=seed), phase=phase())
        return torch.cat([p.detach().flatten() for p in workflow.parameters()])

    assert torch.equal(trained(), trained())


class Grasp(TensorEnv):
    """The arm must go where the first number says, the hand must open where the second one is positive."""

    def __init__(self, num_envs):
        super().__init__(EnvSpec("grasp", Box((2,)), Box((2,), low=-1.0, high=1.0), 1), num_envs)

    def _initial(self):
        return {"goal": torch.empty(self.num_envs, 2).uniform_(-1.0, 1.0, generator=self._generator)}

    def _advance(self, state, actions):
        goal = state["goal"]
        is_right = (actions[:, 1] * goal[:, 1]) > 0
        rewards = 0.5 * (1.0 - (actions[:, 0] - goal[:, 0]).square()) + 0.5 * is_right
        return {}, rewards, torch.ones(self.num_envs, dtype=torch.bool)

    def _observe(self, state):
        return state["goal"]


def test_arm_and_hand_are_learned_together():
    env, hands = Grasp(8), Hands((1,), epsilon=0.1)

    def components():
        trunks = networks(EnvSpec("arm", Box((2,)), Box((1,))), (32, 32), layer_norm=True)
        return {**trunks, "grasp_critic": EnsembleMLP(2, (32, 32), 1)}

    options = {"hands": hands, "tau": 0.02, "random_steps": 256, "lr": 3e-3, "num_envs": 8}
    workflow = make_rlpd(env.spec, components, **options)
    before = score(workflow, Grasp(8), episodes=64)
    learn(workflow, env, env_steps=3_200, updates_per_step=0.125)
    assert before < 0.75
    assert score(workflow, Grasp(8), episodes=64) > 0.93


IMPATIENT = (
    *("training.operator.patience_steps=3", "training.operator.reaction_steps=1", "training.operator.noise=0.0"),
    *("training.operator.max_correction_steps=6", "training.checkpoint_frequency=20"),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    return train(composed("rlpd_insertion", root, *TINY, *IMPATIENT), root, "whole")


def test_corrections_are_demonstrations_too(whole):
    rows = [json.loads(line) for line in whole.metrics_file.read_text().splitlines()]
    corrected = max(row.get("collect/interventions", 0.0) for row in rows)
    sizes = [row["buffer/replay/demos/size"] for row in rows if "buffer/replay/demos/size" in row]
    assert corrected > 0.0
    assert sizes[0] >= 64.0 < sizes[-1]  # of the expert; then those of the human
    state = newest_state(whole)["buffers"]["replay"]
    assert state["demos"]["steps"] == sizes[-1]


def test_resume_is_exact_in_the_middle_of_a_correction(whole, tmp_path):
    config = composed("rlpd_insertion", tmp_path, *TINY, *IMPATIENT)
    run = train(config, tmp_path, "halves", stop_at=9)
    assert fingerprint(run) != fingerprint(whole)
    train(None, tmp_path, "halves")
    assert fingerprint(run) == fingerprint(whole)
    assert run.metrics_file.read_bytes() == whole.metrics_file.read_bytes()


def test_it_runs_without_corrections(tmp_path):
    run = train(composed("rlpd_insertion", tmp_path, *TINY, "training.operator=null"), tmp_path, "alone")
    state = newest_state(run)["buffers"]["replay"]
    assert state["demos"]["steps"] == 64


def test_demonstrations_may_come_from_a_dataset(tmp_path):
    recorded = train(composed("bc_insertion", tmp_path, *TINY), tmp_path, "recorded")
    path = recorded.path / "buffers" / "demonstrations" / "dataset"
    phases = "training.phases=[{name: practise, buffer: replay, duration_steps: 64, train_ratio: 0.25, "
    phases += "workflow_hooks: [{collect: 1}, update_agent]}]"
    from_disk = (f"buffers.replay.parts.demos.path={path}", "training.teacher=null", phases)
    run = train(composed("rlpd_insertion", tmp_path, *TINY, *from_disk), tmp_path, "from_disk")
    state = newest_state(run)
    assert state["counters"]["updates"] > 0
    rows = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    sizes = [row["buffer/replay/demos/size"] for row in rows if "buffer/replay/demos/size" in row]
    steps = sum(len(episode) for episode in read_episodes(path))
    assert sizes[-1] == steps + state["buffers"]["replay"]["demos"]["steps"]


@pytest.mark.learning
def test_insertion_is_learned(tmp_path):
    assert run_packaged("rlpd_insertion", tmp_path) > 0.6  # the share of successes, without help


@pytest.mark.parametrize(
    ("spec", "options", "line"),
    [
        (EnvSpec("x", Box((3,)), Discrete(3)), {}, "RLPD does not take the discrete actions of 'x'"),
        (EnvSpec("x", Box((3,)), Discrete(3)), {"hands": HANDS}, "RLPD does not take the discrete actions of 'x'"),
        (PLAIN, {"hands": HANDS}, "algorithm.hands.entries: no entry 3 in actions of 2 numbers"),
        (PLAIN, {"subset_size": 9}, "algorithm.subset_size: 9 of 4 critics"),
    ],
)
def test_bad_input_is_one_line(spec, options, line):
    with pytest.raises(ConfigError, match=line):
        make_rlpd(spec, lambda: networks(PLAIN, num_members=4), **options)
