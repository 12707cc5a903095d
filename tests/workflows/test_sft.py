"""Supervised fine-tuning: its updates against a plain loop, what learns, what stays, exact resumes."""

import copy
import math
from functools import partial

import pytest
import torch
from safetensors.torch import save_file

from rl_lab.buffers.dataset import DatasetBuffer
from rl_lab.buffers.episode import EpisodeBuffer
from rl_lab.components.flow_matching import FlowMatching
from rl_lab.components.unet1d import UNet1d
from rl_lab.components.vla.checkpoint import expected_shapes
from rl_lab.components.vla.pi0 import Pi0
from rl_lab.components.vla.sizes import AttentionSizes, ExpertSizes, Pi0Sizes
from rl_lab.components.vla.tuning import Tuning
from rl_lab.components.vla.vla import VLA
from rl_lab.core import (
    Box,
    CheckpointError,
    ConfigError,
    EnvSpec,
    HookCall,
    Named,
    Optimizers,
    Phase,
    RngStreams,
    WorkflowContext,
    seed_everything,
)
from rl_lab.environments.multigoal import MultiGoal
from rl_lab.orchestration.evaluator import Evaluator
from rl_lab.orchestration.hand_off import load_parts
from rl_lab.tracking.checkpoint import CheckpointStore
from rl_lab.tracking.run_directory import RunDirectory
from rl_lab.workflows.sft import SFT
from tests.buffers.coded_stream import stream
from tests.components.vla.small import BLIND, SIZES
from tests.workflows.off_policy import resumes_exactly, run_packaged

torch.set_num_threads(1)
SPEC = EnvSpec("fixed", Box((2,)), Box((1,), low=-50.0, high=50.0))
CAMERA = {"camera": Box((3, 12, 12), torch.uint8), "arm": Box((2,))}
PIXELS = EnvSpec("pixels", CAMERA, Box((1,), low=-50.0, high=50.0))
ROADS = MultiGoal(1).spec
L = 4


def phase(progress=0.0):
    calls = (HookCall("update_policy", is_update=True),)
    return Phase("imitate", "offline", calls, "updates", 100, buffer="demonstrations", progress=progress)


def vla(sizes=BLIND, **options):
    return VLA(sizes, "push it", **options)


def make_sft(network=vla, buffer=None, *, spec=SPEC, seed=0, optimizer=None, **options):
    """Return an initialised workflow for chunks of 4 actions; the same seed gives the same parameters."""
    seed_everything(seed)
    options = {"prediction_horizon": L, "action_horizon": 2, "warmup_updates": 3} | options
    workflow = SFT(**options)
    workflow.initialize(
        WorkflowContext(
            config={},
            device=torch.device("cpu"),
            spec=spec,
            num_envs=4,
            components=Named("component", {"generator": FlowMatching(network(), num_sampling_steps=3)}),
            controllers=Named("controller", {}),
            optimizers=Optimizers({"policy": optimizer or partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.1)}),
            buffers=Named("buffer", {"demonstrations": buffer or demonstrations()}),
            rng=RngStreams(seed),
        )
    )
    return workflow


def demonstrations(chunk=L, batch_size=16, *, pictures=False, history=1):
    buffer = EpisodeBuffer(400, batch_size, history=history, chunk_length=chunk, seed=1)
    trajectory = stream(120, 1, 3)
    generator = torch.Generator().manual_seed(0)
    for key in ("observations", "final_observations"):
        trajectory[key] = trajectory[key] % 40
        if pictures:
            seen = torch.randint(0, 256, (120, 1, 3, 12, 12), dtype=torch.uint8, generator=generator)
            trajectory[key] = {"camera": seen, "arm": trajectory[key]}
    trajectory["actions"] = 10.0 * trajectory["actions"].float()[..., None] - 20.0
    buffer.add(trajectory)
    return buffer


def weights_of(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])


