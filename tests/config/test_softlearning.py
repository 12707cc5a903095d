"""Softlearning's configs, as its own code writes them, mean the same here."""

import copy
import json
import math
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from typer.testing import CliRunner

from rl_lab.cli.main import app
from rl_lab.config.allow_list import AllowList
from rl_lab.config.build import assemble
from rl_lab.config.compose import compose, resolve
from rl_lab.config.targets import Targets
from rl_lab.config.validate import validate
from rl_lab.core import ConfigError

# What examples/development/variants.py of Softlearning (13cf187) gives for gym, Hopper, v3 and SAC.
HOPPER = {
    "git_sha": "13cf187 master",
    "environment_params": {
        "training": {"domain": "Hopper", "task": "v3", "universe": "gym", "kwargs": {}},
        "evaluation": {"domain": "Hopper", "task": "v3", "universe": "gym", "kwargs": {}},
    },
    "policy_params": {
        "class_name": "FeedforwardGaussianPolicy",
        "config": {
            "hidden_layer_sizes": [256, 256],
            "squash": True,
            "observation_keys": None,
            "preprocessors": None,
        },
    },
    "exploration_policy_params": {"class_name": "ContinuousUniformPolicy", "config": {"observation_keys": None}},
    "Q_params": {
        "class_name": "double_feedforward_Q_function",
        "config": {"hidden_layer_sizes": [256, 256], "observation_keys": None, "preprocessors": None},
    },
    "algorithm_params": {
        "class_name": "SAC",
        "config": {
            "train_every_n_steps": 1,
            "n_train_repeat": 1,
            "eval_render_kwargs": {},
            "eval_n_episodes": 1,
            "num_warmup_samples": 10000,
            "policy_lr": 0.0003,
            "Q_lr": 0.0003,
            "alpha_lr": 0.0003,
            "target_update_interval": 1,
            "tau": 0.005,
            "target_entropy": "auto",
            "discount": 0.99,
            "reward_scale": 1.0,
            "n_epochs": 40,
            "epoch_length": 25000,
            "min_pool_size": 1000,
            "batch_size": 256,
        },
    },
    "replay_pool_params": {"class_name": "SimpleReplayPool", "config": {"max_size": 1000000}},
    "sampler_params": {"class_name": "SimpleSampler", "config": {"max_path_length": 1000}},
    "run_params": {
        "host_name": "somewhere",
        "seed": 4207,
        "checkpoint_at_end": True,
        "checkpoint_frequency": 4,
        "checkpoint_replay_pool": False,
    },
}
CONVNET = {
    "class_name": "convnet_preprocessor",
    "config": {
        "conv_filters": [64, 64, 64],
        "conv_kernel_sizes": [3, 3, 3],
        "conv_strides": [2, 2, 2],
        "normalization_type": "layer",
        "downsampling_type": "conv",
    },
}


def changed(**values):
    """Return Hopper's variant with `a__b__c=value` changed."""
    variant = copy.deepcopy(HOPPER)
    for path, value in values.items():
        *parents, last = path.split("__")
        node = variant
        for key in parents:
            node = node[key]
        node[last] = value
    return variant


@pytest.fixture
def translated(tmp_path):
    def make(variant, *overrides):
        path = tmp_path / "params.json"
        path.write_text(json.dumps(variant))
        return compose([f"variant={path}", *overrides])

    return make


@pytest.fixture
def checked(translated):
    def make(variant, *overrides):
        return validate(resolve(translated(variant, *overrides)), Targets(AllowList()))

    return make


def test_a_variant_becomes_the_lab_s_blocks(checked):
    config = checked(HOPPER)
    assert config["experiment"]["name"] == "sac_hopper"
    assert config["experiment"]["seed"] == 4207
    environment = config["environment"]
    assert (environment["name"], environment["num_envs"]) == ("gym/Hopper/v3", 1)
    assert environment["env_kwargs"] == {"max_episode_steps": 1000}
    assert config["workflow"] == {"_target_": "rl_lab.workflows.sac.SAC"}
    said = {"gamma": 0.99, "tau": 0.005, "random_steps": 10_000, "reward_scale": 1.0, "target_entropy": "auto"}
    assert config["algorithm"] == {**said, "policy": "gaussian", "actor_reduction": "mean"}
    actor, critic, replay = config["components"]["actor"], config["components"]["critic"], config["buffers"]["replay"]
    assert (actor["hidden_dims"], actor["activation"]) == ([256, 256], "relu")
    assert (critic["hidden_dims"], critic["num_members"]) == ([256, 256], 2)
    assert (replay["capacity"], replay["batch_size"], replay["min_size"]) == (1_000_000, 256, 10_000)
    assert {name: node["lr"] for name, node in config["optimizers"].items()} == dict.fromkeys(
        ("actor", "critic", "alpha"), 3e-4
    )
    training = config["training"]
    assert (training["total_timesteps"], training["eval_frequency"]) == (1_000_000, 25_000)
    assert (training["num_eval_episodes"], training["checkpoint_frequency"]) == (1, 100_000)
    assert training["phases"][0]["train_ratio"] == 1.0


