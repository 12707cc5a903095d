"""Horizons and demonstrations that do not fit are told in one line at the start, and leave nothing on disk."""

import numpy as np
import pytest
from typer.testing import CliRunner

from rl_lab.buffers.datasets.format import Episode
from rl_lab.buffers.datasets.lab import LabWriter
from rl_lab.cli.main import app

PUSHT = ("+experiment=diffusion_pusht_small", "buffers.demonstrations.episodes=[7]")


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (
            ("+experiment=diffusion_two_roads", "algorithm.action_horizon=9"),
            "workflow: algorithm.action_horizon: 9 actions are more than prediction_horizon=8, the length of a chunk",
        ),
        (
            ("+experiment=diffusion_two_roads", "algorithm.prediction_horizon=7"),
            "algorithm.prediction_horizon: 7 actions cannot be halved 1 times, as 2 levels of channels need",
        ),
        (
            ("+experiment=diffusion_pusht_small", "algorithm.observation_horizon=400"),
            "buffers.demonstrations: into.history=400 is longer than every episode of packaged/pusht: the shortest has "
            "118 steps, the longest 161 (choose 161 or less)",
        ),
        (
            ("+experiment=bc_pusht", "buffers.demonstrations.episodes=[7]", "algorithm.observation_horizon=400"),
            "buffers.demonstrations: into.history=400 is longer than every episode of packaged/pusht: the shortest has "
            "169 steps, the longest 169 (choose 169 or less)",
        ),
        (
            (*PUSHT, "buffers.demonstrations.action_high=256.0"),
            "packaged/pusht, episode 7: actions lie in [-0.390625, 1.71875], the environment takes "
            "[-1, 1]: give action_low and action_high of the dataset",
        ),
        (
            (*PUSHT, "environment.env_kwargs.obs_type=pixels"),
            "packaged/pusht, episode 7 has the observations state, environment_state, "
            "agent_pos, the environment has one: name it by observation_keys",
        ),
        (
            (*PUSHT, "environment.wrappers=[{action_repeat: 2}]"),
            "packaged/pusht has 10 steps per second, 'gym_pusht/PushT-v0' has 5: its actions would mean others",
        ),
    ],
)
def test_bad_input_is_one_line(overrides, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAB_EXPERIMENTS", str(tmp_path / "experiments"))
    result = CliRunner().invoke(app, ["train", *overrides, "environment.num_envs=1", "budget=tiny"])
    assert result.output.strip().splitlines() == [f"error: {text}"]
    assert result.exit_code in (1, 2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "text"), [(9.0, "lie in [0, 9], the environment"), (float("nan"), "is not finite at")]
)
def test_a_bad_episode_is_told_before_anything_is_written(number, text, tmp_path, monkeypatch):
    """The first episode is good, the second is not."""
    with LabWriter(tmp_path / "shown") as writer:
        for action in (0.0, number):
            actions = np.zeros((20, 1), np.float32)
            actions[3] = action
            obs = np.zeros((20, 3), np.float32)
            writer.save(Episode(obs, actions, np.zeros(20, np.float32), False, True, obs[0]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAB_EXPERIMENTS", str(tmp_path / "experiments"))
    run = ("+preset=diffusion_small", "+environment=pendulum", "experiment.name=x", "training.total_timesteps=1000")
    result = CliRunner().invoke(
        app, ["train", *run, "environment.num_envs=1", "buffers.demonstrations.path=shown", "budget=tiny"]
    )
    (line,) = result.output.strip().splitlines()
    assert line.startswith(f"error: shown, episode 1: actions {text}")
    assert [path.name for path in tmp_path.iterdir()] == ["shown"]
