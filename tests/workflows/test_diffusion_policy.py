"""Diffusion policy: its updates against plain loops, how it acts, what it learns, and that it resumes exactly."""

import copy
import math
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch

from rl_lab.buffers.dataset import DatasetBuffer
from rl_lab.buffers.datasets.open import open_writer, read_episodes
from rl_lab.buffers.episode import EpisodeBuffer
from rl_lab.buffers.replay import ReplayBuffer
from rl_lab.components.action_transformer import ActionTransformer
from rl_lab.components.diffusion import Diffusion
from rl_lab.components.flow_matching import FlowMatching
from rl_lab.components.resnet import ResNet
from rl_lab.components.unet1d import UNet1d
from rl_lab.core import (
    Box,
    ConfigError,
    Discrete,
    EnvSpec,
    HookCall,
    LabError,
    Named,
    Optimizers,
    Phase,
    RngStreams,
    WorkflowContext,
    seed_everything,
)
from rl_lab.environments.multigoal import MultiGoal
from rl_lab.orchestration.evaluator import Evaluator
from rl_lab.tracking.checkpoint import CheckpointStore
from rl_lab.tracking.run_directory import RunDirectory
from rl_lab.workflows.diffusion_policy import DiffusionPolicy
from tests.buffers.coded_stream import stream
from tests.workflows.off_policy import resumes_exactly

torch.set_num_threads(1)
CPU = torch.device("cpu")
SPEC = EnvSpec("fixed", Box((2,)), Box((1,), low=-50.0, high=50.0))
PIXELS = EnvSpec("pixels", {"camera": Box((3, 12, 12), torch.uint8), "arm": Box((2,))}, Box((1,), low=-1.0, high=1.0))
ROADS = MultiGoal(1).spec


def phase(progress=0.0):
    calls = (HookCall("update_policy", is_update=True),)
    return Phase("imitate", "offline", calls, "updates", 100, buffer="demonstrations", progress=progress)


def unet(kind=Diffusion, **options):
    return kind(UNet1d((8, 16), 3, 4, 8), **options)


def make_policy(spec=SPEC, generator=None, buffer=None, *, seed=0, lr=1e-2, encoder=None, optimizer=None, **options):
    """Return an initialised policy for chunks of 4 actions; the same seed gives the same parameters."""
    seed_everything(seed)
    options = {"prediction_horizon": 4, "action_horizon": 2, "warmup_updates": 3} | options
    workflow = DiffusionPolicy(**options)
    components = {"generator": generator() if generator else unet(num_steps=20)}
    components |= {} if encoder is None else {"encoder": encoder}
    workflow.initialize(
        WorkflowContext(
            config={},
            device=CPU,
            spec=spec,
            num_envs=4,
            components=Named("component", components),
            controllers=Named("controller", {}),
            optimizers=Optimizers({"policy": optimizer or partial(torch.optim.AdamW, lr=lr, weight_decay=0.1)}),
            buffers=Named("buffer", {"demonstrations": buffer or demonstrations()}),
            rng=RngStreams(seed),
        )
    )
    return workflow


def demonstrations(history=2, chunk=4, batch_size=16, seed=1):
    buffer = EpisodeBuffer(400, batch_size, history=history, chunk_length=chunk, seed=seed)
    trajectory = stream(120, 1, 3)
    trajectory["observations"] = trajectory["observations"] % 40
    trajectory["final_observations"] = trajectory["final_observations"] % 40
    trajectory["actions"] = 10.0 * trajectory["actions"].float()[..., None] - 20.0
    buffer.add(trajectory)
    return buffer


def weights_of(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])


