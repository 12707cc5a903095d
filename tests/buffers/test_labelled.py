"""Labelled frames: which label, who is held out, balance, and data of one class only."""

import re

import numpy as np
import pytest
import torch

from rl_lab.buffers.datasets.format import Episode
from rl_lab.buffers.datasets.lab import LabWriter
from rl_lab.buffers.labelled import LabelledFrames
from rl_lab.core import Box, CheckpointError, ConfigError, EnvSpec, tree_map
from rl_lab.tracking.fingerprint import tree_hash

torch.set_num_threads(1)
SPEC = EnvSpec("made-up", Box((1,)), Box((1,), low=-1.0, high=1.0))


def trajectory(episodes):
    """Return successive episodes of one lane as (length, verdict); observations count 100 per episode, 1 per step."""
    rows = []
    for number, (length, verdict) in enumerate(episodes):
        for step in range(length):
            here = 100.0 * number + step
            is_last = step == length - 1
            rows.append((here, here + 1, is_last, step == 0, verdict if is_last else 0.0))
    here, then, ends, first, verdicts = (torch.tensor(column)[:, None] for column in zip(*rows, strict=True))
    return {
        "observations": here[..., None],
        "final_observations": then[..., None],
        "actions": torch.zeros(len(rows), 1, 1),
        "rewards": torch.zeros(len(rows), 1),
        "terminated": ends,
        "truncated": torch.zeros_like(ends),
        "is_first": first,
        "infos": {"verdict": verdicts},
    }


def write(path, episodes, label="verdict"):
    with LabWriter(path) as writer:
        for number, (length, verdict) in enumerate(episodes):
            obs = (100.0 * number + np.arange(length + 1, dtype=np.float32))[:, None]
            infos = {label: np.append(np.zeros(length - 1, np.float32), np.float32(verdict))}
            zeros = np.zeros((length, 1), np.float32)
            writer.save(Episode(obs[:-1], zeros, zeros[:, 0], True, False, obs[-1], infos))
    return str(path)


def labels_of(buffer):
    """Return the labels by frame, of all that it holds."""
    held = buffer._all()
    return dict(zip(held.frames[:, 0].tolist(), held.labels.tolist(), strict=True))


def test_labels_by_hand():
    episodes = [(4, 1.0), (3, -1.0), (5, 1.0)] * 2
    two = LabelledFrames(8)
    two.add(trajectory(episodes))
    assert labels_of(two) | {} == {
        **{1: 0, 2: 0, 3: 0, 4: 1, 101: 0, 102: 0, 103: 0, 201: 0, 202: 0, 203: 0, 204: 0, 205: 1},
        **{301: 0, 302: 0, 303: 0, 304: 1, 401: 0, 402: 0, 403: 0, 501: 0, 502: 0, 503: 0, 504: 0, 505: 1},
    }
    four = LabelledFrames(8, num_classes=4, success_frames=2)
    four.add(trajectory([(8, 1.0), (3, -1.0)]))
    # k of 8 frames: 3 k // 9 of the way, the last two are the goal; a failure says nothing of the way
    assert labels_of(four) == {1: 0, 2: 0, 3: 1, 4: 1, 5: 1, 6: 2, 7: 3, 8: 3}
    assert four.statistics() == {"size": 8.0, "successes": 1.0, "failures": 1.0}


