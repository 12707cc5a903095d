"""TD-MPC and TD-MPC2: updates against plain loops, how they act, explore, predict, learn and resume."""

import copy
import math
from functools import partial

import pytest
import torch
from typer.testing import CliRunner

from rl_lab.buffers.prioritized_sequence import PrioritizedSequenceBuffer
from rl_lab.buffers.sequence import SequenceBuffer
from rl_lab.cli.main import app
from rl_lab.components.latent_encoder import TDMPC2_STYLE, LatentEncoder
from rl_lab.components.latent_model import LatentModel
from rl_lab.components.layers import LayerStyle
from rl_lab.components.planners import CEM, MPPI, Plan
from rl_lab.components.q_ensemble import QEnsemble
from rl_lab.components.scalar_heads import ContinueHead, ScalarHead
from rl_lab.components.task_embedding import TaskEmbedding
from rl_lab.components.world_actors import WorldActor
from rl_lab.config.allow_list import AllowList
from rl_lab.config.build import assemble
from rl_lab.config.compose import compose
from rl_lab.config.targets import Targets
from rl_lab.core import (
    ACTION_MASK,
    Box,
    ConfigError,
    Discrete,
    EnvSpec,
    Named,
    Optimizers,
    RngStreams,
    Update,
    WorkflowContext,
    seed_everything,
    tree_map,
)
from rl_lab.environments.identity import Identity
from rl_lab.environments.pendulum import Pendulum
from rl_lab.ops.world_distributions import BoundedNormal
from rl_lab.tracking.checkpoint import CheckpointStore
from rl_lab.tracking.run_directory import RunDirectory
from rl_lab.workflows.tdmpc import TDMPC
from tests.components.test_latent_model import scrambled
from tests.workflows.off_policy import phase, resumes_exactly, resumes_in_phases, run_packaged, score
from tests.workflows.parts import make_collector
from tests.workflows.test_planet import fixed_batch

torch.set_num_threads(1)
SPEC = EnvSpec("fixed", Box((3,)), Box((2,), low=-2.0, high=2.0), 100)
CHOICE = EnvSpec("choice", {"x": Box((3,)), ACTION_MASK: Box((4,), dtype=torch.bool)}, Discrete(4), 100)
MIXED = EnvSpec("mixed", Box((3,)), {"gear": Discrete(4), "pedals": Box((2,), low=-2.0, high=2.0)}, 100)
TASKS = EnvSpec("tasks", {"task": Discrete(2), "x": Box((3,))}, Box((2,), low=-2.0, high=2.0), 100)
ELU = LayerStyle("elu", "none", "orthogonal")
CPU = torch.device("cpu")
NAMES = ("encoder", "world_model", "critic", "actor")
FIRST = {  # TD-MPC: what differs
    "gamma": 0.9,
    "consistency_scale": 2.0,
    "reward_scale": 1.0,
    "value_scale": 0.4,
    "consistency_target": "slow",
    "value_reduction": "min",
    "scale_values": False,
    "entropy_scale": 0.0,
    "tau": 0.3,
    "target_update_every": 2,
    "model_grad_norm": 0.2,
}
SECOND = {"gamma": 0.9, "tau": 0.3, "entropy_scale": 0.1, "model_grad_norm": 0.2}


def parts(width=6, *, first=False, planner=None, cont=True, tasks=None, **critics):
    """Return small unbound components of TD-MPC or TD-MPC2."""
    style, kind = (ELU, "gaussian") if first else (TDMPC2_STYLE, "symlog_two_hot")
    bins = {"kind": kind, "num_bins": 11, "limit": 3.0}
    model = LatentModel(
        LatentEncoder(width, 1, style),
        ScalarHead(width, 2, style, scale=0.0, **bins),
        ContinueHead(width, 1, style) if cont else None,
        tasks,
        latent_dim=8,
        group_size=None if first else 4,
        units=width,
        style=style,
    )
    actor = WorldActor(width, 1, style, kind="clipped_normal" if first else "squashed_normal", scale=1.0, min_std=0.2)
    critic = QEnsemble(width, 2, style, **{"num_members": 3, "dropout": 0.0, "tanh_first": first, **bins, **critics})
    return {"world_model": model, "actor": actor, "critic": critic, "planner": planner or MPPI(3, 16, 4, 2)}


