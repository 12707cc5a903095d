"""Tables, summaries, faults, merging and statistics of datasets."""

import json
import re
from functools import partial

import numpy as np
import pytest
import torch

from rl_lab.buffers.dataset import DatasetBuffer
from rl_lab.buffers.datasets.faults import find_faults
from rl_lab.buffers.datasets.format import DatasetError, Episode
from rl_lab.buffers.datasets.merge import differences, reject_strangers, write_new
from rl_lab.buffers.datasets.open import open_dataset, open_writer
from rl_lab.buffers.datasets.summary import find_datasets, segments, summarize, summarize_episode, summarize_episodes
from rl_lab.buffers.episode import EpisodeBuffer
from rl_lab.core import Box, EnvSpec
from tests.buffers.dataset_parts import assert_same_episode, make_episode

NOTES = {"times": [10.0, 10.1, 10.2, 10.3, 10.4], "operators": [[0, "anna"]]}


def simple(steps=5, *, notes=NOTES, camera=None, verdict=1.0, task='say "hi", twice', width=2):
    """Return an episode whose person acts in steps 1 and 3."""
    state = np.arange(steps * width, dtype=np.float32).reshape(steps, width) / 7
    observations = {"state": state} if camera is None else {"state": state, "camera": camera}
    flags = (np.arange(steps) % 2).astype(np.float32)
    verdicts = np.zeros(steps, np.float32)
    verdicts[-1] = verdict
    return Episode(
        observations=observations,
        actions=np.full((steps, 1), 0.1, np.float32),
        rewards=np.linspace(0, 1, steps, dtype=np.float32),
        terminated=True,
        truncated=False,
        final_observation={key: array[-1] for key, array in observations.items()},
        infos={"is_intervention": flags, "verdict": verdicts},
        task=task,
        notes=notes,
    )


def written(path, *episodes, format="lab", **options):
    with open_writer(path, format, **options) as writer:
        for episode in episodes:
            writer.save(episode)
    return open_dataset(path)


def without_pictures(number, *, truncated=False):
    episode = make_episode(number, truncated=truncated)
    observations = {key: array for key, array in episode.observations.items() if key != "camera"}
    final = {key: episode.final_observation[key] for key in observations}
    values = {**vars(episode), "observations": observations, "final_observation": final, "notes": NOTES}
    return Episode(**values)


def test_tables_give_every_bit_back(tmp_path):
    episodes = [without_pictures(0), without_pictures(1, truncated=True)]
    reader = written(tmp_path / "table", *episodes, format="csv", robot="arm", steps_per_second=10.0)
    assert (reader.format, reader.robot, reader.steps_per_second) == ("csv", "arm", 10.0)
    for found, wanted in zip(reader.episodes(), episodes, strict=True):
        assert_same_episode(found, wanted)
        assert found.notes == NOTES
    title, first, *_ = (tmp_path / "table" / "steps.csv").read_text().splitlines()
    assert title.startswith("episode,step,observations/state[0],observations/state[1]")
    assert float(first.split(",")[2]) == pytest.approx(float(episodes[0].observations["state"][0, 0]))


def test_special_numbers_survive_a_table(tmp_path):
    values = np.array([[0.0, -0.0, np.inf, -np.inf, 1e-45, 3.4028235e38, 1 / 3]], np.float32)
    episode = Episode(
        observations=values,
        actions=np.array([-(2**62) + 1]),
        rewards=np.array([np.nan], np.float32),
        terminated=False,
        truncated=True,
        final_observation=values[0],
        task="a,b\nc",
    )
    found = written(tmp_path / "table", episode, format="csv").read(0)
    assert found.observations.tobytes() == values.tobytes()
    assert found.actions.tolist() == [-(2**62) + 1]
    assert np.isnan(found.rewards[0])
    assert (found.task, found.truncated) == ("a,b\nc", True)


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (lambda root: cut_last_line(root / "steps.csv"), "episode 0 has 5 lines instead of steps 0 to 5"),
        (lambda root: replace(root / "steps.csv", "0,2,", "0,2,x"), "has a cell that is no float32"),
        (lambda root: replace(root / "steps.csv", "step,", "stap,"), "columns are not those that fields.json names"),
        (lambda root: (root / "episodes.csv").unlink(), "episodes.csv cannot be read: No such file"),
        (
            lambda root: replace(root / "fields.json", "rl-lab-csv", "x"),
            "format and version are not 'rl-lab-csv' and 1",
        ),
    ],
)
def test_a_damaged_table_is_one_line(tmp_path, damage, line):
    written(tmp_path / "table", simple(), format="csv")
    damage(tmp_path / "table")
    with pytest.raises(DatasetError, match=line) as caught:
        open_dataset(tmp_path / "table").read(0)
    assert "\n" not in str(caught.value)