@pytest.mark.parametrize("mask_padding", [False, True])
def test_updates_against_a_plain_loop(mask_padding):
    buffer = demonstrations()
    workflow = make_policy(buffer=buffer, mask_padding=mask_padding, average_power=0.5, average_most=0.6)
    policy = copy.deepcopy(workflow.policy)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2, weight_decay=0.1)
    average = weights_of(policy).double()
    states = buffer._store.fields["observations"]
    steps = buffer._index[: buffer.size]
    for update in range(5):
        batch, progress = buffer.sample(), update / 10
        torch.manual_seed(update)
        metrics = workflow.update_policy(batch, phase=phase(progress))
        low, high = states[steps].amin(0), states[steps].amax(0)
        seen = 2 * (batch["observations"] - low) / (high - low) - 1
        actions = batch["actions"] / 20.0  # they are -20, -10, 0, 10 and 20
        torch.manual_seed(update)
        loss = policy.generator.loss(seen, actions, (~batch["is_pad"]).float() if mask_padding else None)
        optimizer.zero_grad()
        loss.backward()
        rate = 1e-2 * min(1.0, (update + 1) / 3) * 0.5 * (1 + math.cos(math.pi * progress))
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        keep = min(0.6, 1 - (1 + update) ** -0.5)
        average = keep * average + (1 - keep) * weights_of(policy)
        assert metrics["learning_rate"] == pytest.approx(rate)
        assert metrics["loss"].item() == pytest.approx(loss.item(), rel=1e-4)
        assert weights_of(workflow.policy).numpy() == pytest.approx(weights_of(policy).numpy(), abs=2e-5)
        assert weights_of(workflow.average.module).numpy() == pytest.approx(average.numpy(), abs=2e-5)


GOLDEN = {  # losses of three updates on `demonstrations`
    "diffusion": [1.183674, 1.098297, 0.950810],
    "flow": [1.364555, 1.513518, 1.512944],
    "transformer": [0.643748, 0.388894, 0.487101],
}
GENERATORS = {
    "diffusion": partial(unet, num_steps=20),
    "flow": partial(unet, FlowMatching, num_sampling_steps=3),
    "transformer": lambda: Diffusion(ActionTransformer(16, 2, 2), 20, 5, "ddim", "sample"),
}


@pytest.mark.parametrize("name", GENERATORS)
def test_golden_losses(name):
    buffer = demonstrations()
    workflow = make_policy(generator=GENERATORS[name], buffer=buffer)
    found = [workflow.update_policy(buffer.sample(), phase=phase())["loss"].item() for _ in range(3)]
    assert found == pytest.approx(GOLDEN[name], rel=2e-3)


@pytest.mark.parametrize("name", GENERATORS)
def test_same_seed_same_policy_other_seed_another(name):
    runs = []
    for seed in (3, 3, 4):
        buffer = demonstrations()
        workflow = make_policy(generator=GENERATORS[name], buffer=buffer, seed=seed)
        for _ in range(3):
            workflow.update_policy(buffer.sample(), phase=phase())
        carry, is_first = workflow.initial_carry(2), torch.ones(2, dtype=torch.bool)
        actions = workflow.act(torch.zeros(2, 2), carry, is_first=is_first, explore=False, step=0)[0]
        runs.append(torch.cat([weights_of(workflow), actions.flatten()]))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


@pytest.mark.parametrize(("name", "all_are"), [("transformer", False), ("diffusion", True)])
def test_what_of_a_network_weight_decay_makes_smaller(name, all_are):
    found = []
    for decay in (0.0, 0.5):
        buffer, optimizer = demonstrations(), partial(torch.optim.AdamW, lr=0.3, weight_decay=decay)
        workflow = make_policy(generator=GENERATORS[name], buffer=buffer, optimizer=optimizer)
        before = {name: weight.detach().clone() for name, weight in workflow.policy.named_parameters()}
        workflow.update_policy(buffer.sample(), phase=phase())
        found.append(dict(workflow.policy.named_parameters()))
    shrunk = {key for key, weight in found[1].items() if not torch.equal(weight, found[0][key])}
    for key in shrunk:  # a third of the rate, in the first of three updates of warm-up
        torch.testing.assert_close(found[1][key], found[0][key] - 0.1 * 0.5 * before[key], rtol=1e-4, atol=1e-6)
    matrices = {key for key, weight in before.items() if weight.ndim > 1 and not key.endswith("positions")}
    assert shrunk == ({key for key, weight in before.items() if weight.any()} if all_are else matrices)
    assert 4 < len(matrices) < len(before) / 2


