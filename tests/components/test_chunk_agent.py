"""What workflows of action chunks share: the loss by hand, weights, accumulated gradients, averages, and broadcasts."""

from functools import partial

import pytest
import torch

from rl_lab.buffers.episode import EpisodeBuffer
from rl_lab.components.action_chunks import RecedingHorizon, read_chunks
from rl_lab.components.chunk_agent import ChunkAgent
from rl_lab.components.flow_matching import FlowMatching
from rl_lab.components.learner import Learner
from rl_lab.components.unet1d import UNet1d
from rl_lab.components.vla.tuning import Tuning
from rl_lab.components.vla.vla import VLA
from rl_lab.core import (
    Box,
    CheckpointError,
    ConfigError,
    Discrete,
    EnvSpec,
    Named,
    Optimizers,
    RngStreams,
    WorkflowContext,
    seed_everything,
)
from tests.buffers.coded_stream import stream
from tests.components.vla.small import BLIND

torch.set_num_threads(1)
SPEC = EnvSpec("fixed", Box((2,)), Box((1,), low=-50.0, high=50.0))
L = 4


def demonstrations(batch_size=6):
    buffer = EpisodeBuffer(400, batch_size, history=1, chunk_length=L, seed=1)
    trajectory = stream(120, 1, 3)
    for key in ("observations", "final_observations"):
        trajectory[key] = trajectory[key] % 40
    trajectory["actions"] = 10.0 * trajectory["actions"].float()[..., None] - 20.0
    buffer.add(trajectory)
    return buffer


def context_of(network, spec=SPEC):
    return WorkflowContext(
        config={},
        device=torch.device("cpu"),
        spec=spec,
        num_envs=2,
        components=Named("component", {"generator": FlowMatching(network, num_sampling_steps=3)}),
        controllers=Named("controller", {}),
        optimizers=Optimizers({"policy": partial(torch.optim.SGD, lr=0.1)}),
        buffers=Named("buffer", {}),
        rng=RngStreams(0),
    )


def networks(kind, tuning=None):
    return VLA(BLIND, "push it", tuning=tuning) if kind == "vla" else UNet1d((8, 16), 3, 4, 8)


def make_agent(kind="vla", *, seed=0, tuning=None, spec=SPEC, **options):
    seed_everything(seed)
    context = context_of(networks(kind, tuning), spec)
    return ChunkAgent(context, observation_horizon=1, prediction_horizon=L, **options), context


def chunks_of(buffer):
    return read_chunks(buffer.sample(), SPEC, history=1, chunk_length=L)


@pytest.mark.parametrize("kind", ["vla", "unet"])
@pytest.mark.parametrize("weighted", [None, "chunks", "steps"])
@torch.no_grad()
def test_the_loss_by_hand(kind, weighted):
    agent, _ = make_agent(kind)
    buffer = demonstrations()
    agent.fit(buffer)
    chunks = chunks_of(buffer)
    weights = {None: None, "chunks": torch.rand(6) + 1, "steps": torch.rand(6, L) + 1}[weighted]
    torch.manual_seed(5)
    found = agent.loss(chunks, weights)
    torch.manual_seed(5)
    level = 0.001 + 0.999 * torch.rand(6) ** (2 / 3)  # Beta(1.5, 1), from 0.001 on
    width = BLIND.action_dim if kind == "vla" else 1
    actions = torch.zeros(6, L, width)
    actions[..., :1] = chunks["actions"] / 20.0
    noise = torch.randn(6, L, width)
    total, whole = 0.0, 0.0
    network = agent.policy.generator.network
    low, high = buffer.limits("observations")
    seen = 2 * (chunks["observations"] - low) / (high - low) - 1
    for row in range(6):
        t, own = float(level[row]), seen[row : row + 1]
        noisy = t * noise[row] + (1 - t) * actions[row]
        prepared = network.prepare((own, {}) if kind == "vla" else own)
        velocity = network(noisy[None], torch.tensor([t]), prepared)[0]
        for step in range(L):
            error = float((velocity[step, 0] - (noise[row, step, 0] - actions[row, step, 0])) ** 2)
            weight = 1.0 if weights is None else float(weights[row] if weights.ndim == 1 else weights[row, step])
            total, whole = total + weight * error, whole + weight
    assert found.item() == pytest.approx(total / whole, rel=1e-4)


def test_a_vla_reads_noise_where_an_action_has_nothing():
    agent, _ = make_agent()
    network = agent.policy.generator.network
    assert network.padding == BLIND.action_dim - 1
    given = []
    network.forward = lambda noisy, level, prepared: given.append(noisy) or torch.zeros_like(noisy)
    noise = torch.randn(64, L, 1)
    drawn = agent.policy.sample((torch.zeros(64, 1, 2), {}), noise)
    assert torch.equal(drawn, noise)
    assert given[0].shape == (64, L, BLIND.action_dim)
    assert given[0][..., 1:].std().item() == pytest.approx(1.0, abs=0.1)
    agent.policy.loss((torch.zeros(64, 1, 2), {}), torch.zeros(64, L, 1))
    assert given[-1][..., 1:].abs().mean() > 0.1


@pytest.mark.parametrize("weighted", [False, True])
def test_gradients_of_parts_add_up_to_those_of_the_whole(weighted, monkeypatch):
    buffer = demonstrations(batch_size=7)
    chunks = chunks_of(buffer)
    weights = torch.rand(7, L) if weighted else None
    after = []
    # Draws that depend on the row alone, so that parts see the same noise as the whole.
    monkeypatch.setattr(torch, "randn_like", lambda x: torch.sin(31.0 * x + 1.0))
    monkeypatch.setattr(torch, "rand", lambda n, device=None: torch.full((n,), 0.4))
    for parts in (1, 3):
        agent, context = make_agent("unet", average_power=None)
        agent.fit(buffer)
        learner = Learner(context, "policy", agent.trained())
        loss, norm = agent.descend(learner, chunks, weights, parts)
        after.append([loss.view(1), norm.view(1), *(p.detach().flatten() for p in agent.policy.parameters())])
    torch.testing.assert_close(torch.cat(after[0]), torch.cat(after[1]), rtol=1e-4, atol=1e-6)


