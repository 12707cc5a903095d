"""What does not fit World Models is told in one line, and nothing is lost."""

import pytest
from typer.testing import CliRunner

from rl_lab.cli.main import app

CARTPOLE = ("+experiment=world_models_cartpole", "budget=tiny")
PHASES = "training.phases=[{name: a, buffer: replay, steps: 64, hooks: [collect]}, %s]"
PLUGIN = """
import gymnasium
import numpy as np


class Seedless(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self):
        return np.zeros(3, np.float32), {}


def make_env():
    return Seedless()
"""


def run(overrides, folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("LAB_EXPERIMENTS", str(folder / "experiments"))
    return CliRunner().invoke(app, ["train", *CARTPOLE, *overrides])


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["algorithm.population=0"], "algorithm.population: must be greater than or equal to 2, not 0"),
        (["algorithm.temperature=0"], "algorithm.temperature: must be greater than 0, not 0"),
        (["algorithm.temperature=-1.5"], "algorithm.temperature: must be greater than 0, not -1.5"),
        (["algorithm.temperature=11"], "algorithm.temperature: must be less than or equal to 10, not 11"),
        (
            ["algorithm.random_steps=20", "training.total_timesteps=20"],
            "algorithm.random_steps: 20 env steps of random actions are not less than training.total_timesteps=20",
        ),
        (  # a warm-up that is too long as well hides no other mistake
            [
                "algorithm.random_steps=20",
                "training.total_timesteps=20",
                PHASES % "{name: b, steps: 9, hooks: [colect]}",
            ],
            "unknown hook of phase 'b' 'colect'; did you mean 'collect'? (choices: collect, encode, evaluate, "
            "evaluate_world_model, record_dream, update_controller, update_memory, update_vae)",
        ),
        (["algorithm.num_rollouts=0"], "algorithm.num_rollouts: must be greater than or equal to 1, not 0"),
        (["algorithm.sigma=0"], "algorithm.sigma: must be greater than 0, not 0"),
        (
            ["components.controller.hidden_dims=[0]"],
            "components.controller.hidden_dims.0: must be greater than or equal to 1, not 0",
        ),
        (
            [PHASES % "{name: c, buffer: replay, steps: 64, hooks: [collect, update_controller]}"],
            "phase 'c': update_controller beside collect needs a rollout, not 'replay'",
        ),
        (
            [PHASES % "{name: m, buffer: replay, updates: 1, hooks: [update_memory]}"],
            "phase 'm': update_memory reads latents, which `encode` must store before it",
        ),
        (  # not after hours of collecting
            ["buffers.replay.refreshed=[]"],
            "buffers.replay.refreshed: encode stores what it finds as 'belief', which is not in it",
        ),
        (
            ["buffers.replay.sequence_length=1"],
            "buffers.replay: sequence_length must be 2 rows or more, got 1: a step lies between two",
        ),
        (
            ["training.phases.6.dream_steps=0"],
            "dream_steps of phase 'film' must be a whole number >= 1, not 0",
        ),
    ],
)
def test_bad_input_is_one_line(overrides, text, tmp_path, monkeypatch):
    result = run(overrides, tmp_path, monkeypatch)
    assert result.output.strip().splitlines() == [f"error: {text}"]
    assert result.exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_an_environment_that_takes_no_seed_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "seedless.py").write_text(PLUGIN)
    target = ["environment._target_=rl_lab.environments.gymnasium.GymnasiumEnv", "environment.name=seedless:make_env"]
    target.append("~environment.max_episode_steps")
    result = run([*target, "--plugin", str(tmp_path / "seedless.py")], tmp_path, monkeypatch)
    assert result.exit_code == 2
    assert result.output.strip().splitlines() == [
        "error: environment.name 'seedless:make_env' cannot be reset to a seed: reset of Seedless takes none"
    ]
    assert {path.name for path in tmp_path.iterdir()} <= {"seedless.py", "__pycache__"}