def test_a_variant_trains_and_its_run_resumes_without_it(translated, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("params.json").write_text(json.dumps(HOPPER))
    result = CliRunner().invoke(app, ["train", "variant=params.json", "budget=tiny", "--run-dir", "run"])
    assert result.exit_code == 0, result.output
    Path("params.json").unlink()
    assert "variant" not in Path("run", "composed.yaml").read_text()
    longer = [f"training.{key}=256" for key in ("total_timesteps", "phases.0.duration_steps")]
    result = CliRunner().invoke(app, ["resume", "run", *longer])
    assert result.exit_code == 0, result.output


def test_the_command_line_is_above_the_variant(checked):
    config = checked(HOPPER, "algorithm.tau=0.02", "components.critic.num_members=5", "experiment.name=mine")
    assert config["algorithm"]["tau"] == 0.02
    assert config["components"]["critic"]["num_members"] == 5
    assert config["experiment"]["name"] == "mine"


def test_ratios_and_warm_up_mean_the_same(checked):
    config = checked(
        changed(algorithm_params__config__n_train_repeat=4, algorithm_params__config__train_every_n_steps=8)
    )
    assert config["training"]["phases"][0]["train_ratio"] == 0.5
    config = checked(changed(algorithm_params__config__num_warmup_samples=0))
    assert (config["algorithm"]["random_steps"], config["buffers"]["replay"]["min_size"]) == (0, 1000)
    config = checked(changed(algorithm_params__config__target_entropy=None))
    assert config["algorithm"]["target_entropy"] is None
    assert "alpha" not in config["optimizers"]


@pytest.mark.parametrize(("said", "explores"), [({}, False), ({"eval_deterministic": True}, False),
                                                ({"eval_deterministic": False}, True)])  # fmt: skip
def test_evaluation_explores_where_it_was_not_deterministic(checked, said, explores):
    config = checked(changed(**{f"algorithm_params__config__{key}": value for key, value in said.items()}))
    assert config["training"]["eval_explore"] is explores


def test_infinities_of_json_reach_the_environment(translated):
    kwargs = {"healthy_reward": 0.0, "healthy_z_range": [-math.inf, math.inf]}
    variant = changed(
        environment_params__training={
            "domain": "Ant",
            "task": "Parameterizable-v3",
            "universe": "gym",
            "kwargs": kwargs,
        }
    )
    del variant["environment_params"]["evaluation"]
    parts = assemble(translated(variant, "budget=tiny"), Targets(AllowList()))
    assert parts.env.spec.id == "Ant-v5"
    assert parts.config["environment"]["env_kwargs"]["healthy_z_range"] == (-math.inf, math.inf)
    parts.env.close()


def test_soft_q_learning_with_its_tuple_of_one(translated):
    sql = {
        "class_name": "SQL",
        "config": {
            "policy_lr": 1e-5,
            "target_update_interval": 10,
            "tau": 0.005,
            "discount": 0.98,
            "reward_scale": [30],
        },
    }
    composed = translated(changed(algorithm_params=sql), "training.total_timesteps=100")
    algorithm = OmegaConf.to_container(composed.algorithm)
    assert composed.workflow._target_ == "rl_lab.workflows.sql.SQL"
    assert (algorithm["reward_scale"], algorithm["gamma"], algorithm["target_update_every"]) == (30, 0.98, 10)
    assert (algorithm["value_particles"], algorithm["kernel_particles"], algorithm["update_ratio"]) == (16, 16, 0.5)
    assert (algorithm["policy"], composed.optimizers.actor.lr) == ("gaussian", 1e-5)
    parts = assemble(composed, Targets(AllowList()))
    parts.env.close()


def test_pixels_get_one_encoder(translated):
    pixels = {"pixels_only": True, "render_kwargs": {"width": 84, "height": 84, "camera_id": 0}}
    training = {
        "domain": "cheetah",
        "task": "run",
        "universe": "dm_control",
        "kwargs": {"pixel_wrapper_kwargs": pixels},
    }
    variant = changed(
        environment_params={"training": training},
        policy_params__config__preprocessors={"pixels": CONVNET},
        Q_params__config__preprocessors=[{"pixels": CONVNET}, None],
    )
    composed = translated(variant)
    wanted = {"observations": "pixels", "size": 84, "camera_id": 0, "max_episode_steps": 1000}
    assert OmegaConf.to_container(composed.environment.env_kwargs) == wanted
    tree = resolve(composed, {"observation": 21168, "observation_shape": [3, 84, 84], "action": 6})
    assert tree["components"]["encoder"]["channels"] == [64, 64, 64]
    assert tree["components"]["encoder"]["input_shape"] == [3, 84, 84]
    assert tree["components"]["actor"]["input_dim"] == 256
    assert tree["components"]["critic"]["input_dim"] == 256 + 6


def test_preprocessors_by_key_are_a_dict_encoder(translated):
    composed = translated(changed(policy_params__config__preprocessors={"pixels": CONVNET, "velocity": None}))
    shapes = {"pixels": [3, 48, 48], "velocity": [9]}
    tree = resolve(composed, {"observation": 6921, "observation_shape": shapes, "action": 2})
    assert tree["components"]["actor"]["input_dim"] == 256 + 9
    assert tree["components"]["encoder"]["encoders"]["velocity"]["input_dim"] == 9
    assert tree["components"]["encoder"]["encoders"]["pixels"]["input_shape"] == [3, 48, 48]


IN_BLOCKS = [
    "+experiment=sac_pendulum",
    "budget=tiny",
    "workflow.class_name=SAC",
    "workflow.config={n_epochs: 20, Q_lr: 1e-3, batch_size: 64, num_warmup_samples: 500}",
    "components.actor={class_name: RealNVPPolicy, config: {hidden_layer_sizes: [32], num_coupling_layers: 3}}",
    "components.critic={class_name: ensemble_feedforward_Q_function, config: {N: 3, hidden_layer_sizes: [32, 16]}}",
]


def test_nodes_stand_beside_the_lab_s_own(tmp_path):
    plain = compose(IN_BLOCKS[:2])
    composed = compose([*IN_BLOCKS, "workflow.config.tau=0.01"])
    assert composed.training.num_eval_episodes == plain.training.num_eval_episodes
    assert (composed.algorithm.policy, composed.algorithm.num_flow_layers, composed.algorithm.tau) == ("flow", 3, 0.01)
    assert (composed.components.critic.num_members, composed.components.critic.hidden_dims) == (3, [32, 16])
    assert composed.optimizers.critic.lr == 1e-3
    parts = assemble(composed, Targets(AllowList()))
    parts.env.close()


@pytest.mark.parametrize(
    ("pool", "wanted"),
    [
        (
            "{class_name: HindsightExperienceReplayPool, config: {max_size: 500, her_strategy: {type: final}}}",
            {"capacity": 500, "relabel": {"strategy": "final", "probability": 0.8}, "batch_size": 256},
        ),
        (
            "{class_name: UnionPool, config: {pools: [{class_name: SimpleReplayPool, config: {max_size: 9}}, "
            "{_target_: rl_lab.buffers.dataset.DatasetBuffer, path: demos}, {_target_: x.Y}]}}",
            {"batch_size": 256, "ratios": {"pool_0": 86 / 256, "pool_1": 85 / 256, "pool_2": 85 / 256}},
        ),
    ],
)
def test_pools_are_buffers(pool, wanted):
    replay = OmegaConf.to_container(compose(["+experiment=sac_pendulum", f"buffers.replay={pool}"]).buffers.replay)
    assert {key: replay[key] for key in wanted} == wanted
    assert "n_step" not in replay


def test_a_union_of_pools_is_told_what_stood_at_its_place():
    pool = "{class_name: SimpleReplayPool, config: {max_size: 2000}}"
    union = f"buffers.replay={{class_name: UnionPool, config: {{pools: [{pool}, {pool}]}}}}"
    said = ["workflow.class_name=SAC", "workflow.config={discount: 0.75, num_warmup_samples: 500, batch_size: 64}"]
    for overrides in ([union, "algorithm.gamma=0.75", "algorithm.random_steps=500"], [union, *said]):
        parts = assemble(compose(["+experiment=sac_pendulum", *overrides]), Targets(AllowList()))
        parts.env.close()
        first, second = parts.config["buffers"]["replay"]["parts"].values()
        assert (first["min_size"], "min_size" in second) == (500, False)  # what is collected goes to the first one
        assert (first["gamma"], second["gamma"], first["storage"]) == (0.75, 0.75, "device")


A_POLICY = "variant.policy_params.config"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"policy": {}}, "unknown key of variant 'policy'; did you mean 'policy_params'? (choices: Q_params, algo"),
        (
            {"algorithm_params__class_name": "PPO"},
            "unknown variant.algorithm_params.class_name 'PPO' (choices: SAC, SQL)",
        ),
        (
            {"policy_params__class_name": "GausianPolicy"},
            "unknown components.actor.class_name 'GausianPolicy'; did you mean 'GaussianPolicy'? (choices: ",
        ),
        (
            {"Q_params__config__hidden_sizes": [8]},
            "unknown key of components.critic.config 'hidden_sizes'; did you mean",
        ),
        ({"Q_params__config": {}}, "components.critic.config.hidden_layer_sizes: missing"),
        (
            {"Q_params__config__hidden_layer_sizes": 8},
            "components.critic.config.hidden_layer_sizes: must be a list, not 8",
        ),
        (
            {"policy_params__config__squash": False},
            "components.actor.config.squash: only True has a counterpart here, not False",
        ),
        (
            {"algorithm_params__config__target_update_interval": 1000},
            "workflow.config.target_update_interval: only 1 has a counterpart here, not 1000",
        ),
        ({"algorithm_params__config__lr": 3e-4}, "unknown key of workflow.config 'lr'"),
        ({"algorithm_params__config__Q_lr": "fast"}, "workflow.config.Q_lr: must be a number, not 'fast'"),
        ({"algorithm_params__config__n_epochs": {"a": 1}}, "workflow.config.n_epochs: must be a number, not {'a': 1}"),
        ({"algorithm_params__config__n_epochs": math.inf}, "workflow.config.n_epochs: must be a number, not inf"),
        (
            {"algorithm_params__config__reward_scale": []},
            "workflow.config.reward_scale: must be a number or a list of one, not []",
        ),
        (
            {"algorithm_params__config__train_every_n_steps": 0},
            "workflow.config.train_every_n_steps: must be a number of at least 1, not 0",
        ),
        (
            {"algorithm_params__config__eval_deterministic": "no"},
            "workflow.config.eval_deterministic: must be true or false, not 'no'",
        ),
        ({"policy_params__config": 3}, "components.actor.config: must be a block, not 3"),
        ({"algorithm_params__class_name": ["SAC"]}, "unknown variant.algorithm_params.class_name \"['SAC']\""),
        ({"policy_params__config__activation": ["relu"]}, "unknown components.actor.config.activation \"['relu']\""),
        ({"run_params__checkpoint_frequency": {}}, "variant.run_params.checkpoint_frequency: must be a number, not {}"),
        ({"sampler_params__config__max_path_length": []}, "variant.sampler_params.config.max_path_length: must be a"),
        (
            {"environment_params": {"training": {"universe": "gym", "domain": ["Hopper"], "task": "v3"}}},
            "variant.environment_params.training.domain: must be a name, not ['Hopper']",
        ),
        (
            {
                "algorithm_params__config__batch_size": "many",
                "replay_pool_params": {"class_name": "UnionPool", "config": {"pools": [{}]}},
            },
            "buffers.replay.config: the batch_size to share out must be a number, not 'many'",
        ),
        ({"replay_pool_params__config__size": 3}, "unknown key of buffers.replay.config 'size'"),
        ({"replay_pool_params": 3}, "variant.replay_pool_params: must be a block, not 3"),
        ({"sampler_params__class_name": "RemoteSampler"}, "unknown variant.sampler_params.class_name 'RemoteSampler'"),
        (
            {"environment_params": {"training": {"universe": "gym", "domain": "Hopper", "task": "v3", "kwarg": {}}}},
            "unknown key of variant.environment_params.training 'kwarg'; did you mean 'kwargs'?",
        ),
        (
            {"environment_params__evaluation__task": "v2"},
            "variant.environment_params.evaluation: must be that of train",
        ),
        (
            {"environment_params": {"training": {"universe": "gym", "domain": "Hopper", "task": "v3", "kwargs": 3}}},
            "variant.environment_params.training.kwargs: must be a block, not 3",
        ),
        (
            {"Q_params__config__preprocessors": [{"pixels": CONVNET}, CONVNET]},
            "components.critic.config.preprocessors: must be those of the observations, and null for the actions",
        ),
        (
            {
                "policy_params__config__preprocessors": {"pixels": CONVNET},
                "Q_params__config__preprocessors": {"pixels": {**CONVNET, "config": {"conv_filters": [8, 8, 8]}}},
            },
            "components.critic.config.preprocessors: must be those of the policy, both read one encoder",
        ),
    ],
)
def test_mistakes_are_told_in_one_line(translated, change, text):
    with pytest.raises(ConfigError) as error:
        translated(changed(**change))
    assert str(error.value).startswith(text), str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "text"),
    [(None, "variant: cannot read"), ("a: [", "variant: '"), ("[1, 2]", "variant: must be a block")],
)
def test_a_file_that_is_no_variant_is_told_in_one_line(tmp_path, content, text):
    path = tmp_path / "variant.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError) as error:
        compose([f"variant={path}"])
    assert str(error.value).startswith(text), str(error.value)
    assert "\n" not in str(error.value)
