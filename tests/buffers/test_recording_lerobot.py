"""A recording buffer in LeRobot's format: cut, resumed, joined and labelled, with who and when beside it."""

import json
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_lab.buffers.dataset import DatasetBuffer
from rl_lab.buffers.datasets import growing
from rl_lab.buffers.datasets.open import open_dataset, read_episodes
from rl_lab.buffers.episode import EpisodeBuffer
from rl_lab.buffers.recording import RecordingBuffer
from rl_lab.buffers.replay import ReplayBuffer
from rl_lab.buffers.union import UnionBuffer
from rl_lab.core import Box, CheckpointError, ConfigError, EnvSpec, Measured, Witness
from rl_lab.tracking.fingerprint import tree_hash
from tests.buffers.coded_stream import cut

pytest.importorskip("pyarrow")
from rl_lab.buffers.datasets.lerobot_writer import LeRobotWriter, compact_lerobot
from rl_lab.buffers.datasets.statistics import compute, verify_lerobot

SPEC = EnvSpec("cart", {"state": Box((2,)), "camera": Box((3, 8, 8), torch.uint8)}, Box((1,), low=-1.0, high=1.0))


def trajectory(first, steps, length=4):
    """Return steps of one copy whose episodes have `length` steps; numbers count on, pictures show them."""
    count = torch.arange(first, first + steps)

    def seen(number):
        state = torch.stack([number, 2 * number], -1).float()[:, None]
        return {"state": state, "camera": number.to(torch.uint8).view(-1, 1, 1, 1, 1).expand(-1, 1, 3, 8, 8).clone()}

    return {
        "observations": seen(count),
        "actions": (count / 100).float().view(-1, 1, 1),
        "rewards": count.float().view(-1, 1),
        "terminated": ((count + 1) % length == 0).view(-1, 1),
        "truncated": torch.zeros(steps, 1, dtype=torch.bool),
        "final_observations": seen(count + 1),
        "is_first": (count % length == 0).view(-1, 1),
        "infos": {
            "is_intervention": (count % 2).float().view(-1, 1),
            "verdict": torch.where((count + 1) % length == 0, 1.0 - 2.0 * (count // length % 2), 0.0).view(-1, 1),
        },
    }


def recording(folder, **options):
    given = {"format": "lerobot", "fps": 10, "task": "count", "spec": SPEC, **options}
    buffer = RecordingBuffer(EpisodeBuffer(100, 8), **given)
    buffer.attach(folder)
    return buffer


def files(folder):
    """Return the bytes of all files of the dataset but those that are no function of the run."""
    root = folder / "dataset"
    paths = [path for path in root.rglob("*") if path.is_file() and path.suffix != ".lock"]
    return {str(path.relative_to(root)): path.read_bytes() for path in paths if path.name != "notes.jsonl"}


def firsts(folder):
    return [int(episode.observations["state"][0, 0]) for episode in read_episodes(folder / "dataset")]


def test_episodes_are_there_with_flags_task_and_robot(tmp_path):
    buffer = recording(tmp_path)
    for first in range(0, 15, 5):
        buffer.add(trajectory(first, 5))
    assert firsts(tmp_path) == [0, 4, 8]
    episode = next(read_episodes(tmp_path / "dataset"))
    assert episode.observations["camera"][3].tolist() == np.full((3, 8, 8), 3).tolist()
    assert episode.infos["is_intervention"].tolist() == [0.0, 1.0, 0.0, 1.0]
    assert (episode.infos["verdict"].tolist(), episode.task) == ([0.0, 0.0, 0.0, 1.0], "count")
    reader = open_dataset(tmp_path / "dataset")
    assert (reader.info.robot_type, reader.steps_per_second, reader.info.is_ours) == ("cart", 10, True)
    assert buffer.sample()["observations"]["camera"].shape == (8, 3, 8, 8)


@pytest.mark.parametrize("pictures", ["png", "video"])
@pytest.mark.parametrize("joined", [2, 3, 100])
def test_a_resumed_one_ends_with_the_same_bytes(tmp_path, monkeypatch, pictures, joined):
    monkeypatch.setattr(growing, "LOOSE_EPISODES", joined)  # episodes: 2 and 3 join before, at and after the cut
    whole = recording(tmp_path / "whole", pictures=pictures)
    whole.add(trajectory(0, 10))
    whole.add(trajectory(10, 14))
    halves = recording(tmp_path / "halves", pictures=pictures)
    halves.add(trajectory(0, 10))
    state = halves.get_state()
    halves.add(trajectory(10, 12))  # killed after this
    again = recording(tmp_path / "halves", pictures=pictures)
    again.set_state(state)
    assert firsts(tmp_path / "halves") == [0, 4]
    again.add(trajectory(10, 14))
    assert firsts(tmp_path / "halves") == [0, 4, 8, 12, 16, 20]
    theirs, ours = (list(read_episodes(tmp_path / name / "dataset")) for name in ("whole", "halves"))
    assert [episode.sha256() for episode in ours] == [episode.sha256() for episode in theirs]
    assert files(tmp_path / "halves") == files(tmp_path / "whole")


def test_what_others_do_to_the_files_between_two_episodes_is_seen(tmp_path):
    buffer = recording(tmp_path, pictures="png")
    buffer.add(trajectory(0, 8))
    compact_lerobot(tmp_path / "dataset")
    buffer.add(trajectory(8, 4))
    compact_lerobot(tmp_path / "dataset")
    buffer.add(trajectory(12, 8))
    assert firsts(tmp_path) == [0, 4, 8, 12, 16]
    assert verify_lerobot(tmp_path / "dataset", compute(open_dataset(tmp_path / "dataset"))) == []
    compact_lerobot(tmp_path / "dataset")
    assert firsts(tmp_path) == [0, 4, 8, 12, 16]


def test_a_cut_to_nothing_begins_anew(tmp_path):
    buffer = recording(tmp_path)
    state = buffer.get_state()
    buffer.add(trajectory(0, 12))
    anew = recording(tmp_path)
    anew.set_state(state)
    anew.add(trajectory(40, 8))
    assert firsts(tmp_path) == [40, 44]
    assert json.loads((tmp_path / "dataset/meta/info.json").read_text())["total_frames"] == 8
    with pytest.raises(CheckpointError, match="has 0 episodes, 2 or more are expected"):
        recording(tmp_path / "elsewhere").set_state(anew.get_state())


@pytest.mark.parametrize("format", ["lab", "lerobot"])
def test_who_and_when_lie_beside_the_episodes_and_not_in_the_state(tmp_path, format):
    def watched(folder, start):
        buffer = recording(folder, format=format)
        buffer.witness(Witness((start, start + 1.0), "anna"))
        buffer.add(trajectory(0, 2))
        buffer.witness(Witness((start + 2.0, start + 3.0, start + 4.0), "ben"))
        buffer.add(trajectory(2, 3))
        return buffer

    early, late = watched(tmp_path / "early", 100.0), watched(tmp_path / "late", 900.0)
    (episode,) = read_episodes(tmp_path / "early" / "dataset")
    assert episode.notes == {"times": [100.0, 101.0, 102.0, 103.0], "operators": [[0, "anna"], [2, "ben"]]}
    assert tree_hash(early.get_state()) == tree_hash(late.get_state())
    if format == "lerobot":  # safetensors writes its metadata in any order
        assert files(tmp_path / "early") == files(tmp_path / "late")
    again = recording(tmp_path / "early", format=format)
    again.set_state(early.get_state())
    again.witness(Witness((500.0, 501.0, 502.0)))
    again.add(trajectory(5, 3))
    *_, second = read_episodes(tmp_path / "early" / "dataset")
    assert second.notes == {"times": [None, 500.0, 501.0, 502.0]}  # its first step was taken before the resume
    again.set_state(early.get_state())
    assert [e.notes["times"][0] for e in read_episodes(tmp_path / "early" / "dataset")] == [100.0]


def test_only_what_was_accepted_is_recorded_and_all_is_learned_from(tmp_path):
    buffer = recording(tmp_path, require_info="verdict")
    buffer.add(trajectory(0, 16))
    assert firsts(tmp_path) == [0, 8]  # every second one was called a failure
    assert buffer.size == 16
    good = recording(tmp_path / "good", min_return=30.0)
    good.add(trajectory(0, 16))
    assert firsts(tmp_path / "good") == [8, 12]  # 8 + 9 + 10 + 11 = 38


def test_a_union_tells_the_part_that_takes_the_steps(tmp_path):
    inner = RecordingBuffer(ReplayBuffer(100, 4), spec=SPEC)
    union = UnionBuffer(
        {"online": inner, "demos": EpisodeBuffer(100, 4)}, {"online": 0.5, "demos": 0.5}, 8, add_to="online"
    )
    union.attach(tmp_path)
    union.witness(Witness(tuple(range(4)), "anna"))
    union.add(trajectory(0, 4))
    (episode,) = read_episodes(tmp_path / "online" / "dataset")
    assert episode.notes["times"] == [0, 1, 2, 3]
    assert inner.size == 4


@settings(max_examples=6, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    pieces=st.lists(st.integers(1, 7), min_size=1, max_size=5),
    chunk=st.integers(1, 9),
    history=st.integers(1, 4),
)
def test_chunks_of_a_recorded_dataset_never_cross_an_episode(lengths, pieces, chunk, history):
    starts = [sum(lengths[:number]) for number in range(len(lengths) + 1)]
    rows = trajectory(0, starts[-1])
    steps = torch.arange(starts[-1]).view(-1, 1)
    rows["is_first"] = torch.isin(steps, torch.tensor(starts))
    rows["terminated"] = torch.isin(steps + 1, torch.tensor(starts))
    with tempfile.TemporaryDirectory() as folder:
        buffer = recording(Path(folder))
        for piece in cut(rows, pieces):
            buffer.add(piece)
        chunk, history = min(chunk, max(lengths)), min(history, max(lengths))  # longer ones are refused
        into = partial(EpisodeBuffer, batch_size=64, chunk_length=chunk, history=history)
        batch = DatasetBuffer(f"{folder}/dataset", into, keep_last_step=True).sample()
    here = batch["observations"]["state"][:, -1, 0].long().numpy()  # [B], which is the number of the step
    episode = np.searchsorted(starts, here, side="right") - 1
    first, last = np.array(starts)[episode], np.array(starts)[episode + 1] - 1
    ahead = np.minimum(here[:, None] + np.arange(chunk), last[:, None])
    back = np.maximum(here[:, None] - np.arange(history - 1, -1, -1), first[:, None])
    assert torch.allclose(batch["actions"][..., 0], torch.tensor(ahead / 100, dtype=torch.float32))
    assert batch["is_pad"].tolist() == (here[:, None] + np.arange(chunk) > last[:, None]).tolist()
    assert batch["observations"]["state"][..., 0].tolist() == back.tolist()


def measured(**changes):
    facts = {"key": "state", "entries": ((0, 1),), "low": (0.0,), "high": (100.0,), **changes}
    return EnvSpec("cart", SPEC.observation, SPEC.action, measured=Measured(**facts))


def test_executed_labels_are_what_the_next_state_shows(tmp_path):
    buffer = recording(tmp_path, action_labels="executed", spec=measured())
    given = trajectory(0, 4)
    buffer.add(given)
    (episode,) = read_episodes(tmp_path / "dataset")
    # the second entry of the state is 2, 4, 6, 8 after the steps; 0 to 100 are -1 to 1
    assert episode.actions[:, 0].tolist() == pytest.approx([-0.96, -0.92, -0.88, -0.84])
    assert given["actions"].flatten().tolist() == pytest.approx([0.0, 0.01, 0.02, 0.03])
    assert sorted(set(buffer.sample()["actions"].flatten().tolist())) <= sorted(episode.actions[:, 0].tolist())
    change = recording(
        tmp_path / "change", action_labels="executed", spec=measured(is_change=True, low=(-4.0,), high=(4.0,))
    )
    change.add(trajectory(0, 4))
    (episode,) = read_episodes(tmp_path / "change" / "dataset")
    assert episode.actions[:, 0].tolist() == pytest.approx([0.5] * 4)  # each step moves it by 2 of 4


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"format": "hdf5"}, r"unknown format of a recorded dataset 'hdf5' \(choices: lab, lerobot\)"),
        ({"fps": None}, "fps of a recording buffer: 'cart' does not tell its steps per second"),
        ({"fps": -1}, "fps must be positive"),
        ({"pictures": "gif"}, r"unknown way to keep pictures 'gif' \(choices: jpeg, png, video\)"),
        ({"action_labels": "both"}, r"unknown action_labels 'both' \(choices: commanded, executed\)"),
        ({"action_labels": "executed"}, "action_labels=executed: 'cart' does not tell what was done"),
        (
            {"pictures": "video", "spec": EnvSpec("odd", {"camera": Box((3, 7, 8), torch.uint8)}, Box((1,)))},
            "pictures=video needs 3 channels and even sizes, camera is 3 x 7 x 8",
        ),
        (
            {"spec": EnvSpec("two", Box((1,)), {"a": Box((1,)), "b": Box((1,))})},
            "cannot keep the dict of actions of 'two'",
        ),
    ],
)
def test_bad_options_are_one_line_at_the_start(tmp_path, options, line):
    with pytest.raises(ConfigError, match=line) as caught:
        recording(tmp_path, **options)
    assert "\n" not in str(caught.value)
    assert not list(Path(tmp_path).iterdir())


