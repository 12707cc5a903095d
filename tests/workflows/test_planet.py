"""PlaNet: its loss and updates against plain loops, what plans are worth, how it acts, learns and resumes."""

import copy
import math
from functools import partial

import pytest
import torch

from rl_lab.buffers.sequence import SequenceBuffer
from rl_lab.components.dynamics import Latent
from rl_lab.components.layers import LayerStyle
from rl_lab.components.planners import CEM, MPPI, Plan
from rl_lab.components.rssm import RSSM
from rl_lab.components.scalar_heads import ContinueHead, ScalarHead
from rl_lab.components.world_decoder import WorldDecoder
from rl_lab.components.world_encoder import WorldEncoder
from rl_lab.components.world_model import KLTerms, WorldModel
from rl_lab.config.allow_list import AllowList
from rl_lab.config.build import assemble, build
from rl_lab.config.compose import compose
from rl_lab.config.targets import Targets
from rl_lab.core import (
    ACTION_MASK,
    Box,
    ConfigError,
    Discrete,
    EnvSpec,
    MultiDiscrete,
    Named,
    Optimizers,
    RngStreams,
    WorkflowContext,
    seed_everything,
)
from rl_lab.environments.identity import Identity
from rl_lab.environments.pendulum import Pendulum
from rl_lab.tracking.checkpoint import CheckpointStore
from rl_lab.tracking.run_directory import RunDirectory
from rl_lab.workflows.planet import PlaNet
from tests.workflows.off_policy import phase, resumes_exactly, run_packaged, score
from tests.workflows.parts import make_collector

torch.set_num_threads(1)
STYLE = LayerStyle(activation="relu", norm="none", init="glorot")
SPEC = EnvSpec("fixed", Box((3,)), Box((2,), low=-2.0, high=2.0))
CHOICE = EnvSpec("choice", {"x": Box((3,)), ACTION_MASK: Box((4,), dtype=torch.bool)}, Discrete(4))
CHOICES = EnvSpec("choices", Box((3,)), MultiDiscrete((2, 3)))
MIXED = EnvSpec("mixed", Box((3,)), {"gear": Discrete(4), "pedals": Box((2,), low=-2.0, high=2.0)})
CPU = torch.device("cpu")


def small_model(width=8, *, cont=False, free_nats=3.0, **options):
    """Return an unbound world model as PlaNet's, only smaller."""
    vision = {"units": width, "num_layers": 1, "style": STYLE, "symlog": False}
    rssm = RSSM(width, width, 4, latent="gaussian", core="gru", prior_layers=1, style=STYLE)
    reward = ScalarHead(width, 1, STYLE, kind="gaussian", scale=1.0)
    kl, head = KLTerms("step", free_nats), ContinueHead(width, 1, STYLE) if cont else None
    return WorldModel(WorldEncoder(**vision), rssm, WorldDecoder(**vision), reward, head, kl=kl, **options)


def make_planet(spec=SPEC, planner=None, model=None, *, seed=0, lr=1e-2, device=CPU, config=None, **options):
    """Return an initialised PlaNet; the same seed gives the same parameters."""
    seed_everything(seed)
    workflow = PlaNet(**options)
    components = {"world_model": model or small_model(), "planner": planner or CEM(3, 16, 4, 2)}
    factories = {"world_model": partial(torch.optim.Adam, lr=lr, eps=1e-4, fused=device == CPU)}
    with device:
        workflow.initialize(
            WorkflowContext(
                config=config or {},
                device=device,
                spec=spec,
                num_envs=4,
                components=Named("component", components),
                controllers=Named("controller", {}),
                optimizers=Optimizers(factories),
                buffers=Named("buffer", {}),
                rng=RngStreams(seed),
            )
        )
    return workflow


def fixed_batch(size=3, steps=5):
    """Return sequences that owe nothing to any random stream; an episode ends within, by the task's end."""
    grid = torch.arange(size * steps, dtype=torch.float32).view(size, steps)
    is_first = torch.zeros(size, steps, dtype=torch.bool)
    is_first[0, 0] = is_first[1, 3] = True
    is_terminal = torch.zeros(size, steps, dtype=torch.bool)
    is_terminal[1, 2] = True
    return {
        "observations": torch.stack([grid.mul(0.37).sin(), grid.mul(0.21).cos(), grid.mul(0.11)], -1),
        "actions": torch.stack([grid.mul(0.9).sin(), grid.mul(0.5).cos()], -1) * 2,
        "rewards": grid.mul(0.3).cos(),
        "is_first": is_first,
        "is_terminal": is_terminal,
    }