def make_tdmpc(spec=SPEC, components=None, *, seed=0, lr=1e-2, device=CPU, config=None, **options):
    """Return an initialised TD-MPC; the same seed gives the same parameters."""
    seed_everything(seed)
    workflow = TDMPC(**options)
    factories = dict.fromkeys(NAMES, partial(torch.optim.Adam, lr=lr, fused=device == CPU))
    with device:
        workflow.initialize(
            WorkflowContext(
                config=config or {},
                device=device,
                spec=spec,
                num_envs=4,
                components=Named("component", (components or parts)()),
                controllers=Named("controller", {}),
                optimizers=Optimizers(factories),
                buffers=Named("buffer", {}),
                rng=RngStreams(seed),
            )
        )
    return workflow


def fixed_noise(shape, device=None):
    return torch.arange(math.prod(shape), dtype=torch.float32).mul(1.3).sin().view(shape)


def learner(monkeypatch, *, first):
    """Return a workflow whose parameters and noise owe nothing to any random stream."""
    monkeypatch.setattr(BoundedNormal, "noise", staticmethod(fixed_noise))
    workflow = make_tdmpc(components=partial(parts, first=first, subset_size=None), **(FIRST if first else SECOND))
    for parameter in workflow.parameters():
        count = torch.arange(parameter.numel(), dtype=torch.float32).view_as(parameter)
        parameter.data.copy_(count.mul(0.7).sin() * 0.4)
    return workflow


def batch_of(weights=False):
    """Return four rows each: three steps; of one sequence the last belongs to another episode."""
    batch = {key: value[:, :4] for key, value in fixed_batch().items()}
    return {**batch, "weights": torch.tensor([1.0, 0.5, 0.7])} if weights else batch


# What follows is the algorithm once more: one sequence and one step after the other, in float64.


def affine(layer, x):
    return x @ layer.weight.T + layer.bias


def normed(x):
    x = x - x.mean()
    return x / (x.square().mean() + 1e-5).sqrt()


def activated(x, is_elu):
    return torch.where(x > 0, x, x.exp() - 1.0) if is_elu else x * (1.0 + x.exp()).log().tanh()


def dense(stack, x):
    for index in range(0, len(stack), 3):
        x, norm = affine(stack[index], x), stack[index + 1]
        x = x if isinstance(norm, torch.nn.Identity) else normed(x) * norm.weight + norm.bias
        x = activated(x, isinstance(stack[index + 2], torch.nn.ELU))
    return x


def state(layers, x):
    x = affine(layers[0], x)
    if isinstance(layers[1], torch.nn.Identity):
        return x
    exps = (normed(x) * layers[1].weight + layers[1].bias).exp().view(2, 4)
    return (exps / exps.sum(1, keepdim=True)).flatten()