def test_the_average_acts_on_data_of_the_environments_own_range():
    buffer = demonstrations()
    workflow = make_policy(buffer=buffer, action_horizon=3)
    obs, is_first = torch.tensor([[3.0, -3.0], [9.0, -9.0]]), torch.ones(2, dtype=torch.bool)

    def actions():
        torch.manual_seed(0)
        return workflow.act(obs, workflow.initial_carry(2), is_first=is_first, explore=True, step=0)

    workflow.update_policy(buffer.sample(), phase=phase())
    first, extras, carry = actions()
    assert extras == {}
    with torch.no_grad():
        for parameter in workflow.policy.parameters():
            parameter.add_(1.0)
    assert torch.equal(actions()[0], first)
    drawn = torch.cat([carry["queue"], first[:, None]], 1)
    assert drawn.abs().max() <= 20.0  # of the data, where the environment has 50
    assert len(drawn.unique()) > 2
    assert torch.equal(carry["left"], torch.tensor([2, 2]))
    torch.manual_seed(0)
    with torch.no_grad():
        chunk = workflow._plan(obs[:, None].expand(2, 2, 2))
    assert torch.equal(chunk[:, 0], first)
    assert chunk.shape == (2, 4, 1)


def test_actions_never_leave_the_environments_bounds():
    spec = EnvSpec("tight", Box((2,)), Box((1,), low=-5.0, high=7.0))
    buffer = demonstrations()
    workflow = make_policy(spec, buffer=buffer)
    workflow.update_policy(buffer.sample(), phase=phase())
    chunk = workflow._plan(torch.randn(64, 2, 2))
    assert (chunk.min().item(), chunk.max().item()) == (-5.0, 7.0)


def test_weights_that_come_with_their_limits_keep_them():
    buffer = demonstrations()
    workflow = make_policy(buffer=buffer)
    workflow.update_policy(buffer.sample(), phase=phase())
    other = make_policy(buffer=buffer)
    other.load_state_dict(workflow.state_dict())
    other.action_range.scale.fill_(7.0)
    other.update_policy(buffer.sample(), phase=phase())
    assert other.action_range.scale.tolist() == [7.0]


def picture_stream():
    generator = torch.Generator().manual_seed(0)
    trajectory = stream(60, 1, 3)
    for key in ("observations", "final_observations"):
        pictures = torch.randint(0, 256, (60, 1, 3, 12, 12), dtype=torch.uint8, generator=generator)
        trajectory[key] = {"camera": pictures, "arm": trajectory[key] % 40}
    trajectory["actions"] = trajectory["actions"].float()[..., None] / 2 - 1.0
    return trajectory


def test_pictures_and_numbers_are_learned_from_together():
    buffer = EpisodeBuffer(200, 8, history=2, chunk_length=4, seed=1)
    buffer.add(picture_stream())
    encoder = ResNet((8, 16), 1, 4, 6, crop=10)
    workflow = make_policy(PIXELS, buffer=buffer, encoder=encoder)
    before = weights_of(workflow.policy.encoder)
    for _ in range(2):
        workflow.update_policy(buffer.sample(), phase=phase())
    assert not torch.equal(weights_of(workflow.policy.encoder), before)
    obs = {"camera": torch.zeros(3, 3, 12, 12, dtype=torch.uint8), "arm": torch.zeros(3, 2)}
    first = torch.ones(3, dtype=torch.bool)
    actions, _, carry = workflow.act(obs, workflow.initial_carry(3), is_first=first, explore=False, step=0)
    assert actions.shape == (3, 1)
    assert carry["observations"]["camera"].dtype == torch.uint8


