"""Several agents trained as one: each learns what it would learn alone, and only from its own environments."""

import copy
import json
from functools import partial
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from rl_lab.cli.main import app
from rl_lab.components.dynamics import Latent
from rl_lab.components.scan import Scan
from rl_lab.components.world_model import read_rows
from rl_lab.config.allow_list import AllowList
from rl_lab.config.build import assemble
from rl_lab.config.compose import compose
from rl_lab.config.targets import Targets
from rl_lab.core import Picture, Update, tree_cat, tree_map
from rl_lab.ops.world_distributions import OneHot
from tests.workflows.off_policy import phase, resumes_exactly
from tests.workflows.parts import collect, make_collector
from tests.workflows.test_dreamer import NAMES, SIZES

NUM = 3
CLOSE = {"rel": 1e-4, "abs": 1e-5}
# With the presets' own epsilons a first step is the learning rate times the sign of a gradient: where that is rounding
# around 0, two right computations step apart by twice the rate, whatever the agents share. Gradients themselves agree
# to 1e-5 of their tensor (below); parameters do where a step is a smooth function of its gradient.
SMOOTH = [f"++optimizers.{name}.eps=0.1" for name in NAMES]


def make(preset, env, *, seed=1, num=1, way="eager", device="cpu"):
    options = [f"experiment.seed={seed}", f"experiment.num_seeds={num}", f"experiment.compile={way}"]
    options += PLANET if preset == "planet" else (*SIZES, *SMOOTH)
    options.append(f"experiment.device={device}")
    if preset == "dreamer_v3":
        options += [f"optimizers.{name}.{key}" for name in NAMES for key in ("warmup=0", "lr=0.01")]
    composed = compose([f"+preset={preset}", f"+environment={env}", "budget=tiny", *options])
    return assemble(composed, Targets(AllowList()))


def same_noise(monkeypatch):
    """Let every draw of a shape be the same numbers, for agents that are trained alone and for each of several."""
    drawn = {}

    def fixed(real, *shape, **options):
        shape = tuple(shape[0]) if isinstance(shape[0], tuple) else shape
        if (real, shape) not in drawn:
            drawn[real, shape] = real(shape, generator=torch.Generator().manual_seed(7))
        return drawn[real, shape].to(options.get("device") or "cpu", copy=True)

    for name in ("rand", "randn"):
        monkeypatch.setattr(torch, name, partial(fixed, getattr(torch, name)))
    monkeypatch.setattr(OneHot, "noise", staticmethod(lambda shape, device: gumbel(torch.rand(shape, device=device))))


def gumbel(uniform):
    return -(-uniform.log()).log()


def update(workflow, batch):
    hook = workflow.update_agent if "update_agent" in workflow.hooks() else workflow.update_world_model
    found = hook(batch, phase=phase())
    return (found.metrics, found.write_back) if isinstance(found, Update) else (found, {})


PRESETS = [
    ("dreamer_v3", "tensor_cartpole"),
    ("dreamer_v3_2023", "tensor_pendulum"),
    ("dreamer_v2_discrete", "tensor_cartpole"),
    ("dreamer_v1", "tensor_pendulum"),
    ("planet", "tensor_pendulum"),
]
PLANET = (
    *(option for option in SIZES if not option.startswith("algorithm.horizon")),
    *("algorithm.random_steps=10_000", "++optimizers.world_model.eps=0.1", "components.planner.warm_start=true"),
    *(f"components.planner.{option}" for option in ("num_candidates=20", "num_elites=4", "num_iterations=3")),
)


def alone_and_together(preset, env, monkeypatch, device="cpu"):
    """Return agents that are trained alone, their batches, and the same agents as one."""
    alone = [make(preset, env, seed=1 + agent, device=device) for agent in range(NUM)]
    batches = []
    for made in alone:
        made.context.buffers["replay"].add(collect(make_collector(made.env), made.workflow, 40))
        batches.append(made.context.buffers["replay"].sample())
    together = make(preset, env, num=NUM, device=device).workflow
    same_noise(monkeypatch)
    return [made.workflow for made in alone], batches, together