def fixed_noise(shape, device=None):
    """Return the noise of samples: 4 numbers for each."""
    count = math.prod(shape) * 4
    return torch.arange(count, dtype=torch.float32).mul(1.3).sin().view(*shape, 4)


def test_imagine_follows_actions_or_a_plan():
    workflow = with_fixed_parameters(make_planet())
    start = Latent(torch.rand(2, 8), torch.rand(2, 4))
    actions = torch.rand(3, 2, 2)
    dream = workflow.imagine(start, actions)
    assert dream.features.shape == (4, 2, 12)
    assert torch.equal(dream.actions, actions)
    torch.testing.assert_close(dream.features[0], workflow.world_model.rssm.features(start))
    worth = workflow._worth(start, actions.unsqueeze(2)).squeeze(-1)
    torch.testing.assert_close(workflow.world_model.reward(dream.features[1:]).sum(0), worth)
    assert workflow.imagine(start).actions.shape == (workflow.planner.horizon, 2, 2)


def with_fixed_parameters(workflow):
    for parameter in workflow.parameters():
        count = torch.arange(parameter.numel(), dtype=torch.float32).view_as(parameter)
        parameter.data.copy_(count.mul(0.7).sin() * 0.4)
    workflow.world_model.rssm.latent_space.noise = fixed_noise
    return workflow


# What follows is the algorithm once more: one sequence and one step after the other, in float64.


def affine(layer, x):
    return x @ layer.weight.T + layer.bias


def hidden(stack, x):
    return affine(stack[0], x).clamp(min=0.0)


def gru(cell, x, h):
    from_x = (x @ cell.weight_ih.T + cell.bias_ih).chunk(3)
    from_h = (h @ cell.weight_hh.T + cell.bias_hh).chunk(3)
    reset, keep = (1.0 / (1.0 + (-a - b).exp()) for a, b in zip(from_x[:2], from_h[:2], strict=True))
    return keep * h + (1.0 - keep) * (from_x[2] + reset * from_h[2]).tanh()


def joint(split, early, late):
    """Return a layer over two inputs, of which one brings the bias."""
    return (early @ split.early.weight.T + split.early.bias + late @ split.late.weight.T).clamp(min=0.0)


def normal(raw):
    mean, spread = raw.chunk(2)
    return mean, (1.0 + spread.exp()).log() + 0.1