def write_minari(path, monkeypatch):
    """Write the episodes of two roads as Minari does."""
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(path))
    space = gymnasium.spaces.Box(-9, 9, (2,), np.float32)
    episodes = [
        minari.data_collector.EpisodeBuffer(
            observations=np.concatenate([each.observations, each.final_observation[None]]),
            actions=each.actions,
            rewards=each.rewards.astype(np.float64),
            terminations=np.arange(len(each)) == len(each) - 1,
            truncations=np.zeros(len(each), bool),
        )
        for each in read_episodes("packaged/two_roads", episodes=range(4))
    ]
    facts = dict.fromkeys(("author", "author_email", "code_permalink", "algorithm_name"), "nobody@example.org")
    options = {"observation_space": space, "action_space": space, "data_format": "arrow"}
    minari.create_dataset_from_buffers(dataset_id="toy/roads-v0", buffer=episodes, **options, **facts)
    return path / "toy" / "roads-v0"


@pytest.mark.filterwarnings("ignore")  # Minari warns of metadata that was not given
@pytest.mark.parametrize("format", ["packaged", "lab", "lerobot", "minari"])
def test_the_same_demonstrations_teach_the_same_whatever_their_files(format, tmp_path, monkeypatch):
    path = {"packaged": "packaged/two_roads", "minari": None}.get(format, tmp_path / format)
    if format == "minari":
        path = write_minari(tmp_path, monkeypatch)
    elif format != "packaged":
        with open_writer(path, format, **({"fps": 10} if format == "lerobot" else {})) as writer:
            for episode in read_episodes("packaged/two_roads", episodes=range(4)):
                writer.save(episode)
    into = partial(EpisodeBuffer, batch_size=8, chunk_length=4, history=2)
    buffer = DatasetBuffer(str(path), into, spec=ROADS, episodes=4, keep_last_step=True)
    workflow = make_policy(ROADS, buffer=buffer)
    losses = [workflow.update_policy(buffer.sample(), phase=phase())["loss"].item() for _ in range(2)]
    assert losses == pytest.approx([1.151166, 1.296422], rel=1e-3)


def learn_two_roads(kind, channels, updates, **options):
    """Learn the packaged ways to the east and the west; return how often an episode arrives at either."""
    into = partial(EpisodeBuffer, batch_size=64, chunk_length=8, history=1)
    buffer = DatasetBuffer("packaged/two_roads", into, spec=ROADS, keep_last_step=True)
    workflow = make_policy(
        ROADS,
        lambda: kind(UNet1d(channels, 3, 8, 16), **options),
        buffer,
        observation_horizon=1,
        prediction_horizon=8,
        action_horizon=4,
        average_most=0.99,
        optimizer=partial(torch.optim.AdamW, lr=5e-3, weight_decay=1e-6, fused=True),
    )
    mean = torch.stack([buffer.sample()["actions"][:, 0].mean(0) for _ in range(20)]).mean(0)
    assert mean.abs().max() < 0.1  # it would stand still
    for update in range(updates):
        workflow.update_policy(buffer.sample(), phase=phase(update / updates))
    found = Evaluator(MultiGoal(64, report_goals=True), 64, RngStreams(0)).evaluate(workflow, step=0)
    return found["info/at_east"], found["info/at_west"]


def test_both_roads_are_taken_where_a_mean_would_stand_still():
    east, west = learn_two_roads(Diffusion, (16,), 250, num_steps=50, num_sampling_steps=10, sampler="ddim")
    assert east + west > 0.85
    assert min(east, west) > 0.25


@pytest.mark.learning
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (FlowMatching, {}),
        (Diffusion, {"num_steps": 50}),
        (Diffusion, {"num_steps": 50, "num_sampling_steps": 10, "sampler": "ddim", "prediction": "v"}),
        (Diffusion, {"num_steps": 50, "num_sampling_steps": 10, "sampler": "ddim", "prediction": "sample"}),
    ],
)
def test_every_generator_takes_both_roads(kind, options):
    east, west = learn_two_roads(kind, (16, 32), 600, **options)
    assert east + west > 0.95
    assert min(east, west) > 0.3