def test_the_average_acts_only_where_there_is_one():
    for power, same in ((None, True), (0.75, False)):
        agent, _ = make_agent("unet", average_power=power)
        assert (agent.acting is agent.policy) == same
        assert agent.plan(torch.zeros(3, 1, 2)).shape == (3, L, 1)
        assert any(name.startswith("weight_average") for name in agent.state_dict()) != same


@pytest.mark.parametrize(("train", "share"), [("all", 1.0), ("expert", 0.6), ("lora", 0.4)])
def test_only_what_learns_is_broadcast(train, share):
    tuning = Tuning(train, rank=1)
    learner_side, context = make_agent(seed=0, tuning=tuning, average_power=None)
    actor_side, _ = make_agent(seed=0, tuning=tuning, average_power=None)
    buffer = demonstrations()
    learner_side.fit(buffer)
    learner = Learner(context, "policy", learner_side.trained())
    for _ in range(2):
        learner_side.descend(learner, chunks_of(buffer))
    sent = {name: tensor.clone() for name, tensor in learner_side.broadcast().items()}
    count = sum(tensor.numel() for name, tensor in sent.items() if name.startswith("policy."))
    assert 0 < count <= share * sum(parameter.numel() for parameter in learner_side.policy.parameters())
    actor_side.receive(sent)
    plans = []
    for agent in (learner_side, actor_side):
        torch.manual_seed(3)
        plans.append(agent.plan(torch.ones(2, 1, 2)))
    assert torch.equal(*plans)


@pytest.mark.parametrize("train", ["lora", "expert"])
def test_an_actor_with_another_base_refuses_what_is_broadcast(train):
    learner_side, actor_side = (make_agent(seed=seed, tuning=Tuning(train, rank=1))[0] for seed in (0, 1))
    learner_side.fit(demonstrations())
    before = {name: tensor.clone() for name, tensor in actor_side.state_dict().items()}
    with pytest.raises(CheckpointError, match="those that do not learn are other ones there than here") as refused:
        actor_side.receive(learner_side.broadcast())
    assert "\n" not in str(refused.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in actor_side.state_dict().items())
    frozen = {n: p for n, p in learner_side.policy.named_parameters() if not p.requires_grad}
    actor_side.policy.load_state_dict(frozen, strict=False)  # the same base now, whatever else is random
    actor_side.receive(learner_side.broadcast())


def test_what_no_action_depends_on_is_no_base():
    learner_side, actor_side = (make_agent(seed=seed, tuning=Tuning("all"))[0] for seed in (0, 1))
    learner_side.fit(demonstrations())
    assert any(not parameter.requires_grad for parameter in learner_side.policy.parameters())
    actor_side.receive(learner_side.broadcast())
    plans = []
    for agent in (learner_side, actor_side):
        torch.manual_seed(3)
        plans.append(agent.plan(torch.ones(2, 1, 2)))
    assert torch.equal(*plans)


PICTURES = EnvSpec("pixels", {"camera": Box((3, 8, 8), torch.uint8), "arm": Box((2,))}, Box((1,), low=-1.0, high=1.0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"spec": EnvSpec("x", Box((2,)), Discrete(2))}, r"^workflow: a policy of chunks does not take the discrete"),
        ({"spec": PICTURES}, r"network.sizes.vision: the picture 'camera' of the environment needs one$"),
        ({"spec": EnvSpec("x", Box((6,)), Box((1,)))}, r"network.sizes.state_dim: 5 are fewer than the 6 observed$"),
        ({"spec": EnvSpec("x", Box((2,)), Box((9,)))}, r"network.sizes.action_dim: 4 are fewer than the 9 there are$"),
    ],
)
def test_what_does_not_fit_is_one_line(options, message):
    with pytest.raises(ConfigError, match=message):
        make_agent(**options)


def test_plans_of_varied_lengths_are_done_from_their_beginning():
    counts = []

    def plan(seen):
        return 100.0 * seen[:, -1:] + torch.arange(5.0).view(1, 5, 1)  # [n, 5, 1]

    spec = EnvSpec("count", Box((1,)), Box((1,), low=-1e9, high=1e9))
    _, context = make_agent("unet", spec=spec)
    horizon = RecedingHorizon(plan, history=1, num_actions=5, context=context, least_actions=2)
    carry, is_first = horizon.initial_carry(3), torch.ones(3, dtype=torch.bool)
    done = []
    for step in range(60):
        actions, carry = horizon(torch.full((3, 1), float(step)), carry, is_first, varied=True)
        done.append(actions[:, 0])
        is_first = torch.zeros(3, dtype=torch.bool)
    for column in torch.stack(done, 1).tolist():
        start = 0
        while start < 60:
            assert column[start] == 100.0 * start  # a new plan, of what is seen now
            length = next((n for n in range(1, 6) if start + n >= 60 or column[start + n] != column[start] + n), 5)
            counts.append(length)
            start += length
            assert length >= 2 or start == 60  # none is cut short but by the end
    assert set(counts) >= {2, 3, 4, 5}
    carry, is_first = horizon.initial_carry(3), torch.ones(3, dtype=torch.bool)
    assert horizon(torch.zeros(3, 1), carry, is_first)[1]["left"].tolist() == [4, 4, 4]