@pytest.mark.parametrize(("preset", "env"), PRESETS)
def test_updates_are_those_of_agents_alone(preset, env, monkeypatch):
    alone, batches, together = alone_and_together(preset, env, monkeypatch)
    for agent, workflow in enumerate(alone):  # values that are not 0, so that the scale of returns moves
        if preset == "dreamer_v3_2023":
            torch.nn.init.normal_(workflow.critic.out.weight, generator=torch.Generator().manual_seed(agent))
            together.critic.out.weight.data[agent] = workflow.critic.out.weight.data
    before = copy.deepcopy(dict(together.named_parameters()))
    for _ in range(2):
        rows = [update(agent, batch)[0] for agent, batch in zip(alone, batches, strict=True)]
        found, _ = update(together, tree_cat(batches))
        for name in rows[0]:
            own = [float(row[name]) for row in rows]
            assert [float(found[f"{name}/seed_{agent}"]) for agent in range(NUM)] == pytest.approx(own, **CLOSE), name
            assert float(found[name]) == pytest.approx(sum(own) / NUM, **CLOSE), name
    for agent, workflow in enumerate(alone):
        for name, own in workflow.state_dict().items():
            torch.testing.assert_close(together.state_dict()[name][agent], own, rtol=1e-5, atol=1e-6, msg=name)
    if preset == "dreamer_v3_2023":
        assert (together.return_scale.high - together.return_scale.low).min() > 0.01
    moved = [name for name, now in together.named_parameters() if not torch.equal(before[name], now)]
    assert len(moved) > 0.9 * len([name for name in before if not name.startswith("slow")])


@pytest.mark.parametrize("preset", ["dreamer_v3", "dreamer_v2"])
def test_gradients_are_those_of_agents_alone_as_a_gpu_computes_them(preset, monkeypatch):
    alone, batches, together = alone_and_together(preset, "tensor_pendulum", monkeypatch)
    monkeypatch.setattr(Scan, "__call__", Scan.at_once)

    def gradients(workflow, batch):
        loss = workflow.world_model.losses(batch).total.sum()
        return torch.autograd.grad(loss, list(workflow.world_model.parameters()))

    single = [gradients(agent, read_rows(batch)) for agent, batch in zip(alone, batches, strict=True)]
    found = gradients(together, together._rows(tree_cat(batches)))
    for agent, expected in enumerate(single):
        for mine, own in zip(found, expected, strict=True):
            assert (mine[agent] - own).norm() <= 1e-5 * own.norm()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("preset", "env"), PRESETS)
def test_an_update_is_that_of_agents_alone_on_a_gpu(preset, env, monkeypatch):
    alone, batches, together = alone_and_together(preset, env, monkeypatch, "cuda")
    rows = [update(agent, batch)[0] for agent, batch in zip(alone, batches, strict=True)]
    found, _ = update(together, tree_cat(batches))
    for name in rows[0]:
        own = [float(row[name]) for row in rows]
        assert [float(found[f"{name}/seed_{agent}"]) for agent in range(NUM)] == pytest.approx(own, **CLOSE), name
    for agent, workflow in enumerate(alone):
        for name, own in workflow.state_dict().items():
            torch.testing.assert_close(together.state_dict()[name][agent], own, rtol=1e-5, atol=1e-5, msg=name)


def test_each_agent_decides_for_its_own_environments(monkeypatch):
    alone, _, together = alone_and_together("dreamer_v3", "tensor_cartpole", monkeypatch)
    obs, is_first = torch.randn(NUM, 2, 4), torch.tensor([True, False])
    carry = tree_map(torch.randn_like, together.initial_carry(NUM * 2))
    options, expected = {"explore": False, "step": 10**6}, []
    for agent, workflow in enumerate(alone):
        own = {key: value.chunk(NUM)[agent] for key, value in carry.items()}
        expected.append(workflow.act(obs[agent], own, is_first=is_first, **options))
    actions, extras, after = together.act(obs.flatten(0, 1), carry, is_first=is_first.repeat(NUM), **options)
    for agent, (mine, _, follows) in enumerate(expected):
        assert torch.equal(actions.chunk(NUM)[agent], mine)
        for key, value in follows.items():
            torch.testing.assert_close(after[key].chunk(NUM)[agent], value, rtol=1e-5, atol=1e-6)
    assert set(extras["latent"]) == {"deter", "stoch"}