class Naive:
    """PlaNet's update from the paper: filter each sequence, sum the losses, clip, Adam."""

    def __init__(self, workflow, lr, max_norm):
        self.model = copy.deepcopy(workflow.world_model).double()
        self.max_norm = max_norm
        self.adam = torch.optim.Adam(self.model.parameters(), lr=lr, eps=1e-4)

    def losses(self, batch):
        model, rows = self.model, {key: value.double() for key, value in batch.items()}
        size, steps = rows["rewards"].shape
        noise = fixed_noise((steps, size)).double()
        found = {name: [] for name in ("kl", "decoder_vector", "reward", "cont")}
        for b in range(size):
            deter, stoch = torch.zeros(8).double(), torch.zeros(4).double()
            for t in range(steps):
                row = {key: value[b, t] for key, value in rows.items()}
                if row["is_first"]:
                    deter, stoch, row["actions"] = deter * 0.0, stoch * 0.0, row["actions"] * 0.0
                for name, value in self.step(row, deter, stoch, noise[t, b]).items():
                    found[name].append(value)
                deter, stoch = self.state
        means = {name: torch.stack(values).mean() for name, values in found.items()}
        learnt = [value.clamp(min=model.kl_terms.free_nats) for value in found["kl"]]
        terms = {"kl": torch.stack(learnt).mean(), "reward": 10.0 * means["reward"]}
        return means["kl"], terms | {name: means[name] for name in ("decoder_vector", "cont")}

    def step(self, row, deter, stoch, noise):
        model, rssm = self.model, self.model.rssm
        deter = gru(rssm.core.cell, joint(rssm.core.input, row["actions"] / 2.0, stoch), deter)
        token = hidden(model.encoder.vectors, row["observations"])
        mean, std = normal(affine(rssm.posterior_output, joint(rssm.posterior_input, token, deter)))
        prior_mean, prior_std = normal(affine(rssm.prior[1], hidden(rssm.prior[0], deter)))
        self.state = deter, mean + std * noise
        x = torch.cat(self.state)
        error = affine(model.decoder.vectors[1], hidden(model.decoder.vectors[0], x)) - row["observations"]
        reward = affine(model.reward_head.out, hidden(model.reward_head.trunk, x)).squeeze(0)
        ends = 1.0 / (1.0 + affine(model.cont_head.out, hidden(model.cont_head.trunk, x)).squeeze(0).exp())
        ratio = (std / prior_std) ** 2
        return {
            "kl": (0.5 * (ratio + ((mean - prior_mean) / prior_std) ** 2 - 1.0 - ratio.log())).sum(),
            "decoder_vector": 0.5 * (error**2).sum(),
            "reward": 0.5 * (reward - row["rewards"]) ** 2,
            "cont": -(ends if row["is_terminal"] else 1.0 - ends).log(),
        }

    def update(self, batch):
        kl, terms = self.losses(batch)
        loss = sum(terms.values())
        self.adam.zero_grad()
        loss.backward()
        gradients = [parameter.grad for parameter in self.model.parameters()]
        norm = math.sqrt(sum(float((gradient**2).sum()) for gradient in gradients))
        for gradient in gradients:
            gradient.mul_(min(1.0, self.max_norm / norm))
        self.adam.step()
        found = {"loss": loss, "kl": kl, **{f"{name}_loss": term for name, term in terms.items()}}
        return {"grad_norm": norm, **{name: float(number.detach()) for name, number in found.items()}}


def learner(free_nats=0.5, max_grad_norm=1000.0):
    model = small_model(cont=True, free_nats=free_nats, reward_scale=10.0)
    return with_fixed_parameters(make_planet(model=model, max_grad_norm=max_grad_norm))


@pytest.mark.parametrize(("free_nats", "max_norm"), [(0.0, 1000.0), (0.0, 1.0), (100.0, 1000.0)])
def test_updates_equal_loops(free_nats, max_norm):
    ours = learner(free_nats, max_norm)
    naive = Naive(ours, 1e-2, max_norm)
    for _ in range(3):
        metrics, expected = ours.update_world_model(fixed_batch(), phase=phase()), naive.update(fixed_batch())
        for name, number in expected.items():
            assert float(metrics[name]) == pytest.approx(number, rel=1e-3, abs=1e-5), name
    assert (expected["kl_loss"] == 100.0) == (free_nats == 100.0)
    assert expected["grad_norm"] > 1.0  # of which more than 1.0 is cut off where that is the limit
    pairs = zip(ours.world_model.parameters(), naive.model.parameters(), strict=True)
    for mine, theirs in pairs:
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-2, atol=1e-3)


# loss, kl_loss, decoder_vector_loss, reward_loss and cont_loss of three updates on `fixed_batch`, as `Naive` has them.
GOLDEN = [
    [6.565765, 0.648671, 0.891175, 4.486503, 0.539415],
    [5.631984, 0.5, 0.801034, 3.81521, 0.51574],
    [4.852191, 0.5, 0.712854, 3.145527, 0.493809],
]


def test_golden_losses():
    workflow = learner()
    naive, names = Naive(workflow, 1e-2, 1000.0), ("loss", "kl_loss", "decoder_vector_loss", "reward_loss", "cont_loss")
    for expected in GOLDEN:
        for metrics in (workflow.update_world_model(fixed_batch(), phase=phase()), naive.update(fixed_batch())):
            assert [float(metrics[name]) for name in names] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("cont", [True, False])
