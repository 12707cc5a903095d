"""What the cell records: who and when, labels of what was done, exact resume in LeRobot's format, and replays of it."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from rl_lab.buffers.datasets.open import open_dataset, read_episodes
from rl_lab.buffers.datasets.recorder import EpisodeRecorder
from rl_lab.buffers.executed import ExecutedActions
from rl_lab.cli.data.replaying import replay_episode
from rl_lab.cli.main import app
from rl_lab.core import ConfigError
from rl_lab.environments.gymnasium import GymnasiumEnv
from rl_lab.environments.hosting.registry import find_recipe
from rl_lab.human.experts import InsertionExpert
from rl_lab.human.pick_and_place_expert import PickAndPlaceExpert
from rl_lab.tracking.fingerprint import fingerprint
from tests.buffers.test_dataset_recorder import Shelf
from tests.human.test_corrections import CUT, IMPATIENT
from tests.human.test_driver import make_cart
from tests.workflows.teaching import TINY, composed, train

pytest.importorskip("pyarrow")
torch.set_num_threads(1)
LASTING = (*IMPATIENT, "training.operator.recovery=null", "training.operator.max_correction_steps=40")  # to the end
RECORDED = ("buffers.demonstrations.format=lerobot", "buffers.demonstrations.action_labels=executed")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    return train(composed("corrected_insertion", root, *TINY, CUT, *LASTING, *RECORDED), root, "whole")


def dataset(run):
    return run.path / "buffers" / "demonstrations" / "dataset"


def test_resume_is_exact_and_times_are_beside_it(whole, tmp_path):
    config = composed("corrected_insertion", tmp_path, *TINY, CUT, *LASTING, *RECORDED)
    run = train(config, tmp_path, "halves", stop_at=9)
    train(None, tmp_path, "halves")
    assert fingerprint(run) == fingerprint(whole)
    ours, theirs = (list(read_episodes(dataset(each))) for each in (run, whole))
    assert [episode.sha256() for episode in ours] == [episode.sha256() for episode in theirs]
    files = ["meta/info.json", "meta/stats.json", "meta/tasks.parquet", "data/chunk-000/file-000.parquet"]
    assert all((dataset(run) / file).read_bytes() == (dataset(whole) / file).read_bytes() for file in files)
    for episode in theirs:
        times = episode.notes["times"]
        assert len(times) == len(episode)
        assert times == sorted(times)
    watched = [name for episode in theirs for _, name in episode.notes.get("operators", [])]
    assert set(watched) == {"simulated"}


def test_executed_labels_tell_what_the_tool_did(whole):
    for episode in read_episodes(dataset(whole)):
        tips = episode.observations[:, :3]  # decimetres; an action of 1 is 0.1 of them
        np.testing.assert_allclose(episode.actions[:-1], np.clip(np.diff(tips, axis=0) / 0.1, -1, 1), atol=1e-5)


def test_a_run_is_named_and_its_episode_replayed_in_its_environment(whole):
    arguments = ["data", "replay", str(whole.path), "--episode", "0", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert found["deviation"]["observations"]["start"] == 0.0
    assert found["deviation"]["observations"]["max"] < 2.0  # labels of what was done are not what was commanded


def collected(env, expert, steps, seed=3):
    """Return the episodes of an expert with unsteady hands."""
    torch.manual_seed(seed)
    shelf = Shelf()
    recorder = EpisodeRecorder(shelf)
    obs, is_first = env.reset(seed), torch.ones(env.num_envs, dtype=torch.bool)
    for _ in range(steps):
        actions, _, _ = expert.act(obs, None, is_first=is_first, explore=True, step=0)
        step = env.step(actions)
        row = {"observations": obs, "actions": actions, "rewards": step.rewards, "is_first": is_first}
        row |= {"terminated": step.terminated, "truncated": step.truncated}
        row |= {"final_observations": step.final_observations}
        recorder.add({key: value[None] for key, value in row.items()})
        obs, is_first = step.observations, step.terminated | step.truncated
    env.close()
    return shelf.episodes


def test_an_open_loop_replay_goes_the_same_way():
    name = "cell/Insertion-v0"
    episodes = collected(GymnasiumEnv(name, 2), InsertionExpert(0.1), 40)
    for episode in episodes[:3]:
        found = replay_episode(find_recipe(name, {}, ()).make, episode)
        assert (found["steps"], found["ended"]) == (len(episode), f"terminated after {len(episode)} steps")
        assert found["is_success"] is True
        assert found["deviation"]["observations"]["max"] < 1e-5


def test_a_replay_with_two_arms_starts_where_it_was_recorded():
    name = "cell/PickAndPlace-v0"
    episodes = collected(GymnasiumEnv(name, 2), PickAndPlaceExpert(0.0), 30)
    found = replay_episode(find_recipe(name, {}, ()).make, episodes[0])
    assert found["deviation"]["observations"]["start"] < 1e-6
    assert found["deviation"]["observations"]["max"] > 1e-3  # how objects are turned was not observed


def test_what_cannot_be_replayed_is_one_line():
    (episode, *_) = collected(GymnasiumEnv("cell/Insertion-v0", 1), InsertionExpert(), 20)
    with pytest.raises(
        ValueError, match=r"the recorded actions are \[3\], the environment takes \[14\]: is it of another"
    ):
        replay_episode(find_recipe("cell/PickAndPlace-v0", {}, ()).make, episode)
    values = {**vars(episode), "actions": episode.actions[:, :1], "observations": episode.observations[:, :1]}
    with pytest.raises(ValueError, match="replay moves no real robot"):
        replay_episode(make_cart, type(episode)(**{**values, "final_observation": episode.final_observation[:1]}))


def test_joints_are_measured_and_grippers_keep_their_command():
    env = GymnasiumEnv("cell/PickAndPlace-v0", 1)
    measured = env.spec.measured
    assert [action for action, _ in measured.entries] == [0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12]
    low, high = torch.tensor(env.describe()["action_low"]), torch.tensor(env.describe()["action_high"])
    after = torch.zeros(1, 1, 20)
    after[..., :14] = low + 0.25 * (high - low)  # a quarter of every range
    actions = torch.full((1, 1, 14), 0.9)
    labels = ExecutedActions(env.spec)({"actions": actions, "observations": after, "final_observations": after})[
        "actions"
    ]
    expected = [0.9 if number in (6, 13) else -0.5 for number in range(14)]
    assert labels[0, 0].tolist() == pytest.approx(expected, abs=1e-5)
    env.close()


def test_pixels_show_the_state_under_its_name_and_others_tell_nothing():
    from rl_lab.human.cell.env import SimulatedCellEnv
    from rl_lab.human.cell.insertion import InsertionCell

    env = SimulatedCellEnv(InsertionCell(), "insertion", observations="pixels")
    assert env.measured() == {
        "key": "state",
        "entries": ((0, 0), (1, 1), (2, 2)),
        "low": (-0.1, -0.1, -0.1),
        "high": (0.1, 0.1, 0.1),
        "is_change": True,
    }
    assert make_cart().measured() is None
    with pytest.raises(ConfigError, match="action_labels=executed: 'CartPole-v1' does not tell what was done"):
        ExecutedActions(GymnasiumEnv("CartPole-v1", 1).spec)


def test_the_dataset_is_of_the_robot(whole):
    reader = open_dataset(dataset(whole))
    assert (reader.robot, reader.steps_per_second) == ("cell/Insertion-v0", 10)
