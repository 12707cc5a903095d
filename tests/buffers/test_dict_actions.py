"""Actions that are dicts, in every buffer and in datasets: each part stays with its step, and states hold them."""

from functools import partial

import numpy as np
import pytest
import torch

from rl_lab.buffers.dataset import DatasetBuffer
from rl_lab.buffers.datasets.format import DatasetError, Episode
from rl_lab.buffers.datasets.open import open_dataset, open_writer
from rl_lab.buffers.datasets.recorder import write_episodes
from rl_lab.buffers.episode import EpisodeBuffer
from rl_lab.buffers.prioritized import PrioritizedReplayBuffer
from rl_lab.buffers.replay import ReplayBuffer
from rl_lab.buffers.rollout import RolloutBuffer
from rl_lab.buffers.sequence import SequenceBuffer
from rl_lab.core import Box, Discrete, EnvSpec, tree_leaves
from rl_lab.tracking.fingerprint import tree_hash

torch.set_num_threads(1)
SPEC = EnvSpec("both", Box((1,)), {"gear": Discrete(50), "pedals": Box((2,), low=-99.0, high=99.0)}, 5)
LENGTH, LANES = 5, 2
BUFFERS = {
    "rollout": partial(RolloutBuffer),
    "replay": partial(ReplayBuffer, 100, 16),
    "n-step": partial(ReplayBuffer, 100, 16, n_step=3),
    "prioritized": partial(PrioritizedReplayBuffer, 100, 16),
    "disk": partial(ReplayBuffer, 100, 16, storage="disk"),
    "sequence": partial(SequenceBuffer, 100, 16, 4),
    "episode": partial(EpisodeBuffer, 100, 16),
    "chunks": partial(EpisodeBuffer, 100, 16, chunk_length=3),
}


def trajectory(steps=20):
    """Return episodes of 5 steps whose numbers say at which step they were seen, [T, N, ...]."""
    code = torch.arange(steps).float()[:, None] + 100.0 * torch.arange(LANES)
    ends = (torch.arange(steps) % LENGTH == LENGTH - 1)[:, None].expand(steps, LANES)
    return {
        "observations": code[..., None],
        "actions": {"gear": (code % 50).long(), "pedals": torch.stack([code % 99, -(code % 99)], -1)},
        "rewards": code,
        "terminated": ends.clone(),
        "truncated": torch.zeros(steps, LANES, dtype=torch.bool),
        "final_observations": code[..., None] + 1.0,
        "is_first": (torch.arange(steps) % LENGTH == 0)[:, None].repeat(1, LANES),
    }


def filled(name, folder):
    buffer = BUFFERS[name](num_envs=LANES, spec=SPEC)
    buffer.attach(folder)
    for part in (slice(0, 7), slice(7, 20)):
        buffer.add({key: take(value, part) for key, value in trajectory().items()})
    return buffer


def take(value, part):
    return {key: leaf[part] for key, leaf in value.items()} if isinstance(value, dict) else value[part]


@pytest.mark.parametrize("name", BUFFERS)
def test_every_part_of_an_action_stays_with_its_step(name, tmp_path):
    buffer = filled(name, tmp_path)
    batch = buffer.sample()
    actions, code = batch["actions"], batch["rewards"]
    if name == "n-step":
        code = batch["observations"].squeeze(-1)
    if name == "sequence":  # where an episode begins there was no action
        code = torch.where(batch["is_first"], 0.0, code)
    if name == "chunks":  # beyond the end the last action is repeated, without its reward
        code = (batch["observations"] + torch.arange(3)).minimum(batch["observations"] // LENGTH * LENGTH + LENGTH - 1)
    assert actions["gear"].dtype == torch.int64
    assert torch.equal(actions["gear"], (code % 50).long())
    assert torch.equal(actions["pedals"], torch.stack([code % 99, -(code % 99)], -1))


@pytest.mark.parametrize("name", BUFFERS)
def test_a_state_holds_them(name, tmp_path):
    buffer, other = filled(name, tmp_path), BUFFERS[name](num_envs=LANES, spec=SPEC)
    (tmp_path / "other").mkdir()
    other.attach(tmp_path / "other")
    other.set_state(buffer.get_state())
    assert tree_hash(dict(other.sample())) == tree_hash(dict(buffer.sample()))


def test_the_memory_estimate_counts_every_part():
    (taken,) = BUFFERS["replay"](num_envs=LANES, spec=SPEC).footprint()
    words = 1 + 3  # gear; pedals, both observations, reward and discount as float32; flags
    assert taken.num_bytes == 100 * 8 * (words + 1)


# Datasets.


def recorded(path):
    with open_writer(path) as writer:
        write_episodes([trajectory()], writer)
    return path


def test_a_dataset_keeps_them_and_a_buffer_reads_them(tmp_path):
    path = recorded(tmp_path / "data")
    episodes = list(open_dataset(path).episodes())
    assert len(episodes) == 8
    assert set(episodes[0].arrays()) == {"observations", "actions/gear", "actions/pedals", "rewards"}
    for episode in episodes:
        np.testing.assert_array_equal(episode.actions["gear"], episode.rewards % 50)
    batch = DatasetBuffer(str(path), partial(ReplayBuffer, batch_size=32), spec=SPEC).sample()
    assert torch.equal(batch["actions"]["gear"], (batch["rewards"] % 50).long())
    assert {name for name, _ in tree_leaves(batch["actions"])} == {"gear", "pedals"}


@pytest.mark.parametrize(
    ("action", "options", "message"),
    [
        (Box((2,), low=-1.0, high=1.0), {}, "actions are gear, pedals, the environment takes one array"),
        ({"gear": Discrete(50)}, {}, "actions are gear, pedals, the environment takes gear$"),
        (
            {"gear": Discrete(3), "pedals": SPEC.action["pedals"]},
            {},
            r"actions gear lie in \[0, 4\], the environment takes \[0, 2\]",
        ),
        (
            SPEC.action,
            {"action_low": 0.0, "action_high": 1.0},
            "action_low and action_high are for actions that are one",
        ),
    ],
)
def test_actions_that_do_not_fit_the_environment_are_refused(action, options, message, tmp_path):
    path = recorded(tmp_path / "data")
    spec = EnvSpec("other", Box((1,)), action)
    with pytest.raises(DatasetError, match=message):
        DatasetBuffer(str(path), partial(ReplayBuffer, batch_size=4), spec=spec, **options)


def test_lerobot_has_one_action(tmp_path):
    pytest.importorskip("pyarrow")
    zeros = np.zeros((2, 1), np.float32)
    actions = {"gear": np.zeros(2, np.int64), "pedals": zeros}
    episode = Episode(zeros, actions, zeros[:, 0], True, False, zeros[0])
    with (
        open_writer(tmp_path / "data", "lerobot", fps=10) as writer,
        pytest.raises(DatasetError, match="LeRobot has one 'action', the episode has a dict of gear, pedals"),
    ):
        writer.save(episode)