@pytest.mark.parametrize("mask_padding", [False, True])
def test_updates_against_a_plain_loop(mask_padding):
    buffer = demonstrations()
    workflow = make_sft(buffer=buffer, mask_padding=mask_padding, average_power=0.5, average_most=0.6, final_rate=0.2)
    policy = copy.deepcopy(workflow.agent.policy)
    learns = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learns, lr=1e-2, weight_decay=0.1)
    average = weights_of(policy).double()
    low, high = buffer.limits("observations")
    for update in range(5):
        batch, progress = buffer.sample(), update / 10
        torch.manual_seed(update)
        metrics = workflow.update_policy(batch, phase=phase(progress))
        seen = 2 * (batch["observations"] - low) / (high - low) - 1
        actions = batch["actions"] / 20.0  # they are -20, -10, 0, 10 and 20
        torch.manual_seed(update)
        loss = policy.generator.loss((seen, {}), actions, (~batch["is_pad"]).float() if mask_padding else None)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(learns, 1.0)
        rate = 1e-2 * min(1.0, (update + 1) / 3) * (0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi * progress)))
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        keep = min(0.6, 1 - (1 + update) ** -0.5)
        average = keep * average + (1 - keep) * weights_of(policy)
        assert metrics["learning_rate"] == pytest.approx(rate)
        assert metrics["loss"].item() == pytest.approx(loss.item(), rel=1e-4)
        assert metrics["grad_norm"].item() == pytest.approx(norm.item(), rel=1e-3)
        assert weights_of(workflow.agent.policy).numpy() == pytest.approx(weights_of(policy).numpy(), abs=5e-5)
        assert weights_of(workflow.agent.weight_average.module).numpy() == pytest.approx(average.numpy(), abs=5e-5)


NETWORKS = {
    "blind": vla,
    "pictures": partial(vla, SIZES),
    "lora": partial(vla, tuning=Tuning("lora", rank=2)),
    "unet": lambda: UNet1d((8, 16), 3, 4, 8),
}
GOLDEN = {  # losses of three updates on `demonstrations`
    "blind": [2.375275, 1.958842, 1.577661],
    "pictures": [1.727831, 1.677741, 2.366712],
    "lora": [2.049763, 1.447554, 2.002213],
    "unet": [1.461706, 1.142647, 1.545508],
}


@pytest.mark.parametrize("name", NETWORKS)
def test_golden_losses_and_same_seed_same_policy(name):
    runs, pictures = [], name == "pictures"
    for seed in (3, 3, 4):
        buffer = demonstrations(pictures=pictures)
        workflow = make_sft(NETWORKS[name], buffer, spec=PIXELS if pictures else SPEC, seed=seed)
        losses = [workflow.update_policy(buffer.sample(), phase=phase())["loss"] for _ in range(3)]
        obs = torch.ones(2, 2)
        obs = {"camera": torch.zeros(2, 3, 12, 12, dtype=torch.uint8), "arm": obs} if pictures else obs
        is_first = torch.ones(2, dtype=torch.bool)
        actions = workflow.act(obs, workflow.initial_carry(2), is_first=is_first, explore=False, step=0)[0]
        runs.append(torch.cat([torch.stack(losses), weights_of(workflow), actions.flatten()]))
    assert runs[0][:3].tolist() == pytest.approx(GOLDEN[name], rel=2e-3)
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


@pytest.mark.parametrize("train", ["expert", "lora"])
def test_what_is_frozen_stays_to_the_bit(train):
    buffer = demonstrations()
    workflow = make_sft(partial(vla, tuning=Tuning(train, rank=2, frozen_dtype="bfloat16")), buffer)
    before = {name: parameter.detach().clone() for name, parameter in workflow.agent.policy.named_parameters()}
    for _ in range(3):
        workflow.update_policy(buffer.sample(), phase=phase())
    for name, parameter in workflow.agent.policy.named_parameters():
        assert torch.equal(parameter, before[name]) != parameter.requires_grad, name
    assert {parameter.dtype for parameter in workflow.learner.parameters} == {torch.float32}


def test_a_base_checkpoint_is_where_it_begins(tmp_path):
    with torch.device("meta"):
        shapes = expected_shapes(Pi0(BLIND))
    generator = torch.Generator().manual_seed(7)
    stored = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    save_file({f"model.{name}": tensor for name, tensor in stored.items()}, tmp_path / "model.safetensors")
    workflow = make_sft(partial(vla, checkpoint=str(tmp_path)))
    model = workflow.agent.policy.generator.network.model
    assert all(torch.equal(parameter, stored[name]) for name, parameter in model.named_parameters())
    with pytest.raises(CheckpointError, match=r"does not fit these sizes: \d+ tensors missing"):
        make_sft(partial(vla, SIZES, checkpoint=str(tmp_path)), spec=PIXELS)