class Naive:
    """The update from the papers."""

    def __init__(self, workflow, *, first):
        self.first, self.options = first, FIRST if first else SECOND
        self.net = copy.deepcopy(workflow).double()
        self.scale, self.updates = 1.0, 0
        model = self.net.world_model
        self.groups = [
            [*model.encoder.parameters(), *model.project.parameters()],
            [*model.dynamics.parameters(), *model.reward_head.parameters(), *model.cont_head.parameters()],
            list(self.net.critic.parameters()),
        ]
        self.adams = [torch.optim.Adam(group, lr=1e-2) for group in self.groups]
        self.actor_adam = torch.optim.Adam(self.net.actor.parameters(), lr=1e-2)

    def encode(self, model, obs):
        return state(model.project, dense(model.encoder.vectors, obs))

    def number(self, out):
        """Return the number that outputs stand for."""
        if self.first:
            return out[0]
        mean = (out.exp() / out.exp().sum() * torch.linspace(-3, 3, 11).double()).sum()
        return mean.sign() * (mean.abs().exp() - 1.0)

    def loss(self, out, target):
        """Return half the squared error, or the cross-entropy to the two bins around the squashed target."""
        if self.first:
            return 0.5 * (out[0] - target) ** 2
        place = (math.copysign(math.log1p(abs(float(target))), float(target)) + 3.0) / 0.6
        below = min(9, int(place))
        log_probs = out - out.exp().sum().log()
        return -((below + 1 - place) * log_probs[below] + (place - below) * log_probs[below + 1])

    def critics(self, critic, joint):
        """Return the outputs of all critics."""
        found = []
        for member in range(3):
            x = joint
            for index, layer in enumerate(critic.layers):
                x = x @ layer.linear.weight[member] + layer.linear.bias[member, 0]
                if layer.norm is not None:
                    x = normed(x) * layer.norm.weight[member, 0] + layer.norm.bias[member, 0]
                x = x.tanh() if self.first and index == 0 else activated(x, self.first)
            found.append(x @ critic.last.weight[member] + critic.last.bias[member, 0])
        return found

    def policy(self, z, noise):
        """Return the action and the entropy bonus."""
        x = dense(self.net.actor.trunk, z)
        mean = affine(self.net.actor.mean, x)
        if self.first:
            action = mean.tanh() + (0.2 * noise).clamp(-0.3, 0.3)
            return action + (action.clamp(-1 + 1e-6, 1 - 1e-6) - action).detach(), 0.0
        log_std = -10.0 + 6.0 * (affine(self.net.actor.std, x).tanh() + 1.0)
        bonus = 2.0 * (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum()
        return (mean + log_std.exp() * noise).tanh(), bonus

    def model_losses(self, rows, weights):
        net, model = self.net, self.net.world_model
        steps, size = 3, 3
        noise, found, self.states, priorities = fixed_noise((steps, size, 2)).double(), [], {}, []
        named = {"consistency": 0.0, "reward": 0.0, "value": 0.0, "cont": 0.0}
        for b in range(size):
            z, known, total, priority = self.encode(model, rows["observations"][b, 0]), 1.0, 0.0, 0.0
            self.states[b] = [(z.detach(), 1.0)]
            for t in range(steps):
                row = {key: value[b, t + 1] for key, value in rows.items() if key != "weights"}
                known *= 0.0 if row["is_first"] else 1.0
                with torch.no_grad():
                    seen = self.encode(model, row["observations"])
                    wanted = self.encode(net.slow_model, row["observations"]) if self.first else seen
                    action, _ = self.policy(seen, noise[t, b])
                    values = [self.number(out) for out in self.critics(net.slow_critic, torch.cat([seen, action]))]
                    target = row["rewards"] + (0.0 if row["is_terminal"] else 0.9) * min(values)
                joint = torch.cat([z, row["actions"] / 2.0])
                outs = self.critics(net.critic, joint)
                z = state(model.dynamics[1], dense(model.dynamics[0], joint))
                end = 1.0 / (1.0 + affine(model.cont_head.out, dense(model.cont_head.trunk, z))[0].exp())
                head = model.reward_head
                terms = {
                    "consistency": ((z - wanted) ** 2).mean() * 0.5**t,
                    "reward": self.loss(affine(head.out, dense(head.trunk, joint)), row["rewards"]) * 0.5**t,
                    "value": sum(self.loss(out, target) for out in outs) / 3 * 0.5**t,
                    "cont": -(end if row["is_terminal"] else 1.0 - end).log(),
                }
                scales = {"consistency": 20.0, "reward": 0.1, "value": 0.1, "cont": 1.0}
                scales |= {name: self.options[f"{name}_scale"] for name in scales if f"{name}_scale" in self.options}
                for name, term in terms.items():
                    named[name] = named[name] + scales[name] * known * term.detach() / 9
                    total = total + scales[name] * known * term / 3
                priority += known * 0.5**t * sum(abs(float((self.number(out) - target).detach())) for out in outs)
                self.states[b].append((z.detach(), known))
            found.append(total * (weights[b] if weights is not None else 1.0))
            priorities.append(priority)
        return sum(found) / size, named, priorities

    def actor_loss(self):
        noise, values, bonuses, shares = fixed_noise((4, 3, 2)).double(), [], [], []
        for t in range(4):
            for b in range(3):
                z, known = self.states[b][t]
                action, bonus = self.policy(z, noise[t, b])
                outs = [self.number(out) for out in self.critics(self.net.critic, torch.cat([z, action]))]
                values.append(min(outs) if self.first else sum(outs) / 3)
                bonuses.append(bonus)
                shares.append(known * 0.5**t)
        if not self.first:
            low, _, high = sorted(float(value.detach()) for value in values[:3])
            middle = sorted(float(value.detach()) for value in values[:3])[1]
            spread = (middle + 0.9 * (high - middle)) - (low + 0.1 * (middle - low))  # 5 and 95 % of three numbers
            self.scale += 0.3 * (max(1.0, spread) - self.scale)
        entropy = self.options["entropy_scale"]
        gains = [s * (v / self.scale + entropy * e) for s, v, e in zip(shares, values, bonuses, strict=True)]
        return -sum(gains) / 12

    def update(self, batch):
        rows = {key: value.double() for key, value in batch.items()}
        loss, named, priorities = self.model_losses(rows, rows.get("weights"))
        parameters = [parameter for group in self.groups for parameter in group]
        gradients = torch.autograd.grad(loss, parameters)
        norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient * min(1.0, 0.2 / norm)
        for adam in self.adams:
            adam.step()
        actor_loss = self.actor_loss()
        for parameter, gradient in zip(
            self.net.actor.parameters(), torch.autograd.grad(actor_loss, list(self.net.actor.parameters())), strict=True
        ):
            parameter.grad = gradient  # its norm is far below the limit of 20
        self.actor_adam.step()
        self.updates += 1
        if not self.first or self.updates % 2 == 0:
            slow = [(self.net.slow_critic, self.net.critic)]
            slow += [(self.net.slow_model, self.net.world_model)] if self.first else []
            for target, source in slow:
                for old, new in zip(target.parameters(), source.parameters(), strict=True):
                    old.data += 0.3 * (new.data - old.data)
        found = {"loss": loss, "actor_loss": actor_loss, **{f"{name}_loss": term for name, term in named.items()}}
        numbers = {name: float(torch.as_tensor(number).detach()) for name, number in found.items()}
        return {**numbers, "grad_norm": norm, "value_scale": self.scale}, priorities


@pytest.mark.parametrize("first", [True, False], ids=["tdmpc", "tdmpc2"])
def test_updates_equal_loops(first, monkeypatch):
    ours = learner(monkeypatch, first=first)
    naive = Naive(ours, first=first)
    for _ in range(3):
        result, (expected, priorities) = (
            ours.update_agent(batch_of(first), phase=phase()),
            naive.update(batch_of(first)),
        )
        metrics = result
        if first:  # a batch with weights wants priorities back
            metrics = result.metrics
            assert result.write_back["priorities"].tolist() == pytest.approx(priorities, rel=1e-3)
        for name, number in expected.items():
            assert float(metrics[name]) == pytest.approx(number, rel=1e-3, abs=1e-5), name
    assert expected["grad_norm"] > 0.2  # the limit
    for mine, theirs in zip(ours.parameters(), naive.net.parameters(), strict=True):
        torch.testing.assert_close(mine.detach().double(), theirs.detach(), rtol=1e-2, atol=1e-3)


# loss and those of consistency, reward, value, cont and actor in three updates on `batch_of`, as `Naive` has them.
GOLDEN = {
    True: [
        [0.626835, 0.022739, 0.234492, 0.098076, 0.517765, -0.117096],
        [0.566333, 0.018459, 0.206056, 0.087465, 0.472799, -0.109232],
        [0.523729, 0.021251, 0.185241, 0.080868, 0.435278, -0.111237],
    ],
    False: [
        [0.757186, 0.001454, 0.14447, 0.139484, 0.471779, 0.163505],
        [0.734017, 0.001221, 0.141569, 0.134517, 0.456711, 0.118037],
        [0.713225, 0.001569, 0.138784, 0.129996, 0.442876, 0.07323],
    ],
}


@pytest.mark.parametrize("first", [True, False], ids=["tdmpc", "tdmpc2"])
def test_golden_losses(first, monkeypatch):
    workflow = learner(monkeypatch, first=first)
    for expected in GOLDEN[first]:
        metrics = workflow.update_agent(batch_of(first), phase=phase())
        metrics = metrics.metrics if first else metrics
        names = ("loss", *(f"{name}_loss" for name in ("consistency", "reward", "value", "cont", "actor")))
        assert [float(metrics[name]) for name in names] == pytest.approx(expected, rel=1e-3, abs=1e-5)


def test_what_follows_an_end_teaches_nothing():
    batch, other = batch_of(), batch_of()
    other["observations"][1, 3] += 5.0  # behind the end of an episode
    other["rewards"][1, 3] = other["actions"][1, 3, 0] = 1.0
    runs = []
    for rows in (batch, other):
        workflow = make_tdmpc()
        workflow.update_agent(rows, phase=phase())
        runs.append(torch.cat([p.detach().flatten() for p in workflow.parameters()]))
    assert torch.equal(*runs)
    other["rewards"][1, 2] = 1.0  # the end itself
    workflow = make_tdmpc()
    workflow.update_agent(other, phase=phase())
    assert not torch.equal(runs[0], torch.cat([p.detach().flatten() for p in workflow.parameters()]))


def test_critics_are_dropped_from_and_drawn_where_they_should():
    workflow = make_tdmpc(components=partial(parts, dropout=0.5, subset_size=2))
    for seed in (0, 1):
        torch.manual_seed(seed)
        metrics = workflow.update_agent(batch_of(), phase=phase())
    assert all(bool(value.isfinite()) for value in metrics.values())
    alike = make_tdmpc(components=partial(parts, dropout=0.5, subset_size=2))
    torch.manual_seed(2)
    assert float(alike.update_agent(batch_of(), phase=phase())["loss"]) != float(metrics["loss"])


# Acting.


def act(workflow, obs, carry=None, is_first=None, *, explore=True, step=10**9):
    count = len(next(iter(obs.values()))) if isinstance(obs, dict) else len(obs)
    carry = workflow.initial_carry(count) if carry is None else carry
    first = torch.ones(count, dtype=torch.bool) if is_first is None else is_first
    with torch.inference_mode():
        return workflow.act(obs, carry, is_first=first, explore=explore, step=step)


def planning(workflow, action, std=(0.1, 0.2)):
    """Let the planner always find this action."""

    def plan(rollout, count, *args, horizon, **options):
        belief = torch.zeros(count, 3, len(action))
        return Plan(action.expand(horizon, count, -1), belief, torch.tensor(std).expand(horizon, count, -1))

    workflow.planner.plan = plan
    return workflow


def test_exploration_is_as_wide_as_the_search_ended():
    workflow = planning(make_tdmpc(), torch.tensor([0.25, -0.5]))
    obs = torch.randn(3000, 3)
    actions, extras, carry = act(workflow, obs)
    assert extras == {}
    assert carry["plan"].shape == (3000, 3, 2)
    torch.testing.assert_close(actions.mean(0), torch.tensor([0.5, -1.0]), atol=0.02, rtol=0)  # bounds are -2 and 2
    torch.testing.assert_close(actions.std(0), torch.tensor([0.2, 0.4]), atol=0.02, rtol=0)
    actions, _, _ = act(workflow, obs, explore=False)
    torch.testing.assert_close(actions, torch.tensor([[0.5, -1.0]]).expand(3000, -1))
    actions, _, carry = act(make_tdmpc(random_steps=10), obs, step=9)
    assert float(actions.var()) == pytest.approx(4 / 3, rel=0.05)  # of a uniform draw from [-2, 2]
    assert not bool(carry["plan"].any())


def test_choices_are_planned_over_allowed_ones_and_disturbed_with_probability_epsilon():
    workflow = make_tdmpc(CHOICE, epsilon=0.4)
    mask = torch.rand(500, 4) < 0.5
    mask[:, 1] = True
    actions, _, _ = act(workflow, {"x": torch.randn(500, 3), ACTION_MASK: mask})
    assert bool(mask.gather(1, actions[:, None]).all())
    obs = {"x": torch.randn(5000, 3), ACTION_MASK: torch.ones(5000, 4, dtype=torch.bool)}
    actions, _, _ = act(planning(workflow, torch.tensor([0.0, 0.0, 1.0, 0.0]), ()), obs)
    shares = torch.bincount(actions, minlength=4) / 5000
    torch.testing.assert_close(shares, torch.tensor([0.1, 0.1, 0.7, 0.1]), atol=0.02, rtol=0)
    actions, _, _ = act(workflow, obs, explore=False)
    assert bool((actions == 2).all())


def test_plans_grow_longer_and_narrower():
    workflow = make_tdmpc(
        components=partial(parts, planner=MPPI(5, 16, 4, 2, min_std=0.05)),
        horizon_steps=100,
        initial_std=0.5,
        std_steps=50,
    )
    assert [workflow._horizon(step) for step in (0, 24, 25, 50, 99, 100, 10**6)] == [1, 1, 2, 3, 4, 5, 5]
    seen, plan = [], workflow.planner.plan

    def watched(*args, **options):
        seen.append((options["horizon"], round(float(options["min_std"]), 4)))
        return plan(*args, **options)

    workflow.planner.plan = watched
    carry = workflow.initial_carry(2)
    for step in (0, 25, 50, 100):
        _, _, carry = act(workflow, torch.randn(2, 3), carry, torch.zeros(2, dtype=torch.bool), step=step)
        assert carry["plan"].shape == (2, 5, 2)
    assert seen == [(1, 0.5), (2, 0.275), (3, 0.05), (5, 0.05)]


def test_the_plan_before_is_gone_on_with_unless_an_episode_begins():
    workflow = make_tdmpc(components=partial(parts, planner=MPPI(3, 16, 4, 2)))
    seen, plan = [], workflow.planner.plan

    def watched(*args, **options):
        seen.append((options["belief"], options["is_first"]))
        return plan(*args, **options)

    workflow.planner.plan = watched
    _, _, carry = act(workflow, torch.randn(2, 3))
    is_first = torch.tensor([False, True])
    act(workflow, torch.randn(2, 3), carry, is_first)
    assert torch.equal(seen[1][0], carry["plan"])
    assert torch.equal(seen[1][1], is_first)
    cold = make_tdmpc(components=partial(parts, planner=CEM(3, 16, 4, 2)))
    assert cold.initial_carry(2) == {}
    assert act(cold, torch.randn(2, 3))[2] == {}


@pytest.mark.parametrize("spec", [SPEC, MIXED])
def test_environments_are_planned_for_at_once_and_apart(spec):
    """What one environment does must not depend on what the others see: only its rows of the noise are its own."""
    workflow = scrambled(make_tdmpc(spec, num_proposals=0))
    obs = torch.randn(3, 3)
    torch.manual_seed(0)
    together = act(workflow, obs, explore=False)[2]["plan"]
    other = torch.cat([obs[:2], torch.randn(1, 3)])
    torch.manual_seed(0)
    changed = act(workflow, other, explore=False)[2]["plan"]
    assert torch.equal(together[:2], changed[:2])
    assert not torch.equal(together[2], changed[2])


def test_a_task_gets_only_the_numbers_that_it_uses():
    tasks = partial(parts, tasks=TaskEmbedding(dim=4, action_dims=[2, 1]))
    workflow = scrambled(make_tdmpc(TASKS, tasks))
    obs = {"task": torch.arange(100) % 2, "x": torch.randn(100, 3)}
    for options in ({"step": 10**9}, {"explore": False}):
        actions, _, _ = act(workflow, obs, **options)
        assert not bool(actions[1::2, 1].any())
        assert bool(actions[1::2, 0].any())
        assert bool(actions[0::2, 1].any())
    batch = batch_of()
    rows = {"task": torch.tensor([0, 1, 1]).view(3, 1).expand(3, 4), "x": batch["observations"]}
    before = workflow.world_model.tasks.vectors.detach().clone()
    workflow.update_agent({**batch, "observations": rows}, phase=phase())
    assert bool((workflow.world_model.tasks.vectors.detach() != before).any())


def test_each_task_has_its_discount_in_targets_and_in_plans(monkeypatch):
    """Of 250 and 40 steps: those of two single ones, 0.98 and 0.95, in a model that is otherwise the same."""
    monkeypatch.setattr(BoundedNormal, "noise", staticmethod(fixed_noise))
    obs = {"task": torch.tensor([[0, 1, 1]]), "x": torch.randn(1, 3, 3)}
    rewards, goes_on, plans = torch.randn(1, 3), torch.tensor([[1.0, 1.0, 0.0]]), torch.rand(3, 3, 5, 2) * 2.0 - 1.0
    found = {}
    for gamma, steps in ((None, (250, 40)), (0.98, None), (0.95, None)):
        tasks = TaskEmbedding(dim=4, episode_steps=steps)
        workflow = scrambled(make_tdmpc(TASKS, partial(parts, tasks=tasks, subset_size=None), gamma=gamma))
        targets, _ = workflow._targets(obs, rewards, goes_on)
        state = workflow.world_model.encode(tree_map(lambda leaf: leaf[0], obs))
        found[gamma] = torch.cat([targets.T, workflow._planning.worth(state, plans)], 1)  # [tasks, 1 + sequences]
    torch.testing.assert_close(found[None], torch.cat([found[0.98][:1], found[0.95][1:]]))
    assert bool((found[0.98] != found[0.95])[:2].all())


def test_images_are_learned_from_and_acted_on():
    spec = EnvSpec("pixels", Box((3, 40, 40), dtype=torch.uint8), Box((2,), low=-2.0, high=2.0), 100)
    workflow, batch = make_tdmpc(spec), batch_of()
    images = torch.randint(0, 256, (3, 4, 3, 40, 40), dtype=torch.uint8)
    before = [parameter.detach().clone() for parameter in workflow.world_model.encoder.parameters()]
    losses = [workflow.update_agent({**batch, "observations": images}, phase=phase())["loss"] for _ in range(2)]
    assert all(bool(loss.isfinite()) for loss in losses)
    after = workflow.world_model.encoder.parameters()
    assert all(not torch.equal(old, new.detach()) for old, new in zip(before, after, strict=True))
    assert act(workflow, images[:, 0])[0].shape == (3, 2)
    torch.manual_seed(0)
    still = act(workflow, images[:, 0], explore=False)[0]
    torch.manual_seed(0)
    assert torch.equal(act(workflow, images[:, 0], explore=False)[0], still)  # nothing is moved where it acts


def test_nothing_waits_for_the_device():
    meta = torch.device("meta")  # has no values: reading one raises
    workflow = make_tdmpc(device=meta)
    for behaviour in (("random", 0), ("explore", 3), ("plan", 2)):
        carry = workflow.initial_carry(2)
        obs, is_first = torch.empty(2, 3, device=meta), torch.empty(2, dtype=torch.bool, device=meta)
        action, after = workflow._decide(behaviour, obs, carry, is_first)
        assert action.shape == (2, 2)
        assert after["plan"].shape == (2, 3, 2)
    rows = {key: leaf.to(meta).transpose(0, 1) for key, leaf in batch_of().items()}
    known = torch.ones(3, 3, device=meta)
    loss, states, _, priorities = workflow._explained(
        rows["observations"], rows["actions"][1:], rows["rewards"][1:], known, known, None
    )
    assert (loss.shape, states.z.shape, priorities.shape) == ((), (4, 3, 8), (3,))
    assert workflow._actor_loss(states, known)[0].shape == ()


def test_model_and_plans_are_evaluated():
    workflow = make_tdmpc()
    found = workflow.evaluate_world_model(batch_of(), phase=phase())
    assert {"prediction_error_3", "reward_error_1", "continue_brier", "planning_gain", "open_loop_latent"} <= set(found)
    assert float(found["planning_gain"].weight) == 3 * 64


# Whole runs.


def train(workflow, env, *, seed=0, random=50, updates=10, rounds=1, prioritized=False):
    """Collect at random, then update and collect by planning in turn; return the last metrics."""
    kind = PrioritizedSequenceBuffer if prioritized else SequenceBuffer
    buffer = kind(10_000, 32, 3, num_envs=env.num_envs, spec=env.spec, seed=seed)
    collector, done, metrics = make_collector(env, seed), 0, {}
    for vector_steps in (random, *[4] * rounds):
        result = collector.collect(workflow, vector_steps, env_steps=done, should_stop=lambda: False)
        buffer.add(result.trajectory)
        done += result.steps
        for _ in range(updates):
            metrics = workflow.update_agent(buffer.sample(), phase=phase())
            if isinstance(metrics, Update):
                buffer.write_back(metrics.write_back)
                metrics = metrics.metrics
    return metrics


@pytest.mark.parametrize("first", [True, False], ids=["tdmpc", "tdmpc2"])
def test_same_seed_same_parameters_other_seed_others(first):
    runs = []
    for seed in (3, 3, 4):
        env = Pendulum(4, max_episode_steps=9)
        workflow = make_tdmpc(env.spec, partial(parts, first=first), seed=seed, random_steps=60)
        train(workflow, env, seed=seed, random=15, updates=2, rounds=2, prioritized=first)
        runs.append(torch.cat([p.detach().flatten() for p in workflow.parameters()]))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


@pytest.mark.parametrize(("kind", "first"), [("discrete", False), ("continuous", True), ("mixed", True)])
def test_identity_is_learned(kind, first):
    task = {"kind": kind, "sizes": (1,) if kind == "continuous" else (2,)}
    env = Identity(8, **task)
    components = partial(parts, 16, first=first, planner=MPPI(1, 32, 4, 3))
    options = FIRST if first else {"reward_scale": 1.0, "lr": 3e-3}
    workflow = make_tdmpc(env.spec, components, random_steps=400, num_proposals=4, **options)
    train(workflow, env, updates=60, prioritized=first)
    assert score(workflow, Identity(8, **task)) > 0.8  # at random: 1/2, 1/3 and their mean


SMALL = ["training.num_eval_episodes=1", "algorithm.num_proposals=4"]
PENDULUM = ["+experiment=tdmpc2_pendulum_tensor", "environment.max_episode_steps=20", "training.total_timesteps=96"]
CARTPOLE = ["+experiment=tdmpc2_cartpole", "training.total_timesteps=96"]
MULTITASK = ["+experiment=tdmpc2_multitask", "training.total_timesteps=96"]
FIRST_ONE = ["+preset=tdmpc_cpu", "environment=tensor_pendulum", "experiment.name=first", *PENDULUM[1:]]


@pytest.mark.parametrize(
    ("overrides", "stop_at"),
    [
        (PENDULUM, 21),
        (CARTPOLE, 30),
        (MULTITASK, 25),
        ([*FIRST_ONE, "algorithm.horizon_steps=60", "algorithm.std_steps=60"], 29),
    ],
    ids=["numbers", "choices", "tasks", "tdmpc"],
)
def test_resume_is_exact_with_a_plan_on_its_way(overrides, stop_at, tmp_path):
    assert resumes_exactly([*overrides, *SMALL], tmp_path, stop_at=stop_at)
    halves, whole = (RunDirectory.open(path) for path in sorted(tmp_path.iterdir()))
    assert halves.metrics_file.read_bytes() == whole.metrics_file.read_bytes()
    state = CheckpointStore(halves.checkpoints).load_newest().state
    assert bool(state["collector"]["carry"]["plan"].any())


@pytest.mark.parametrize(
    ("limit", "frames_per_step", "random_steps"), [(1_000, 2, 2_500), (1_000, 1, 5_000), (300, 2, 1_000)]
)
def test_random_steps_follow_from_the_length_of_episodes(limit, frames_per_step, random_steps):
    """The larger of 1000 and 5 episodes, in decisions; then as many updates before the first plan."""
    chosen = ["+preset=tdmpc2", "experiment.name=x", "+environment=gymnasium", "environment.name=Pendulum-v1"]
    chosen += [f"environment.env_kwargs={{max_episode_steps: {limit}}}", "environment.num_envs=1"]
    chosen += [f"environment.wrappers=[{{action_repeat: {frames_per_step}}}]"]
    config = assemble(compose([*chosen, "training.total_timesteps=10_000"]), Targets(AllowList())).config
    assert config["algorithm"]["random_steps"] == random_steps
    durations = [phase.get("duration_steps", phase.get("duration_updates")) for phase in config["training"]["phases"]]
    assert durations == [random_steps, random_steps, 10_000 - random_steps]


@pytest.mark.parametrize("preset", ["tdmpc", "tdmpc2"])
def test_resume_is_exact_in_every_phase(preset, tmp_path):
    """Random steps, updates before the first plan, and both: one run that is stopped in each."""
    options = ["environment.max_episode_steps=20", "experiment.name=x", "training.total_timesteps=64"]
    chosen = [f"+preset={preset}", "+environment=tensor_pendulum", *options, *SMALL]
    assert resumes_in_phases(chosen, tmp_path, {"seed": 3, "pretrain": 8, "train": 7}) == []


@pytest.mark.learning
@pytest.mark.parametrize(
    ("name", "least"), [("tdmpc2_pendulum_tensor", -350), ("tdmpc2_cartpole", 300), ("tdmpc2_multitask", 15)]
)
def test_packaged_experiments_learn(name, least, tmp_path):
    assert run_packaged(name, tmp_path) > least  # at random: about -1200, 20 and 6


# Bad input.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"components": lambda: {**parts(), "planner": torch.nn.Linear(1, 1)}},
            r"components\.planner: needs a Planner",
        ),
        (
            {"components": lambda: {**parts(), "critic": torch.nn.Linear(1, 1)}},
            r"components\.critic: needs a QEns",
        ),
        (
            {"spec": EnvSpec("x", Box((3,)), Box((2,)), 9)},
            "TD-MPC needs finite action bounds, those of 'x' are infinite",
        ),
        ({"spec": EnvSpec("x", Box((3,)), Discrete(2))}, r"algorithm\.gamma: episodes of 'x' have no limit"),
        (
            {
                "spec": TASKS,
                "gamma": 0.9,
                "components": partial(parts, tasks=TaskEmbedding(dim=4, episode_steps=(9, 9))),
            },
            r"algorithm\.gamma: 0.9 would be every task's, world_model\.tasks\.episode_steps say others",
        ),
        (
            {"random_steps": 10, "config": {"training": {"total_timesteps": 10}}},
            r"algorithm\.random_steps: 10 env steps of random actions are not less than training\.total_timesteps=10",
        ),
    ],
)
def test_wrong_options_are_one_line(arguments, message):
    with pytest.raises(ConfigError, match=message) as error:
        make_tdmpc(**arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("override", "text"),
    [
        (
            "buffers.replay.sequence_length=1",
            "buffers.replay: sequence_length must be 2 rows or more, got 1: a step lies between two",
        ),
        (
            "components.world_model.group_size=7",
            "components.world_model.group_size: groups of 7 do not divide latent_dim=64",
        ),
        ("components.critic.subset_size=4", "components.critic.subset_size: 4 of 3 critics (num_members)"),
        ("components.planner.horizon=0", None),
        ("components.world_model.encoder.style.init=zeros", None),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(override, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAB_EXPERIMENTS", str(tmp_path / "experiments"))
    result = CliRunner().invoke(app, ["train", "+experiment=tdmpc2_pendulum_tensor", override])
    (line,) = result.output.strip().splitlines()
    assert line.startswith(f"error: {text or override.split('=')[0]}")
    assert result.exit_code == 2
    assert list(tmp_path.iterdir()) == []
