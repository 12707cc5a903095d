"""A flow policy improved by critics: targets and both terms by hand, learning, and an exact resume."""

import copy
from contextlib import closing

import pytest
import torch

from rl_lab.buffers.episode import EpisodeBuffer
from rl_lab.components.action_transformer import ActionTransformer
from rl_lab.components.ensemble import EnsembleMLP
from rl_lab.components.flow_matching import FlowMatching
from rl_lab.components.vla.vla import VLA
from rl_lab.config.allow_list import AllowList
from rl_lab.config.build import assemble
from rl_lab.config.compose import compose
from rl_lab.config.targets import Targets
from rl_lab.core import Box, ConfigError, EnvSpec, HookCall, Phase
from rl_lab.orchestration.hand_off import load_broadcast
from rl_lab.workflows.flow_sac import FlowSAC
from tests.components.vla.small import BLIND
from tests.workflows.off_policy import resumes_exactly, start

torch.set_num_threads(1)
SPEC = EnvSpec("made-up", Box((2,)), Box((1,), low=-1.0, high=1.0))
LENGTH = 4
PHASE = Phase("improve", "online", (HookCall("update_agent", is_update=True),), "steps", 1, buffer="replay")


def make(seed=0, lr=1e-3, width=2 + LENGTH, network=lambda: ActionTransformer(16, 1, 2), **options):
    def components():
        flow = FlowMatching(network(), num_sampling_steps=3)
        return {"generator": flow, "critic": EnsembleMLP(width, (16,), 2)}

    options = {"prediction_horizon": LENGTH, "action_horizon": LENGTH, "critic_warmup": 0, **options}
    workflow = start(FlowSAC(**options), SPEC, components, lr=lr, seed=seed, names=("policy", "critic", "actor"))
    workflow.observation_range.fit(torch.tensor([-1.0, -1.0]), torch.tensor([1.0, 1.0]))
    workflow.action_range.fit(torch.tensor([-1.0]), torch.tensor([1.0]))
    workflow._has_ranges = True
    return workflow


def batch_of(size=16, seed=0, reward=None):
    """Return chunks; a quarter of them end after two steps, terminated."""
    generator = torch.Generator().manual_seed(seed)
    ends = torch.arange(size) % 4 == 0
    is_pad = ends[:, None] & (torch.arange(LENGTH) >= 2)
    obs, later = (2 * torch.rand(size, 1, 2, generator=generator) - 1 for _ in range(2))
    actions = 2 * torch.rand(size, LENGTH, 1, generator=generator) - 1
    rewards = torch.randn(size, LENGTH, generator=generator) if reward is None else reward(obs, actions)
    return {"observations": obs, "next_observations": later, "actions": actions, "is_pad": is_pad,
            "rewards": rewards.masked_fill(is_pad, 0.0), "terminated": ends}  # fmt: skip


def drawn(workflow, policy, obs, noise):
    """Return the chunks of a flow, Euler step by Euler step."""
    x, network = noise, policy.generator.network
    for step in range(3):
        level = torch.full((1,), 1.0 - step / 3)
        x = x - network(x, level, network.prepare(obs)) / 3
    return x.clamp(-1.0, 1.0).flatten(1)


def test_targets_by_hand():
    workflow, batch = make(gamma=0.9), batch_of()
    torch.manual_seed(7)
    found = workflow._targets(batch)
    torch.manual_seed(7)
    noise = torch.randn(16, LENGTH, 1)
    with torch.no_grad():
        chunk = drawn(workflow, workflow.average.module, batch["next_observations"], noise)
        x = torch.cat([batch["next_observations"].flatten(1), chunk], -1)
        first, head = workflow.target_critic.trunk.layers[0], workflow.target_critic.head
        q = torch.cat(
            [torch.relu(x @ first.weight[i] + first.bias[i]) @ head.weight[i] + head.bias[i] for i in (0, 1)], -1
        )
    expected = []
    for row in range(16):
        rewards = batch["rewards"][row].tolist()
        total = sum(0.9**i * reward for i, reward in enumerate(rewards))
        expected.append(total + (0.0 if batch["terminated"][row] else 0.9**LENGTH * float(q[row].min())))
    assert found.tolist() == pytest.approx(expected, abs=1e-5)


def copies(module):
    return {name: parameter.clone() for name, parameter in module.named_parameters()}


def test_a_vla_is_improved_where_it_learns_and_only_that_goes_to_actors():
    workflow = make(network=lambda: VLA(BLIND, "push it"))
    before = copies(workflow.policy)
    workflow.update_policy(batch_of(), phase=PHASE)
    imitated = copies(workflow.policy)
    for _ in range(2):
        workflow.update_agent(batch_of(), phase=PHASE)
    learns = {name for name, parameter in workflow.policy.named_parameters() if parameter.requires_grad}
    assert learns < before.keys()
    for earlier, later in ((before, imitated), (imitated, copies(workflow.policy))):
        assert {name for name in earlier if not torch.equal(earlier[name], later[name])} <= learns
        assert any(not torch.equal(earlier[name], later[name]) for name in learns)
    sent = workflow.broadcast()
    assert {name.removeprefix("policy.") for name in sent if name.startswith("policy.")} == learns
    actor = make(network=lambda: VLA(BLIND, "push it"))  # from the same seed, as actors are
    load_broadcast(actor, sent)
    seen, noise = (batch_of()["observations"], {}), workflow._noise(16)
    assert noise.shape[-1] > 1  # also for what a VLA reads beside actions
    with torch.no_grad():
        assert torch.equal(*(flow._drawn(flow.average.module, seen, noise) for flow in (workflow, actor)))