def test_plans_are_worth_the_rewards_until_the_end(cont):
    workflow = with_fixed_parameters(make_planet(model=small_model(cont=cont)))
    model, generator = workflow.world_model, torch.Generator().manual_seed(1)
    start = Latent(torch.randn(2, 8, generator=generator), torch.randn(2, 4, generator=generator))
    sequences = torch.rand(4, 2, 3, 2, generator=generator) * 2 - 1  # [H, N, K, A]
    noise = fixed_noise((4, 6)).view(4, 2, 3, 4)
    with torch.no_grad():
        found = workflow._worth(start, sequences)
        for env in range(2):
            for candidate in range(3):
                latent, total, alive = Latent(start.deter[env : env + 1], start.stoch[env : env + 1]), 0.0, 1.0
                for step in range(4):
                    action, drawn = sequences[step, env, candidate], noise[step, env, candidate]
                    latent = model.rssm.imagine_step(latent, action[None], drawn[None])
                    features = torch.cat(latent, -1)
                    total += alive * float(model.reward(features))
                    alive *= float(model.cont(features)) if cont else 1.0
                assert float(found[env, candidate]) == pytest.approx(total, rel=1e-4, abs=1e-5)
    assert alive < 0.9 or not cont


# Acting.


def act(workflow, obs, carry=None, is_first=None, *, explore=True, step=10**9):
    count = len(next(iter(obs.values()))) if isinstance(obs, dict) else len(obs)
    carry = workflow.initial_carry(count) if carry is None else carry
    first = torch.ones(count, dtype=torch.bool) if is_first is None else is_first
    with torch.inference_mode():
        return workflow.act(obs, carry, is_first=first, explore=explore, step=step)


def planning(workflow, action):
    """Let the planner always find this action."""
    workflow.planner.plan = lambda rollout, count, *args, **kw: Plan(action.expand(3, count, -1), None, None)
    return workflow


def test_noise_is_added_where_it_explores_and_the_carry_holds_what_was_done():
    workflow = planning(make_planet(noise_std=0.1), torch.tensor([0.25, -0.5]))
    obs = torch.randn(3000, 3)
    actions, extras, carry = act(workflow, obs)
    assert extras == {}
    torch.testing.assert_close(actions.mean(0), torch.tensor([0.5, -1.0]), atol=0.02, rtol=0)  # bounds are -2 and 2
    torch.testing.assert_close(actions.std(0), torch.tensor([0.2, 0.2]), atol=0.01, rtol=0)
    torch.testing.assert_close(carry["action"], actions / 2)
    actions, _, carry = act(workflow, obs, explore=False)
    torch.testing.assert_close(actions, torch.tensor([[0.5, -1.0]]).expand(3000, -1))
    loud = planning(make_planet(noise_std=5.0), torch.zeros(2))
    assert float(act(loud, obs)[0].abs().max()) == 2.0


def test_random_steps_are_uniform_and_planned_by_nobody():
    workflow = make_planet(random_steps=10)
    workflow.planner.plan = None
    actions, _, carry = act(workflow, torch.zeros(3000, 3), step=9)
    assert float(actions.var()) == pytest.approx(4 / 3, rel=0.05)  # of a uniform draw from [-2, 2]
    assert bool(carry["stoch"].any())  # the state is filtered all the same
    with pytest.raises(TypeError):
        act(workflow, torch.zeros(2, 3), step=10)
    with pytest.raises(TypeError):
        act(workflow, torch.zeros(2, 3), step=9, explore=False)


def test_choices_are_planned_over_allowed_ones_and_disturbed_with_probability_epsilon():
    workflow = make_planet(CHOICE, CEM(3, 16, 4, 2), epsilon=0.4)
    mask = torch.rand(2000, 4) < 0.5
    mask[:, 1] = True
    actions, _, carry = act(workflow, {"x": torch.randn(2000, 3), ACTION_MASK: mask})
    assert actions.shape == (2000,)
    assert bool(mask.gather(1, actions[:, None]).all())
    assert torch.equal(carry["action"].argmax(-1), actions)
    assert torch.equal(carry["action"].sum(-1), torch.ones(2000))
    obs = {"x": torch.randn(5000, 3), ACTION_MASK: torch.ones(5000, 4, dtype=torch.bool)}
    actions, _, _ = act(planning(workflow, torch.tensor([0.0, 0.0, 1.0, 0.0])), obs)
    shares = torch.bincount(actions, minlength=4) / 5000
    torch.testing.assert_close(shares, torch.tensor([0.1, 0.1, 0.7, 0.1]), atol=0.02, rtol=0)
    actions, _, _ = act(workflow, obs, step=10**9, explore=False)
    assert bool((actions == 2).all())