def test_classes_are_drawn_alike_and_what_is_held_out_is_never_drawn():
    buffer = LabelledFrames(500, held_out_share=0.25, seed=3)
    buffer.add(trajectory([(9, 1.0)] * 8 + [(9, -1.0)] * 8))
    shown = {int(x) // 100 for x in buffer.peek(0)["observations"][:, 0]}
    assert shown == {1, 5, 9, 13}  # two of eight successes, two of eight failures
    assert torch.equal(buffer.peek(0)["labels"], buffer.peek(7)["labels"])
    batch = buffer.sample()
    assert not {int(x) // 100 for x in batch["observations"][:, 0]} & shown
    assert 0.4 < float(batch["labels"].float().mean()) < 0.6
    assert {int(x) for x in batch["observations"][batch["labels"] == 1, 0]} == {9, 209, 309, 409, 609, 709}


def test_datasets_say_it_themselves_or_by_their_folder(tmp_path):
    mixed = write(tmp_path / "mixed", [(4, 1.0), (4, -1.0)] * 3, label="is_success")
    good, bad = write(tmp_path / "good", [(4, 0.0)] * 3), write(tmp_path / "bad", [(4, 0.0)] * 3)
    by_label = LabelledFrames(8, path=mixed, label="is_success", spec=SPEC)
    by_folder = LabelledFrames(8, successes=good, failures=bad, spec=SPEC)
    for buffer in (by_label, by_folder):
        assert buffer.statistics() == {"size": 24.0, "successes": 3.0, "failures": 3.0}
        assert buffer.brings_data
        assert int(buffer._all().labels.sum()) == 3


def test_state_goes_on_exactly_and_knows_its_datasets(tmp_path):
    good, other = write(tmp_path / "good", [(4, 1.0)] * 4), write(tmp_path / "other", [(5, 1.0)] * 4)
    rows = trajectory([(4, -1.0), (6, 1.0), (7, -1.0)])
    first, second = (tree_map(lambda x, part=part: x[part], rows) for part in (slice(8), slice(8, 17)))
    whole = LabelledFrames(16, path=good, spec=SPEC, seed=1)
    whole.add(first)  # ends within the second episode
    whole.sample()
    again = LabelledFrames(16, path=good, spec=SPEC, seed=9)
    again.set_state(whole.get_state())
    for buffer in (whole, again):
        buffer.add(second)
    assert again.statistics() == whole.statistics() == {"size": 33.0, "successes": 5.0, "failures": 2.0}
    for _ in range(2):
        assert tree_hash(dict(again.sample())) == tree_hash(dict(whole.sample()))
    assert tree_hash(again.get_state()["rng"]) == tree_hash(whole.get_state()["rng"])
    with pytest.raises(CheckpointError, match="resumes only with the same data"):
        LabelledFrames(16, path=other, spec=SPEC).set_state(whole.get_state())


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (
            lambda path: LabelledFrames(8, failures=write(path, [(4, -1.0)] * 5), spec=SPEC),
            r"needs frames of all 2 classes to learn from, there are \[16, 0\] \(from 0 successes and 5 failures\)",
        ),
        (
            lambda path: LabelledFrames(8, path=write(path, [(4, 1.0)] * 2), spec=SPEC),
            r"all 2 classes to be held out, there are \[0, 0\] \(from 2 successes",
        ),
        (
            lambda path: LabelledFrames(8, path=write(path, [(4, 1.0)]), label="is_sucess", spec=SPEC),
            "unknown info of .* in label 'is_sucess'",
        ),
        (lambda path: LabelledFrames(8, num_classes=1), "num_classes of labelled frames must be 2 or more"),
        (lambda path: LabelledFrames(8, held_out_share=1.0), "held_out_share between 0 and 1"),
    ],
)
def test_bad_input_is_one_line(make, line, tmp_path):
    with pytest.raises(ConfigError, match=line) as caught:
        make(tmp_path / "set")
    assert "\n" not in str(caught.value)


def test_updates_wait_until_all_classes_were_collected():
    buffer = LabelledFrames(8)
    assert (buffer.is_ready(), buffer.shortage()) == (False, "no labelled episode is whole yet")
    buffer.add(trajectory([(4, -1.0)] * 6))
    line = r"there are \[20, 0\] \(from 0 successes and 6 failures\)"
    assert not buffer.is_ready()
    assert re.search(line, buffer.shortage())
    with pytest.raises(ConfigError, match=line):
        buffer.sample()
    buffer.add(trajectory([(4, 1.0)]))
    assert "to be held out" in buffer.shortage()
    buffer.add(trajectory([(4, 1.0)] * 3))
    assert (buffer.is_ready(), buffer.shortage()) == (True, "")
    assert set(buffer.sample()["labels"].tolist()) == {0, 1}
