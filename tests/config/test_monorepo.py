"""Files of the modular mono-repo mean the same here, and run as they are."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rl_lab.cli.main import app
from rl_lab.config.allow_list import AllowList
from rl_lab.config.build import assemble
from rl_lab.config.compose import compose, resolve
from rl_lab.config.targets import Targets
from rl_lab.config.validate import validate
from rl_lab.core import ConfigError

EXAMPLE = Path(__file__).parents[2] / "examples" / "monorepo" / "ppo_cartpole.yaml"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "ppo_cartpole.yaml"
    path.write_text(EXAMPLE.read_text())
    return path


@pytest.fixture
def checked(file):
    def make(*overrides):
        return validate(resolve(compose([f"monorepo.file={file}", *overrides])), Targets(AllowList()))

    return make


def test_a_file_becomes_the_lab_s_blocks(checked):
    config = checked()
    experiment = config["experiment"]
    assert (experiment["name"], experiment["seed"], experiment["device"]) == ("ppo_cartpole_baseline", 42, "auto")
    assert experiment["tags"] == ["ppo", "cartpole"]
    assert config["environment"]["name"] == "CartPole-v1"
    assert config["workflow"] == {"_target_": "rl_lab.workflows.ppo.PPO"}
    said = {"gamma": 0.99, "gae_lambda": 0.95, "clip_range": 0.2, "value_coef": 0.5, "entropy_coef": 0.01}
    assert config["algorithm"] == {**said, "normalize_observations": True, "normalize_rewards": True}
    assert config["optimizers"]["policy"]["lr"] == 3e-4
    for name in ("actor", "critic"):
        node = config["components"][name]
        assert (node["hidden_dims"], node["activation"]) == ([64, 64], "tanh")
    (phase,) = config["training"]["phases"]
    assert phase["workflow_hooks"][0]["collect"] * config["environment"]["num_envs"] == 2048
    training = config["training"]
    assert (training["total_timesteps"], training["eval_frequency"]) == (1_000_000, 10_000)
    assert (training["checkpoint_frequency"], training["num_eval_episodes"]) == (50_000, 10)


def test_keys_beside_the_file_are_above_it_and_the_lab_s_own_above_both(checked):
    config = checked(
        "monorepo.algorithm.lr=1e-4", "monorepo.network.actor.hidden_dims=[128,128]", "algorithm.gamma=0.9"
    )
    assert config["optimizers"]["policy"]["lr"] == 1e-4
    assert config["components"]["actor"]["hidden_dims"] == [128, 128]
    assert config["components"]["critic"]["hidden_dims"] == [64, 64]
    assert config["algorithm"]["gamma"] == 0.9


def test_it_trains_as_it_is_and_the_run_resumes_without_it(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["compat", "python", "scripts/train.py", "--config", str(file), "--total_timesteps", "4096"]
    result = CliRunner().invoke(app, [*command, "--name", "again"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert f"lab train monorepo={file}" in result.output
    file.unlink()
    (run,) = Path("experiments").iterdir()
    result = CliRunner().invoke(app, ["resume", str(run), "training.total_timesteps=6144"])
    assert result.exit_code == 0, result.output


SHORT = """\
algorithm: {%s}
environment: {%s}
training: {total_timesteps: 1000}
"""


@pytest.mark.parametrize(
    ("algorithm", "environment", "others"),
    [
        ("name: sac, lr: 1e-3, batch_size: 64", "name: Pendulum-v1", "buffer: {type: uniform, size: 10000}"),
        ("name: td3, polyak: 0.01", "name: Pendulum-v1", "buffer: {type: prioritized, alpha: 0.6}"),
        ("name: DQN, learning_starts: 10", "name: CartPole-v1", "network: {q_network: {hidden_dims: [32]}}"),
        ("name: planet, lr: 1e-3", "name: cartpole_swingup, wrapper: dm_control", ""),
        ("name: dreamer, lr: 1e-4", "name: CartPole-v1, num_envs: 2", "buffer: {size: 5000}"),
        (
            "name: ppo, minibatch_size: 64",
            "name: CartPole-v1",
            "network: {actor: {type: gru, hidden_dim: 8}, critic: {type: gru, hidden_dim: 8}}",
        ),
    ],
    ids=["sac", "td3", "dqn", "planet", "dreamer", "ppo_gru"],
)
def test_other_algorithms(tmp_path, algorithm, environment, others):
    file = tmp_path / "short.yaml"
    file.write_text(SHORT % (algorithm, environment) + others)
    assemble(compose([f"monorepo={file}", "budget=tiny"]), Targets(AllowList())).env.close()


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("monorepo.algorithm.name=pop", r"monorepo.algorithm.name 'pop'; did you mean 'ppo'"),
        ("monorepo.algorithm.minibatch_size=0", r"monorepo.algorithm.minibatch_size: must be a number of at least 1"),
        ("monorepo.algorithm.clip_rato=1", r"clip_rato.*clip_range"),
        ("monorepo.netwrk.x=1", r"block of monorepo.*netwrk.*network"),
        ("monorepo.network.actor.type=vit", r"monorepo.network.actor.type.*mlp"),
        ("monorepo.network.actor.type=gru", r"monorepo.network: all must be of one type"),
        ("monorepo.buffer.type=uniform", r"monorepo.buffer.type.*trajectory"),
        ("monorepo.training.total_steps=1", r"key of monorepo.training.*total_timesteps"),
        ("monorepo.environment.num_envs=0", r"monorepo.environment.num_envs: must be a number of at least 1"),
        ("monorepo.logging.wandb.team=x", r"key of monorepo.logging.wandb"),
    ],
)
def test_mistakes_are_told_in_one_line(checked, change, line):
    with pytest.raises(ConfigError, match=line) as error:
        checked(change)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="monorepo: cannot read"):
        compose([f"monorepo={tmp_path}/none.yaml"])
