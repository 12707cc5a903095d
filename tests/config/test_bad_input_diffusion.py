"""Horizons and demonstrations that do not fit are told in one line at the start, and leave nothing on disk."""

import pytest
from typer.testing import CliRunner

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