def test_several_choices_at_once():
    workflow = make_planet(CHOICES, random_steps=5)
    for step in (0, 5):
        actions, _, carry = act(workflow, torch.randn(500, 3), step=step)
        assert actions.shape == (500, 2)
        assert [set(column.tolist()) <= set(range(size)) for column, size in zip(actions.T, (2, 3), strict=True)]
        torch.testing.assert_close(workflow.world_model.actions(actions), carry["action"])


def test_exploring_disturbs_numbers_always_and_choices_sometimes():
    found = torch.tensor([0.25, -0.5, 0.0, 0.0, 1.0, 0.0])
    workflow, obs = planning(make_planet(MIXED, noise_std=0.1, epsilon=0.4), found), torch.randn(5000, 3)
    actions, _, carry = act(workflow, obs)
    torch.testing.assert_close(actions["pedals"].mean(0), torch.tensor([0.5, -1.0]), atol=0.02, rtol=0)
    torch.testing.assert_close(actions["pedals"].std(0), torch.tensor([0.2, 0.2]), atol=0.01, rtol=0)
    shares = torch.bincount(actions["gear"], minlength=4) / 5000
    torch.testing.assert_close(shares, torch.tensor([0.1, 0.1, 0.7, 0.1]), atol=0.02, rtol=0)
    torch.testing.assert_close(workflow.world_model.actions(actions), carry["action"])
    planned, _, _ = act(make_planet(MIXED), obs[:4], explore=False)
    assert {name: part.shape for name, part in planned.items()} == {"gear": (4,), "pedals": (4, 2)}


def test_an_episode_starts_anew():
    workflow, obs = make_planet(planner=MPPI(3, 16, 4, 2)), torch.randn(2, 3)
    _, _, carry = act(workflow, obs)
    assert set(carry) == {"deter", "stoch", "action", "plan"}
    seen = []
    for before in (carry, workflow.initial_carry(2)):
        torch.manual_seed(0)
        seen.append(act(workflow, obs, before, torch.tensor([True, False]), explore=False))
    (fresh, _, fresh_carry), (begun, _, begun_carry) = seen
    assert torch.equal(fresh[0], begun[0])
    assert not torch.equal(fresh[1], begun[1])
    assert torch.equal(fresh_carry["deter"][0], begun_carry["deter"][0])
    assert not torch.equal(fresh_carry["deter"][1], begun_carry["deter"][1])


def test_nothing_waits_for_the_device():
    meta = torch.device("meta")  # has no values: reading one raises
    workflow = make_planet(model=small_model(cont=True), planner=MPPI(3, 8, 4, 2), device=meta)
    carry, obs = workflow.initial_carry(2), torch.empty(2, 3, device=meta)
    for behaviour in ("random", "noisy", "plan"):
        action, after = workflow._decide(behaviour, obs, carry, torch.empty(2, dtype=torch.bool, device=meta))
        assert {key: leaf.shape for key, leaf in after.items()} == {key: leaf.shape for key, leaf in carry.items()}
    loss = sum(workflow.world_model.losses({key: leaf.to(meta) for key, leaf in fixed_batch().items()}).terms.values())
    assert loss.shape == action.shape[2:]


# Whole runs.


def train(workflow, env, *, seed=0, random=50, updates=10, rounds=1, batch_size=16, sequence_length=8):
    """Collect at random, then update and collect by planning in turn; return the last metrics."""
    buffer = SequenceBuffer(10_000, batch_size, sequence_length, num_envs=env.num_envs, spec=env.spec, seed=seed)
    collector, done, metrics = make_collector(env, seed), 0, {}
    for vector_steps in (random, *[4] * rounds):
        result = collector.collect(workflow, vector_steps, env_steps=done, should_stop=lambda: False)
        buffer.add(result.trajectory)
        done += result.steps
        for _ in range(updates):
            metrics = workflow.update_world_model(buffer.sample(), phase=phase())
    return metrics