def test_a_run_hands_its_agent_and_its_limits_on():
    buffer = demonstrations()
    first = make_sft(buffer=buffer)
    first.update_policy(buffer.sample(), phase=phase())
    second = make_sft(buffer=demonstrations(), seed=9)
    load_parts(second, first.state_dict(), ["agent"])
    second.agent.action_range.scale.fill_(7.0)
    second.update_policy(buffer.sample(), phase=phase())
    assert second.agent.action_range.scale.tolist() == [7.0]


def test_an_accumulated_update_against_a_plain_loop():
    buffer = demonstrations()
    workflow = make_sft(buffer=buffer, accumulation=3, max_grad_norm=None, warmup_updates=0)
    policy = copy.deepcopy(workflow.agent.policy)
    learns = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learns, lr=1e-2, weight_decay=0.1)
    batch = buffer.sample()
    low, high = buffer.limits("observations")
    seen, real = 2 * (batch["observations"] - low) / (high - low) - 1, (~batch["is_pad"]).float()
    torch.manual_seed(2)
    metrics = workflow.update_policy(batch, phase=phase())
    torch.manual_seed(2)
    total = 0.0
    for rows in (slice(0, 6), slice(6, 11), slice(11, 16)):  # of 16
        loss = policy.generator.loss((seen[rows], {}), batch["actions"][rows] / 20.0, real[rows])
        loss = loss * real[rows].sum() / real.sum()
        loss.backward()  # adds up
        total += loss.item()
    optimizer.step()
    assert metrics["loss"].item() == pytest.approx(total, rel=1e-4)
    assert weights_of(workflow.agent.policy).numpy() == pytest.approx(weights_of(policy).numpy(), abs=5e-5)


def test_a_vla_learns_both_roads_where_a_mean_would_stand_still():
    sizes = Pi0Sizes(None, AttentionSizes(2, 2, 1, 16), ExpertSizes(16, 32), ExpertSizes(48, 96), 32, 2, 2)
    buffer = DatasetBuffer(
        "packaged/two_roads",
        partial(EpisodeBuffer, batch_size=32, chunk_length=8, history=1),
        spec=ROADS,
        keep_last_step=True,
    )
    workflow = make_sft(
        partial(vla, sizes),
        buffer,
        spec=ROADS,
        optimizer=partial(torch.optim.AdamW, lr=5e-3, weight_decay=1e-6, fused=True),
        prediction_horizon=8,
        action_horizon=4,
        average_power=0.75,
        average_most=0.98,
    )
    for update in range(200):
        workflow.update_policy(buffer.sample(), phase=phase(update / 200))
    found = Evaluator(MultiGoal(64, report_goals=True), 64, RngStreams(0)).evaluate(workflow, step=0)
    east, west = found["info/at_east"], found["info/at_west"]
    assert east + west > 0.85
    assert min(east, west) > 0.2


TINY = ["+experiment=sft_insertion", "training.phases.1.duration_updates=4"]


def test_resume_is_exact(tmp_path):
    assert resumes_exactly(TINY, tmp_path, stop_at=6)
    halves, whole = (RunDirectory.open(path) for path in sorted(tmp_path.iterdir()))
    assert halves.metrics_file.read_bytes() == whole.metrics_file.read_bytes()
    state = CheckpointStore(halves.checkpoints).load_newest().state
    assert state["workflow_state"] == {"num_updates": 4, "accumulation": 1}


@pytest.mark.learning
def test_the_packaged_experiment_inserts_the_peg(tmp_path):
    assert run_packaged("sft_insertion", tmp_path) > 0.5  # the return is 1 where the peg is in


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"action_horizon": 5}, r"^algorithm.action_horizon: 5 actions are more than prediction_horizon=4"),
        ({"observation_horizon": 2}, r"^algorithm.observation_horizon: a VLA reads one observation, not 2$"),
        ({"network": partial(vla, SIZES)}, r"sizes.vision: the environment shows no pictures \(set null\)$"),
    ],
)
def test_wrong_options_are_one_line(options, message):
    with pytest.raises(ConfigError, match=message):
        make_sft(**options)


def test_buffers_that_do_not_fit_are_one_line():
    with pytest.raises(ConfigError, match=r"^the workflow learns chunks of 4 actions, its buffer has chunk_length=8$"):
        make_sft().update_policy(demonstrations(chunk=8).sample(), phase=phase())
