import pytest
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from rl_lab.config.compose import compose, resolve
from rl_lab.config.targets import Pending
from rl_lab.config.trees import group_files, group_names
from rl_lab.core import ConfigError, UsageError


def test_numbers_are_numbers_in_yaml_and_overrides(composed):
    config = composed("algorithm.width=1e2", "optimizers.policy.lr=3e-4", "training.total_timesteps=1_000")
    assert config.algorithm.width == 100.0
    assert config.optimizers.policy.lr == 3e-4
    assert config.training.total_timesteps == 1000
    assert composed().optimizers.policy.lr == 3e-4


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("${add:1,2,3}", 6),
        ("${sub:5,2}", 3),
        ("${mul:2,3,4}", 24),
        ("${div:8,2}", 4),
        ("${div:9,2}", 4.5),
        ("${max:1,7}", 7),
        ("${min:1,7}", 1),
        ("${len:[1,2,3]}", 3),
        ("'${add:${training.total_timesteps},1}'", 257),
    ],
)
def test_resolvers(composed, expression, expected):
    value = resolve(composed(f"algorithm.width={expression}"))["algorithm"]["width"]
    assert value == expected
    assert type(value) is type(expected)


def test_dims_wait_for_the_environment(composed):
    config = composed("components.actor.out_features='${add:${_dims.action},1}'")
    actor = resolve(config)["components"]["actor"]
    assert isinstance(actor["in_features"], Pending)
    assert isinstance(actor["out_features"], Pending)
    actor = resolve(config, {"observation": 4, "action": 2})["components"]["actor"]
    assert (actor["in_features"], actor["out_features"]) == (4, 3)
    with pytest.raises(ConfigError, match=r"^components.actor.in_features: Interpolation key '_dims.observation'"):
        resolve(config, {"action": 2})


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["+experiment=tny"], "unknown experiment 'tny'; did you mean 'tiny'?"),
        (["+experiment=tiny", "budget=tny"], "unknown budget 'tny'; did you mean 'tiny'? (choices: full, tiny)"),
        (["budget=tiny"], "experiment.name: missing; choose an experiment with +experiment=NAME (choices: "),
        (["+experiment=tiny", "~training.nothing"], "Could not delete from config. 'training.nothing' does not exist."),
        (["+experiment=tiny", "training.phases.7.name=x"], "Error merging override"),
    ],
)
def test_what_does_not_compose_is_one_line(config_dir, overrides, text):
    with pytest.raises(ConfigError) as error:
        compose(overrides, config_dir)
    assert str(error.value).startswith(text)
    assert "\n" not in str(error.value)
    assert not GlobalHydra.instance().is_initialized()


def test_a_broken_yaml_file_is_one_line(config_dir):
    (config_dir / "experiment" / "broken.yaml").write_text("a: [1,\nb: 2")
    with pytest.raises(ConfigError) as error:
        compose(["+experiment=broken"], config_dir)
    assert "\n" not in str(error.value)
    assert "broken" in str(error.value)


@pytest.mark.parametrize(
    ("files", "circle"),
    [
        ({"a": "[b, _self_]", "b": "[a, _self_]"}, ["a", "b", "a"]),
        ({"a": "[_self_, a]"}, ["a", "a"]),
        ({"a": "[b]", "b": "[tiny, /experiment/c@_global_]", "c": "[b]"}, ["b", "c", "b"]),
        ({"a": "[{optional deep: b}]", "deep/b": "[/experiment/a.yaml]"}, ["a", "deep/b", "a"]),
    ],
)
def test_defaults_in_a_circle_are_one_line_that_names_the_files(config_dir, files, circle):
    folder = config_dir / "experiment"
    for name, defaults in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / f"{name}.yaml").write_text(f"# @package _global_\ndefaults: {defaults}\n")
    with pytest.raises(ConfigError) as error:
        compose(["+experiment=a", "experiment.seed=1"], config_dir)
    expected = " -> ".join(str((folder / f"{name}.yaml").resolve()) for name in circle)
    assert str(error.value) == f"defaults lead in a circle: {expected}"


def test_a_group_may_be_chosen_without_plus(config_dir):
    assert compose(["experiment=tiny", "logging=quiet"], config_dir).logging.tensorboard is False
    assert compose(["+experiment=tiny", "training=on_policy"], config_dir).training.phases[0].buffer == "rollout"


def test_values_that_cannot_be_resolved_name_their_key(composed):
    with pytest.raises(ConfigError, match=r"^algorithm.width: Interpolation key 'nope' not found$"):
        resolve(composed("algorithm.width=${nope}"))
    with pytest.raises(ConfigError, match=r"^algorithm.width: missing"):
        resolve(composed("algorithm.width='???'"))


def test_user_trees_come_first(config_dir):
    assert "tiny" in group_files("experiment", config_dir)
    assert group_names([config_dir]) == ["experiment"]
    (config_dir / "budget").mkdir()
    (config_dir / "budget" / "mine.yaml").write_text("caps: {training.total_timesteps: 7}\n")
    assert compose(["+experiment=tiny", "budget=mine"], config_dir).training.total_timesteps == 7
    with pytest.raises(UsageError, match="--config-dir /no/such: no such directory"):
        compose(["+experiment=tiny"], "/no/such")


def test_a_tree_may_have_any_name(config_dir):
    odd = config_dir.rename(config_dir.parent / "it's, my=[conf] dir")
    assert compose(["+experiment=tiny"], odd).experiment.name == "tiny"


def test_the_root_follows_the_environment_variable(composed, monkeypatch):
    monkeypatch.setenv("LAB_EXPERIMENTS", "/somewhere")
    assert composed().experiment.root == "/somewhere"
    monkeypatch.delenv("LAB_EXPERIMENTS")
    assert OmegaConf.to_container(composed(), resolve=False)["experiment"]["root"].startswith("${oc.env")
    assert composed().experiment.root == "experiments"