def cut_last_line(path):
    path.write_text("\n".join(path.read_text().splitlines()[:-1]) + "\n")


def replace(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_pictures_are_refused_by_a_table(tmp_path):
    with pytest.raises(DatasetError, match="a table has no place for pictures: observations/camera"):
        written(tmp_path / "table", make_episode(), format="csv")


@pytest.mark.parametrize("format", ["lab", "csv"])
def test_a_summary_tells_who_acted_and_what_was_said(tmp_path, format):
    reader = written(tmp_path / "data", simple(), simple(verdict=-1.0, notes={}), format=format, robot="arm")
    summary = summarize(reader)
    assert (summary["robot"], summary["episodes"], summary["steps"]) == ("arm", 2, 10)
    assert summary["fields"]["observations/state"] == {"dtype": "float32", "shape": [2]}
    first, second = summarize_episodes(reader, [0, 1])
    assert (first["verdict"], first["interventions"], first["takeovers"]) == ("success", 2, 2)
    assert (first["operators"], first["began"]) == (["anna"], "1970-01-01T00:00:10Z")
    assert (second["verdict"], second["operators"], second["began"]) == ("failure", [], None)
    assert first["return"] == pytest.approx(0 + 0.25 + 0.5 + 0.75 + 1)


def test_who_acted_is_told_by_number_where_names_are_not_known():
    episode = simple(notes={})
    numbered = Episode(**{**vars(episode), "infos": {"operator": np.array([0, 7, 7, 0, 9], np.float32)}})
    assert summarize_episode(numbered)["operators"] == ["#7", "#9"]
    assert summarize_episode(episode)["operators"] == []


def test_segments_of_flags():
    assert segments(np.array([True, True, False, True])) == [(0, 2), (3, 4)]
    assert segments(np.zeros(3, bool)) == []


def test_datasets_are_found_below_a_directory_and_not_within_each_other(tmp_path):
    written(tmp_path / "b" / "deep" / "dataset", simple())
    written(tmp_path / "a", simple(), format="csv")
    written(tmp_path / "a" / "inner", simple())
    assert find_datasets(tmp_path) == [tmp_path / "a", tmp_path / "b" / "deep" / "dataset"]


@pytest.mark.parametrize(
    ("times", "line"),
    [
        ([0.0, 0.1, 0.2, 0.3, 0.4], None),
        ([0.0, 0.1, 0.05, 0.15, 0.25], "the clock goes back by 0.050 s at step 2"),
        ([0.0, 0.1, 3600.1, 3600.2, 3600.3], "the clock jumps by 3600.0 s at step 2"),
        ([0.0, 0.1, 0.5, 0.6, 0.8], "2 of 5 steps came late, by up to 0.400 s instead of 0.100 s .first: step 2"),
        ([None, None, 0.2, 0.3, 0.4], None),
        ([0.0], "times has 1 entries for 5 steps"),
    ],
)
def test_clocks_that_jump_and_steps_that_are_late_are_told(tmp_path, times, line):
    reader = written(tmp_path / "data", simple(notes={"times": times}), steps_per_second=10.0)
    faults = [fault.text for fault in find_faults(reader)]
    assert len(faults) == (line is not None)
    assert line is None or re.search(line, faults[0])


def test_a_stuck_camera_and_a_damaged_episode_are_told_and_the_others_are_read(tmp_path):
    camera = np.arange(5, dtype=np.uint8)[:, None, None, None] * np.ones((1, 3, 4, 4), np.uint8)
    stuck = np.where(np.arange(5)[:, None, None, None] >= 1, camera[1], camera)
    reader = written(tmp_path / "data", simple(camera=camera), simple(camera=stuck), simple(camera=camera))
    assert [(f.episode, f.is_damage) for f in find_faults(reader)] == [(1, False)]
    assert "observations/camera shows the same picture for 4 steps" in next(find_faults(reader)).text
    file = tmp_path / "data" / "episode-000002.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    damage = [fault for fault in find_faults(reader) if fault.is_damage]
    assert [fault.episode for fault in damage] == [2]
    assert "was changed: its sha256 is not the one" in damage[0].text


def test_another_robot_is_refused_with_all_differences(tmp_path):
    camera = np.zeros((5, 3, 4, 4), np.uint8)
    ours = written(tmp_path / "ours", simple(), robot="arm", steps_per_second=10.0)
    same = written(tmp_path / "same", simple(), robot="arm")
    other = written(tmp_path / "other", simple(camera=camera, width=3), robot="crane", steps_per_second=20.0)
    assert differences(ours, same) == []
    assert differences(ours, other) == [
        "robot is 'crane' instead of 'arm'",
        "steps per second are 20 instead of 10",
        "observations/state is float32[3] instead of float32[2]",
        "observations/camera is new (uint8[3, 4, 4])",
    ]
    with pytest.raises(
        DatasetError, match="other does not fit .*ours: robot is 'crane' instead of 'arm'; steps per"
    ) as e:
        reject_strangers([ours, same, other])
    assert "\n" not in str(e.value)
    with pytest.raises(DatasetError, match="has robot 'arm', not 'crane'"):
        open_writer(tmp_path / "ours", "lab", robot="crane")


def test_training_on_another_robots_data_lists_all_that_does_not_fit(tmp_path):
    written(tmp_path / "other", simple())
    spec = EnvSpec("mine", {"state": Box((9,)), "camera": Box((3, 8, 8), torch.uint8)}, Box((14,)))
    with pytest.raises(DatasetError) as caught:
        DatasetBuffer(str(tmp_path / "other"), partial(EpisodeBuffer, batch_size=4), spec=spec)
    assert str(caught.value).endswith(
        "observations 'state' are [2], the environment has [9]; has no observation 'camera' (it has: state): see "
        "observation_keys; actions are [1], the environment has [14]"
    )


def test_what_is_written_anew_is_whole_or_not_there(tmp_path):
    def broken():
        yield simple()
        raise DatasetError("episode 1 is damaged")

    with pytest.raises(DatasetError, match="episode 1 is damaged"):
        write_new(tmp_path / "new", open_writer, broken())
    assert list(tmp_path.iterdir()) == []
    assert write_new(tmp_path / "new", open_writer, [simple(), simple()]) == 2
    with pytest.raises(ValueError, match="new exists and is not overwritten"):
        write_new(tmp_path / "new", open_writer, [simple()])
    assert len(open_dataset(tmp_path / "new").lengths) == 2


def test_notes_of_no_episode_are_passed_over_and_damaged_ones_are_named(tmp_path):
    written(tmp_path / "data", simple())
    path = tmp_path / "data" / "notes.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"episode": 1, "times": [1.0]}\n{"epis')  # killed before the episode counted
    assert open_dataset(tmp_path / "data").read(0).notes == NOTES
    written(tmp_path / "data", simple(notes={}))
    assert path.read_bytes() == whole
    path.write_text("[]\n")
    with pytest.raises(DatasetError, match=r"notes\.jsonl: a line is not the notes of an episode"):
        open_dataset(tmp_path / "data")


def test_wrong_statistics_are_found_and_repaired(tmp_path):
    pytest.importorskip("pyarrow")
    from rl_lab.buffers.datasets.statistics import compute, repair_lerobot, verify_lerobot

    path = tmp_path / "data"
    reader = written(path, simple(), simple(7), format="lerobot", fps=10)
    computed = compute(reader)
    actions = np.concatenate([reader.read(n).actions for n in (0, 1)])
    assert verify_lerobot(path, computed) == []
    file = path / "meta" / "stats.json"
    content = json.loads(file.read_text())
    content["observation.state"]["mean"][0] += 1
    file.write_text(json.dumps(content))
    (line,) = verify_lerobot(path, computed)
    assert line.startswith("meta/stats.json: mean of observation.state is [")
    content["observation.state"]["mean"][0] = float("nan")
    file.write_text(json.dumps(content))
    (line,) = verify_lerobot(path, computed)
    assert line.startswith("meta/stats.json: mean of observation.state is [nan")
    repair_lerobot(path, computed)
    assert verify_lerobot(path, computed) == []
    repaired = json.loads(file.read_text())
    assert repaired["action"]["mean"] == pytest.approx(actions.mean(0).tolist())
    assert repaired["index"]["max"] == [11]
    assert [len(episode) for episode in open_dataset(path).episodes()] == [5, 7]