TINY = ["+experiment=diffusion_two_roads", "training.phases.0.duration_updates=4"]


def test_resume_is_exact(tmp_path):
    assert resumes_exactly(TINY, tmp_path, stop_at=4)
    halves, whole = (RunDirectory.open(path) for path in sorted(tmp_path.iterdir()))
    assert halves.metrics_file.read_bytes() == whole.metrics_file.read_bytes()
    state = CheckpointStore(halves.checkpoints).load_newest().state
    assert state["workflow_state"] == {"num_updates": 4, "accumulation": 1}


def test_resume_is_exact_in_the_middle_of_a_chunk(tmp_path):
    collects = "{name: look, buffer: own, duration_steps: 63, workflow_hooks: [collect]}"
    learns = "{name: imitate, buffer: demonstrations, duration_updates: 2, workflow_hooks: [update_policy]}"
    own = "+buffers.own={_target_: rl_lab.buffers.episode.EpisodeBuffer, capacity: 400, batch_size: 4}"
    phases = f"training.phases=[{learns}, {collects}]"
    overrides = [*TINY[:1], own, phases, "training.total_timesteps=63", "environment.num_envs=3"]
    assert resumes_exactly(overrides, tmp_path, stop_at=8)
    halves = RunDirectory.open(min(tmp_path.iterdir()))
    assert CheckpointStore(halves.checkpoints).load_newest().state["collector"]["carry"]["left"].any()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"action_horizon": 5},
            ConfigError,
            r"^algorithm.action_horizon: 5 actions are more than prediction_horizon=4, the length of a chunk$",
        ),
        (
            {"prediction_horizon": 5},
            ConfigError,
            r"^algorithm.prediction_horizon: 5 actions cannot be halved 1 times, as 2 levels of channels need$",
        ),
        (
            {"spec": EnvSpec("x", Box((2,)), Discrete(2))},
            ConfigError,
            r"^workflow: DiffusionPolicy does not take the discrete actions of 'x'",
        ),
        (
            {"generator": lambda: torch.nn.Linear(1, 1)},
            ConfigError,
            r"^components.generator: needs an ActionGenerator \(choices: Diffusion, FlowMatching\)$",
        ),
        (
            {"spec": EnvSpec("short", Box((2,)), Box((1,), low=-1.0, high=1.0), max_episode_steps=3)},
            ConfigError,
            r"^algorithm\.prediction_horizon: 4 steps are longer than any episode of 'short' \(3 steps\)$",
        ),
        (
            {"spec": EnvSpec("short", Box((2,)), Box((1,), low=-1.0, high=1.0), max_episode_steps=5)}
            | {"observation_horizon": 6},
            ConfigError,
            r"^algorithm\.observation_horizon: 6 steps are longer than any episode of 'short' \(5 steps\)$",
        ),
        ({"spec": PIXELS}, ConfigError, r"^components.encoder: the picture 'camera' of the environment needs one"),
    ],
)
def test_wrong_options_are_one_line(options, error, message):
    with pytest.raises(error, match=message):
        make_policy(**options)


def test_buffers_that_do_not_fit_are_one_line():
    with pytest.raises(ConfigError, match=r"^the workflow learns chunks of 4 actions, its buffer has chunk_length=8$"):
        make_policy().update_policy(demonstrations(chunk=8).sample(), phase=phase())
    with pytest.raises(ConfigError, match=r"^the workflow reads 2 observations at once, its buffer has history=3$"):
        make_policy().update_policy(demonstrations(history=3).sample(), phase=phase())
    with pytest.raises(LabError, match=r"^ReplayBuffer does not tell the limits of its observations$"):
        make_policy(buffer=ReplayBuffer(10, 2)).update_policy(demonstrations().sample(), phase=phase())