def test_the_packaged_experiment_takes_a_vla():
    words = "components.generator.network.prompt=insert"
    chosen = ["+experiment=sac_pi0_insertion", "components@components.generator.network=vla_1m", words]
    with closing(assemble(compose(chosen), Targets(AllowList())).env):
        pass


def test_the_policy_climbs_the_critics_and_is_held_by_the_reference():
    workflow = make(guidance=2.0, distill_weight=3.0)
    with torch.no_grad():
        for parameter in workflow.reference.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))  # another one than the policy
    other, seen = copy.deepcopy(workflow.policy), torch.rand(16, 1, 2)
    torch.manual_seed(3)
    metrics = workflow._descend_actor((seen, {}))
    torch.manual_seed(3)
    noise = torch.randn(16, LENGTH, 1)
    chunk = drawn(workflow, other, seen, noise)
    distance = (chunk - drawn(workflow, workflow.reference, seen, noise).detach()).square().mean()
    value = workflow.critic(seen.flatten(1), chunk).mean()
    gradients = torch.autograd.grad(3.0 * distance - 2.0 * value, list(other.parameters()), allow_unused=True)
    norm = torch.sqrt(sum(g.square().sum() for g in gradients if g is not None))
    assert float(metrics["actor_q"]) == pytest.approx(float(value.detach()), rel=1e-4)
    assert float(metrics["distance"]) == pytest.approx(float(distance.detach()), rel=1e-4)
    assert float(metrics["actor_grad_norm"]) == pytest.approx(float(norm), rel=1e-3)


def test_the_reference_is_what_acted_when_improving_began():
    workflow = make()
    acted = copy.deepcopy(workflow.average.module.state_dict())
    for seed in range(3):
        workflow.update_agent(batch_of(seed=seed), phase=PHASE)
    for name, tensor in workflow.reference.state_dict().items():
        assert torch.equal(tensor, acted[name]), name
    assert not torch.equal(workflow.policy.generator.network.state_dict()[next(iter(acted)).split("network.")[-1]],
                           acted[next(iter(acted))])  # fmt: skip


def test_critics_come_first_and_the_policy_has_its_turns():
    workflow = make(critic_warmup=2, critic_to_actor_ratio=2)
    turns = ["actor_q" in workflow.update_agent(batch_of(seed=seed), phase=PHASE) for seed in range(6)]
    assert turns == [False, False, False, True, False, True]


def test_golden_losses_and_the_same_seed():
    def losses():
        workflow = make(critic_to_actor_ratio=1)
        torch.manual_seed(0)
        metrics = [workflow.update_agent(batch_of(seed=seed), phase=PHASE) for seed in range(2)]
        return [float(m[key]) for m in metrics for key in ("critic_loss", "actor_q", "distance")]

    found = losses()
    assert found == losses()
    assert found == pytest.approx(GOLDEN, rel=1e-3, abs=1e-6)


GOLDEN = [2.753410816192627, 0.041714198887348175, 0.0, 4.893340110778809, -0.08695356547832489, 0.005672601982951164]


@pytest.mark.learning
def test_it_learns_what_pays_and_a_heavy_reference_keeps_it_where_it_was():
    """Actions pay where they are near 0.5 of the first number seen; all chunks end the episode."""

    def pays(obs, actions):
        return -(actions[..., 0] - 0.5 * obs[:, :, 0]).square()

    def trained(weight):
        workflow = make(lr=3e-3, distill_weight=weight, critic_to_actor_ratio=1, max_grad_norm=None, average_most=0.9)
        for seed in range(250):
            batch = batch_of(64, seed=seed, reward=pays) | {"terminated": torch.ones(64, dtype=torch.bool)}
            workflow.update_agent({**batch, "is_pad": torch.zeros(64, LENGTH, dtype=torch.bool)}, phase=PHASE)
        seen = batch_of(256, seed=9)["observations"]
        torch.manual_seed(0)
        return float(pays(seen, workflow._plan(seen)).mean())

    free, held = trained(0.0), trained(1000.0)
    assert free > -0.05
    assert held < -0.2


def test_a_stopped_run_goes_on_exactly(tmp_path):
    assert resumes_exactly(["+experiment=sac_pi0_insertion"], tmp_path, stop_at=14)


def test_bad_input_is_one_line():
    with pytest.raises(
        ConfigError, match=r"components.critic.input_dim: must be 6 \(2 of what is seen and 4 of a chunk\)"
    ):
        make(width=7)
    with pytest.raises(ConfigError, match="its buffer has chunk_length=2"):
        make().update_agent({**batch_of(), "is_pad": torch.zeros(16, 2)}, phase=PHASE)
    with pytest.raises(ConfigError, match="action_horizon: 9 actions are more than prediction_horizon=4"):
        make(action_horizon=9)


def test_chunks_of_an_episode_buffer_are_what_it_reads():
    buffer = EpisodeBuffer(50, 8, chunk_length=LENGTH, history=1, spec=SPEC)
    steps = 6
    obs = torch.arange(steps + 1.0)[:, None, None].expand(-1, 1, 2) / 10
    ends = torch.arange(steps)[:, None] == steps - 1
    buffer.add({"observations": obs[:-1], "final_observations": obs[1:], "actions": torch.zeros(steps, 1, 1),
                "rewards": ends.float(), "terminated": ends, "truncated": ~ends & False,
                "is_first": torch.arange(steps)[:, None] == 0})  # fmt: skip
    batch = buffer.sample()
    metrics = make().update_agent(batch, phase=PHASE)
    assert torch.isfinite(metrics["critic_loss"])
    late = batch["step"] >= steps - LENGTH
    assert torch.equal(batch["terminated"], late)
    assert torch.equal(batch["rewards"].sum(1) > 0, late)
