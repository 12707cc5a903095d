"""What goes through a recording buffer lies on disk as a dataset, no more and no less than its state knows."""

import pytest
import torch

from rl_lab.buffers.datasets.open import read_episodes
from rl_lab.buffers.episode import EpisodeBuffer
from rl_lab.buffers.recording import RecordingBuffer
from rl_lab.buffers.sequence import SequenceBuffer
from rl_lab.core import CheckpointError, LabError, Witness


def trajectory(first, steps, length=4):
    """Return steps of one copy whose episodes have `length` steps; observations count on."""
    count = torch.arange(first, first + steps)
    obs = count.float().view(-1, 1, 1)
    return {
        "observations": obs,
        "actions": obs + 0.5,
        "rewards": obs[..., 0],
        "terminated": ((count + 1) % length == 0).view(-1, 1),
        "truncated": torch.zeros(steps, 1, dtype=torch.bool),
        "final_observations": obs + 1,
        "is_first": (count % length == 0).view(-1, 1),
        "infos": {"is_intervention": (count % 2).float().view(-1, 1)},
    }


def recording(folder, **options):
    buffer = RecordingBuffer(EpisodeBuffer(100, 8), task="count", **options)
    buffer.attach(folder)
    return buffer


def firsts(folder, name="dataset"):
    return [int(episode.observations[0, 0]) for episode in read_episodes(folder / name)]


def test_whole_episodes_are_on_disk_and_sampled(tmp_path):
    buffer = recording(tmp_path)
    for first in range(0, 15, 5):
        buffer.add(trajectory(first, 5))
    assert firsts(tmp_path) == [0, 4, 8]
    (episode, *_) = read_episodes(tmp_path / "dataset")
    assert episode.actions[:, 0].tolist() == [0.5, 1.5, 2.5, 3.5]
    assert episode.infos["is_intervention"].tolist() == [0.0, 1.0, 0.0, 1.0]
    assert (episode.task, episode.terminated, float(episode.final_observation[0])) == ("count", True, 4.0)
    assert buffer.size == 12
    assert buffer.sample()["observations"].shape == (8, 1)
    assert buffer.statistics()["recorded"] == 3.0


def test_a_restored_one_forgets_what_came_later_and_goes_on(tmp_path):
    buffer = recording(tmp_path)
    buffer.add(trajectory(0, 10))
    state = buffer.get_state()
    buffer.add(trajectory(10, 10))
    assert firsts(tmp_path) == [0, 4, 8, 12, 16]
    other = recording(tmp_path)
    other.set_state(state)
    assert firsts(tmp_path) == [0, 4]
    other.add(trajectory(10, 5))  # the third episode began before the state
    assert firsts(tmp_path) == [0, 4, 8]


def test_single_rows_are_drawn_where_they_are_enough(tmp_path):
    """Of sequences of four rows each a VAE needs none."""
    buffer = RecordingBuffer(SequenceBuffer(100, 8, 4))
    buffer.attach(tmp_path)
    buffer.add(trajectory(0, 20))
    assert buffer.draw(5)["observations"].shape == (5, 1, 1)
    assert buffer.draw()["observations"].shape == (8, 4, 1)


def test_what_cannot_be_is_one_line(tmp_path):
    buffer = recording(tmp_path)
    buffer.add(trajectory(0, 10))
    with pytest.raises(CheckpointError, match="has 0 episodes, 2 or more are expected"):
        recording(tmp_path / "elsewhere").set_state(buffer.get_state())
    with pytest.raises(LabError, match="was not attached to a run"):
        RecordingBuffer(EpisodeBuffer(100, 8)).add(trajectory(0, 4))


def test_one_that_begins_anew_forgets_what_a_killed_process_left(tmp_path):
    recording(tmp_path).add(trajectory(0, 10))  # killed before its first checkpoint
    anew = recording(tmp_path)
    anew.add(trajectory(100, 12))
    assert firsts(tmp_path) == [100, 104, 108]
    state = anew.get_state()
    other = recording(tmp_path)
    other.set_state(state)
    other.add(trajectory(112, 4))
    assert firsts(tmp_path) == [100, 104, 108, 112]


def test_what_is_open_when_the_robot_fails_is_recorded_as_cut(tmp_path):
    buffer = recording(tmp_path)
    buffer.end_episodes()  # nothing has come yet
    buffer.add(trajectory(0, 6))
    buffer.end_episodes()
    *_, last = read_episodes(tmp_path / "dataset")
    assert firsts(tmp_path) == [0, 4]
    assert (last.observations[:, 0].tolist(), float(last.final_observation[0])) == ([4.0, 5.0], 6.0)
    assert (last.terminated, last.truncated) == (False, True)
    buffer.end_episodes()  # once
    buffer.add(trajectory(8, 4))
    assert firsts(tmp_path) == [0, 4, 8]


@pytest.mark.parametrize("options", [{}, {"format": "lerobot", "fps": 10}])
def test_what_a_person_did_after_a_checkpoint_is_kept_beside_the_dataset(tmp_path, options):
    def watched(first, steps):
        rows = trajectory(first, steps)
        return rows | {"infos": rows["infos"] | {"operator_time": torch.full((steps, 1), 5.0)}}

    def restored(state):
        buffer = recording(tmp_path, **options)
        buffer.set_state(state)
        return buffer

    buffer = recording(tmp_path, **options)
    buffer.add(watched(0, 4))
    state = buffer.get_state()
    buffer.add(watched(4, 8))
    buffer.witness(Witness((1.0, 2.0), "anna"))
    buffer.add(watched(12, 2))
    buffer.end_episodes()  # the robot fails
    again = restored(state)
    assert (firsts(tmp_path), firsts(tmp_path, "dataset_cut_1")) == ([0], [4, 8, 12])
    *_, last = read_episodes(tmp_path / "dataset_cut_1")
    assert (len(last), last.truncated, last.notes) == (2, True, {"times": [1.0, 2.0], "operators": [[0, "anna"]]})
    again.add(watched(16, 4))
    restored(state)
    assert (firsts(tmp_path), firsts(tmp_path, "dataset_cut_2")) == ([0], [16])
    restored(state)  # nothing came later
    assert not (tmp_path / "dataset_cut_3").exists()