def test_a_camera_that_changes_or_is_missing_is_named_and_nothing_is_lost(tmp_path):
    buffer = recording(tmp_path)
    buffer.add(trajectory(0, 4))
    smaller, blind = trajectory(4, 4), trajectory(4, 4)
    for part in ("observations", "final_observations"):
        smaller[part]["camera"] = smaller[part]["camera"][..., :4]
        del blind[part]["camera"]
    other = recording(tmp_path)  # a process that begins where the first one ended, with another camera
    other.set_state(buffer.get_state() | {"recorder": {"episodes": 1, "open": None}})
    with pytest.raises(ValueError, match=r"'observation.camera' is image\[8, 4, 3\] instead of image\[8, 8, 3\]"):
        other.add(smaller)
    other.set_state(buffer.get_state() | {"recorder": {"episodes": 1, "open": None}})
    with pytest.raises(ValueError, match="the episode has no 'observation.camera'"):
        other.add(blind)
    assert firsts(tmp_path) == [0]


class Killed(BaseException):
    """What a process does not come back from."""


@pytest.mark.parametrize("joined", [False, True])
def test_a_kill_at_any_moment_of_a_cut_leaves_a_dataset_that_goes_on(tmp_path, monkeypatch, joined):
    from rl_lab.buffers.datasets import files as dataset_files

    def recorded(folder):
        recording(folder).add(trajectory(0, 20))
        LeRobotWriter(folder / "dataset", **({} if joined else {"data_mb": 0})).close()

    def go_on(folder):
        with LeRobotWriter(folder / "dataset", data_mb=0) as writer:
            writer.cut(2)
            writer.save(replace(first, observations={**first.observations, "state": first.observations["state"] + 1}))

    recorded(tmp_path / "calm")
    first = open_dataset(tmp_path / "calm" / "dataset").read(0)
    go_on(tmp_path / "calm")
    wanted = {name: data for name, data in files(tmp_path / "calm").items() if not name.startswith(".")}
    for moment in range(3):  # info.json, then what is left of the files
        folder = tmp_path / str(moment)
        recorded(folder)
        writer, left, real = LeRobotWriter(folder / "dataset", data_mb=0), [moment], dataset_files.os.replace

        def dying(source, target, left=left, real=real):
            if not left[0]:
                raise Killed
            left[0] -= 1
            real(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(dataset_files.os, "replace", dying)
            with pytest.raises(Killed):
                writer.cut(2)
        writer._lock.close()
        assert firsts(folder) in ([0, 4, 8, 12, 16], [0, 4])
        go_on(folder)
        assert files(folder) == wanted