def test_each_agent_plans_in_its_own_model(monkeypatch):
    alone, _, together = alone_and_together("planet", "tensor_pendulum", monkeypatch)
    obs, is_first = torch.randn(NUM, 2, 3), torch.tensor([True, False])
    carry = tree_map(torch.randn_like, together.initial_carry(NUM * 2))
    options, expected = {"explore": False, "step": 10**6}, []
    for agent, workflow in enumerate(alone):
        own = {key: value.chunk(NUM)[agent] for key, value in carry.items()}
        dream = workflow.imagine(Latent(own["deter"], own["stoch"]))
        expected.append((*workflow.act(obs[agent], own, is_first=is_first, **options), dream))
    actions, _, after = together.act(obs.flatten(0, 1), carry, is_first=is_first.repeat(NUM), **options)
    all_of = together.imagine(Latent(carry["deter"], carry["stoch"]))
    for agent, (mine, _, follows, dream) in enumerate(expected):
        pairs = [(actions, mine), *((after[key], value) for key, value in follows.items())]
        pairs += [(all_of[field].transpose(0, 1), leaf.transpose(0, 1)) for field, leaf in enumerate(dream)]
        for found, own in pairs:
            torch.testing.assert_close(found.chunk(NUM)[agent], own, rtol=1e-4, atol=1e-5)
    assert not torch.equal(expected[0][0], expected[1][0])


def test_each_agent_imagines_with_its_own_weights(monkeypatch):
    alone, _, together = alone_and_together("dreamer_v3", "tensor_cartpole", monkeypatch)
    carry = tree_map(torch.randn_like, together.initial_carry(NUM * 2))
    start = Latent(carry["deter"], carry["stoch"])
    starts = zip(*(leaf.chunk(NUM) for leaf in start), strict=True)
    single = [agent.imagine(Latent(*own), horizon=3) for agent, own in zip(alone, starts, strict=True)]
    dream = together.imagine(start, horizon=3)
    assert dream.features.shape[:2] == (4, NUM * 2)
    for agent, own in enumerate(single):
        torch.testing.assert_close(dream.features.chunk(NUM, 1)[agent], own.features, rtol=1e-5, atol=1e-5)
        assert torch.equal(dream.actions.chunk(NUM, 1)[agent], own.actions)


def test_agents_draw_their_own_noise_and_look_with_the_first():
    made = make("dreamer_v1", "tensor_pendulum", num=2)
    workflow, buffer = made.workflow, made.context.buffers["replay"]
    buffer.add(collect(make_collector(made.env), workflow, 40))
    for tensor in workflow.parameters():
        tensor.data[1] = tensor.data[0]  # the same agent twice, in the same states
    batch = buffer.sample()
    batch = tree_cat([tree_map(lambda leaf: leaf[:3], batch)] * 2)
    latents = workflow._observe(workflow._rows(batch)).latents
    assert not torch.equal(latents.stoch[0], latents.stoch[1])
    single = make("dreamer_v1", "tensor_pendulum")
    found = []
    for agent, rows in ((workflow, batch), (single.workflow, tree_map(lambda leaf: leaf[:3], batch))):
        torch.manual_seed(3)
        found.append(agent.evaluate_world_model(rows, phase=phase()))
    numbers = [name for name, value in found[1].items() if not isinstance(value, Picture)]
    for name in numbers:
        torch.testing.assert_close(found[0][name], found[1][name], rtol=1e-4, atol=1e-5)


TINY = ["+experiment=dreamer_cartpole", "experiment.num_seeds=2", "environment.num_envs=2"]
TINY += ["training.total_timesteps=80", "training.eval_frequency=40"]


def test_a_run_of_several_agents_goes_on_to_the_same_bits(tmp_path):
    assert resumes_exactly(TINY, tmp_path, stop_at=30)


def test_a_run_reports_every_agent_and_counts_the_steps_of_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def lab(*words):
        result = CliRunner().invoke(app, [*words])
        assert result.exit_code == 0, result.output
        return result.stdout

    lab("train", *TINY, "budget=tiny", "--run-dir", "run")
    rows = [json.loads(line) for line in Path("run", "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["step"] == 80  # of each agent
    keys = {key for row in rows for key in row}
    assert {"collect/return", "collect/return/seed_0", "collect/return/seed_1", "train/kl"} <= keys
    assert {"eval/return", "eval/return/seed_0", "eval/return/seed_1", "eval/prediction_error_1"} <= keys
    assert {"train/kl/seed_0", "train/kl/seed_1", "train/actor_grad_norm/seed_1"} <= keys
    assert any(row["train/kl/seed_0"] != row["train/kl/seed_1"] for row in rows if "train/kl" in row)
    found = json.loads(lab("evaluate", "run", "--episodes", "3", "--json"))
    assert found["episodes"] == 6
    assert found["return"] == pytest.approx((found["return/seed_0"] + found["return/seed_1"]) / 2)
    refused = CliRunner().invoke(app, ["resume", "run", "experiment.num_seeds=3"])
    assert refused.exit_code == 2
    assert refused.output.startswith("error: an exact resume cannot change experiment.num_seeds: 2 -> 3")
    assert len(refused.output.strip().splitlines()) == 1