@pytest.mark.parametrize("planner", [CEM, MPPI])
def test_same_seed_same_parameters_other_seed_others(planner):
    runs = []
    for seed in (3, 3, 4):
        env = Pendulum(4, max_episode_steps=9)
        workflow = make_planet(env.spec, planner(2, 8, 4, 2), seed=seed, random_steps=60)
        train(workflow, env, seed=seed, random=15, updates=2, rounds=2)
        runs.append(torch.cat([p.detach().flatten() for p in workflow.parameters()]))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


@pytest.mark.parametrize(
    ("kind", "planner"),
    [("discrete", CEM(1, 16, 4, 2)), ("continuous", MPPI(1, 24, 4, 4)), ("mixed", CEM(1, 32, 4, 4))],
)
def test_identity_is_learned(kind, planner):
    task = {"kind": kind, "sizes": (1,) if kind == "continuous" else (2,)}
    env = Identity(8, **task)
    model = small_model(16, free_nats=1.0, reward_scale=10.0)
    workflow = make_planet(env.spec, planner, model, random_steps=400)
    train(workflow, env, updates=80)
    assert score(workflow, Identity(8, **task)) > 0.8  # at random: 1/2, 1/3 and their mean


SMALL = [
    "components.planner.horizon=3",
    "components.planner.num_candidates=8",
    "components.planner.num_elites=4",
    "components.planner.num_iterations=2",
    "components.world_model.rssm.deter_dim=8",
    "training.num_eval_episodes=1",
]
PENDULUM = ["+experiment=planet_pendulum_tensor", "training.total_timesteps=96", "environment.max_episode_steps=20"]
CARTPOLE = ["+experiment=planet_cartpole", "training.total_timesteps=64"]
BOTH = ["+experiment=planet_mixed_actions", "training.total_timesteps=96"]


@pytest.mark.parametrize(
    ("overrides", "planner", "stop_at"),
    [(PENDULUM, "MPPI", 41), (CARTPOLE, "CEM", 70), (BOTH, "MPPI", 31)],
    ids=["numbers", "choices", "both"],
)
def test_resume_is_exact_with_a_plan_on_its_way(overrides, planner, stop_at, tmp_path):
    target = f"components.planner._target_=rl_lab.components.planners.{planner}"
    overrides = [*overrides, *SMALL, target, "components.planner.warm_start=true"]
    assert resumes_exactly(overrides, tmp_path, stop_at=stop_at)
    halves, whole = (RunDirectory.open(path) for path in sorted(tmp_path.iterdir()))
    assert halves.metrics_file.read_bytes() == whole.metrics_file.read_bytes()
    state = CheckpointStore(halves.checkpoints).load_newest().state
    assert bool(state["collector"]["carry"]["plan"].any())


@pytest.mark.learning
@pytest.mark.parametrize(
    ("name", "steps", "least"), [("planet_pendulum_tensor", 6000, -600), ("planet_pendulum_mlp", 2500, -300)]
)
def test_the_packaged_pendulum_is_swung_up(name, steps, least, tmp_path):
    overrides = [f"+experiment={name}", f"training.total_timesteps={steps}", "training.eval_frequency=null"]
    parts = assemble(compose([*overrides, "+logging=quiet"]), Targets(AllowList()))
    orchestrator = build(parts, RunDirectory.create(tmp_path, "pendulum", 1))
    orchestrator.run()
    assert orchestrator.evaluator.evaluate(parts.workflow, step=10**9)["return"] > least  # at random: about -1200


@pytest.mark.learning
def test_the_packaged_mixed_actions_are_learned(tmp_path):
    assert run_packaged("planet_mixed_actions", tmp_path) > 8.5  # of 10; at random: 2.9


# Bad input.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"planner": torch.nn.Linear(1, 1)}, r"components\.planner: needs a planner \(choices: CEM, MPPI"),
        ({"model": torch.nn.Linear(1, 1)}, r"components\.world_model: needs a WorldModel"),
        ({"spec": EnvSpec("x", Box((3,)), Box((2,)))}, "PlaNet needs finite action bounds, those of 'x' are infinite"),
        (
            {"random_steps": 10, "config": {"training": {"total_timesteps": 10}}},
            r"algorithm\.random_steps: 10 env steps of random actions are not less than training\.total_timesteps=10",
        ),
    ],
)
def test_wrong_options_are_one_line(arguments, message):
    with pytest.raises(ConfigError, match=message):
        make_planet(**arguments)
