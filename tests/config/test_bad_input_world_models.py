"""What does not fit a world model is told in one line at the start, and leaves nothing on disk."""

import pytest
from typer.testing import CliRunner

from rl_lab.cli.main import app

TOTAL, CARTPOLE = "training.total_timesteps=1e5", ("+environment=cartpole", "environment.num_envs=4")
MODEL, NO_SEQUENCES = "components.world_model", ("~buffers.replay.online", "~buffers.replay.refreshed")
SEED = "{name: seed, duration_steps: 40, hooks: [collect]}, {name: learn, duration_updates: 9, hooks: [update_agent]}"


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (
            (TOTAL, "+environment=minatar_breakout"),
            "environment: images of 10x10 cannot be halved 4 times by components.world_model.encoder "
            "(sides must be multiples of 16, 16 or more)",
        ),
        (
            (TOTAL, *CARTPOLE, "buffers.replay.sequence_length=502", "buffers.replay.cross_episodes=false"),
            "buffers.replay: sequence_length=502 is longer than any episode (500 steps, 501 rows) "
            "and cross_episodes is false",
        ),
        (
            (TOTAL, *CARTPOLE, "buffers.replay.sequence_length=24", f"training.phases=[{SEED}]"),
            "phase 'learn' can never update: buffer 'replay' waits for 48 env steps or more, "
            "the phases before it collect 40",
        ),
        (
            ("training.total_timesteps=120", *CARTPOLE),
            "buffers.replay: 128 steps before the first update (sequence_length) are more than "
            "training.total_timesteps=120",
        ),
        (
            (TOTAL, *CARTPOLE, "buffer@buffers.replay=replay", "~buffers.replay.sequence_length", *NO_SEQUENCES),
            "buffers.replay: Dreamer learns from sequences, not from transitions (choices: sequence)",
        ),
        (
            (TOTAL, *CARTPOLE, f"{MODEL}.rssm.num_blocks=0"),
            f"{MODEL}.rssm.num_blocks: must be greater than or equal to 1, not 0",
        ),
        (
            (TOTAL, *CARTPOLE, f"{MODEL}.rssm.unimix=1.5"),
            f"{MODEL}.rssm.unimix: must be less than or equal to 1, not 1.5",
        ),
        (
            (TOTAL, *CARTPOLE, f"{MODEL}.discount_horizon=1"),
            f"{MODEL}.discount_horizon: must be greater than 1, not 1",
        ),
        (
            (TOTAL, *CARTPOLE, f"{MODEL}.kl.free_nats=-1"),
            f"{MODEL}.kl.free_nats: must be greater than or equal to 0, not -1",
        ),
        (
            (TOTAL, *CARTPOLE, f"{MODEL}.encoder.units=0"),
            f"{MODEL}.encoder.units: must be greater than or equal to 1, not 0",
        ),
        (
            (TOTAL, *CARTPOLE, "components@components.actor=world_critic"),
            "components.actor: needs a WorldActor",
        ),
    ],
)
def test_bad_input_is_one_line(overrides, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAB_EXPERIMENTS", str(tmp_path / "experiments"))
    result = CliRunner().invoke(app, ["train", "+preset=dreamer_v3", "experiment.name=bad", *overrides])
    assert result.output.strip().splitlines() == [f"error: {text}"]
    assert result.exit_code == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (
            ("+experiment=tdmpc2_pendulum_tensor", "training.total_timesteps=300"),
            "algorithm.random_steps: 1000 env steps of random actions are not less than training.total_timesteps=300",
        ),
        (
            ("+experiment=tdmpc2_pendulum_tensor", "components.planner.horizon=201"),
            "components.planner.horizon: 201 env steps ahead are more than an episode of 'tensor/Pendulum' has (200)",
        ),
        (
            ("+experiment=planet_pendulum_tensor", "components.planner.horizon=201"),
            "components.planner.horizon: 201 env steps ahead are more than an episode of 'tensor/Pendulum' has (200)",
        ),
        (
            ("+experiment=planet_pendulum_tensor", "buffer@buffers.replay=replay", "~buffers.replay.sequence_length"),
            "buffers.replay: PlaNet learns from sequences, not from transitions (choices: sequence)",
        ),
        (
            (
                *("+experiment=tdmpc2_pendulum_tensor", "buffer@buffers.replay=replay"),
                *("~buffers.replay.sequence_length", "buffers.replay.gamma=0.9"),
            ),
            "buffers.replay: TDMPC learns from sequences or prioritized sequences, not from transitions "
            "(choices: sequence, prioritized_sequence)",
        ),
        (
            ("+experiment=planet_pendulum_tensor", "buffers.replay.sequence_length=1"),
            "buffers.replay: sequence_length must be 2 rows or more, got 1: a step lies between two",
        ),
    ],
)
def test_planning_that_does_not_fit_is_one_line(overrides, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAB_EXPERIMENTS", str(tmp_path / "experiments"))
    result = CliRunner().invoke(app, ["train", *overrides])
    assert result.output.strip().splitlines() == [f"error: {text}"]
    assert result.exit_code == 2
    assert list(tmp_path.iterdir()) == []
