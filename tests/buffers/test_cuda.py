"""On a GPU: batches are what they are on the host, and neither a draw nor a write-back waits for the device."""

from contextlib import contextmanager

import pytest
import torch

from rl_lab.buffers.episode import EpisodeBuffer
from rl_lab.buffers.hindsight import HindsightBuffer, Relabel
from rl_lab.buffers.prioritized import PrioritizedReplayBuffer
from rl_lab.buffers.replay import ReplayBuffer
from rl_lab.buffers.sequence import SequenceBuffer
from rl_lab.buffers.storage.chances import Priority
from rl_lab.buffers.union import UnionBuffer
from rl_lab.core import tree_leaves, tree_map
from rl_lab.ops.goal_rewards import SparseDistance
from tests.buffers.coded_stream import cut, stream
from tests.buffers.streams import Source
from tests.buffers.test_hindsight import goal_stream
from tests.buffers.test_replay import check_rows

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
]


@contextmanager
def no_waiting():
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


class OnHost:
    """Shows a buffer's batches on the host, without what only prioritized ones have."""

    def __init__(self, buffer):
        self.buffer, self.capacity = buffer, buffer.capacity

    def sample(self):
        with no_waiting():
            batch = self.buffer.sample()
            if "weights" in batch:
                self.buffer.write_back({"priorities": batch["rewards"].abs()})
        assert {leaf.device.type for _, leaf in tree_leaves(batch)} == {"cuda"}
        return {key: tree_map(torch.Tensor.cpu, value) for key, value in batch.items() if key != "weights"}


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("kind", [None, "proportional", "rank"])
def test_batches_are_right_and_nothing_waits(kind, n_step):
    options = {"n_step": n_step, "gamma": 0.5, "min_size": 1, "num_envs": 2, "frame_stack": 2, "device": "cuda"}
    buffer, again = (
        ReplayBuffer(60, 32, seed=seed, **options)
        if kind is None
        else PrioritizedReplayBuffer(60, 32, priority=Priority(kind=kind), seed=seed, **options)
        for seed in (1, 9)
    )
    source = Source(3, 2, stack=2)
    for steps in (7, 50, 3):
        buffer.add(tree_map(torch.Tensor.cuda, source.take(steps)))
        check_rows(OnHost(buffer), source, n_step=n_step, num_samples=2)
    again.set_state(buffer.get_state())
    for (path, a), (_, b) in zip(tree_leaves(buffer.sample()), tree_leaves(again.sample()), strict=True):
        assert torch.equal(a, b), path


def test_rows_of_the_host_arrive_on_the_device():
    source = Source(3, 2, stack=2)
    buffer = ReplayBuffer(
        60, 32, gamma=0.5, min_size=1, num_envs=2, frame_stack=2, storage="host", device="cuda", n_step=2
    )
    buffer.add(tree_map(torch.Tensor.cuda, source.take(50)))
    batch = buffer.sample()
    assert {leaf.device.type for _, leaf in tree_leaves(batch)} == {"cuda"}


@pytest.mark.parametrize("strategy", ["future", "final", "episode", "random"])
def test_relabelling_and_unions_do_not_wait(strategy):
    trajectory, _ = goal_stream(0, 2, 50)
    buffers = [
        HindsightBuffer(80, 32, SparseDistance(0.1), relabel=Relabel(strategy), num_envs=2, device="cuda", seed=seed)
        for seed in (1, 2)
    ]
    for buffer in buffers:
        buffer.add(tree_map(torch.Tensor.cuda, trajectory))
    union = UnionBuffer(dict(zip("ab", buffers, strict=True)), {"a": 0.5, "b": 0.5}, 64)
    with no_waiting():
        batch = union.sample()
    achieved, desired = batch["next_observations"]["achieved_goal"], batch["next_observations"]["desired_goal"]
    is_relabelled = desired.flatten() >= 0
    assert is_relabelled.any()
    reached = (achieved == desired).flatten()
    assert torch.equal(batch["rewards"][is_relabelled], reached[is_relabelled].float() - 1.0)


@pytest.mark.parametrize("cross_episodes", [True, False])
def test_sequences_are_those_of_the_host_and_nothing_waits(cross_episodes):
    options = {"cross_episodes": cross_episodes, "online": True, "refreshed": ["latent"], "num_envs": 2, "seed": 3}
    device = SequenceBuffer(60, 16, 5, device="cuda", **options)
    host = SequenceBuffer(60, 16, 5, device="cpu", **options)
    for piece in cut(stream(70, 2, 4), [11, 30]):
        device.add(tree_map(torch.Tensor.cuda, piece))
        host.add(piece)
        with no_waiting():
            batch = device.sample()
            device.write_back({"latent": batch["latent"] + 1})
        device.add(tree_map(torch.Tensor.cuda, piece))
        host.add(piece)
        with no_waiting():  # some rows of the batch are gone
            device.write_back({"latent": batch["latent"] + 1})
        assert {leaf.device.type for _, leaf in tree_leaves(batch)} == {"cuda"}
    for name, store in host.get_state()["stores"].items():
        for slot, segment in store["slots"].items():
            other = device.get_state()["stores"][name]["slots"][slot].tensor.cpu()
            assert name == "refreshed" or torch.equal(segment.tensor, other)


def test_chunks_of_episodes_do_not_wait():
    buffer, again = (
        EpisodeBuffer(60, 16, chunk_length=3, history=2, num_envs=2, device="cuda", seed=s) for s in (1, 2)
    )
    buffer.add(tree_map(torch.Tensor.cuda, stream(70, 2, 4)))
    with no_waiting():
        buffer.sample()
    again.set_state(buffer.get_state())
    for (path, a), (_, b) in zip(tree_leaves(buffer.sample()), tree_leaves(again.sample()), strict=True):
        assert torch.equal(a, b), path
