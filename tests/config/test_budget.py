import pytest
from omegaconf import OmegaConf

from rl_lab.config.budget import apply_caps
from rl_lab.config.resolvers import register_resolvers


def capped(tree, caps):
    config = OmegaConf.create(tree | {"budget": {"caps": caps}})
    return OmegaConf.to_container(apply_caps(config), resolve=False)


def test_a_cap_lowers_and_never_raises():
    assert capped({"a": {"b": 10, "c": 1}}, {"a.b": 3, "a.c": 3, "a.d": 3, "x.y": 3})["a"] == {"b": 3, "c": 1}


def test_stars_match_keys_and_indices():
    tree = {
        "phases": [{"hooks": [{"collect": 99}, "update", {"evaluate": {"every_steps": 99}}]}, {"hooks": [{"u": 2}]}]
    }
    caps = {"phases.*.hooks.*.*": 5, "phases.*.hooks.*.evaluate.every_steps": 7}
    expected = [{"hooks": [{"collect": 5}, "update", {"evaluate": {"every_steps": 7}}]}, {"hooks": [{"u": 2}]}]
    assert capped(tree, caps)["phases"] == expected
    assert capped({"a": [9, 9]}, {"a.1": 4, "a.7": 4})["a"] == [9, 4]


def test_only_numbers_are_capped():
    tree = {"a": "text", "b": True, "c": None, "d": "???", "f": "${g}", "g": 9.5}
    result = capped(tree, dict.fromkeys("abcdfg", 0) | {"d.z": 1})
    assert {key: result[key] for key in "abcd"} == {key: tree[key] for key in "abcd"}
    assert (result["f"], result["g"]) == ("${g}", 0)  # f follows g, and g is low enough now
    assert capped({"f": "${g}", "g": 9}, {"f": 3})["f"] == 3


@pytest.mark.parametrize(("steps", "expected"), [(1000, 7), (1, 5)])
def test_what_waits_for_the_environment_is_lowered_when_it_is_known(steps, expected):
    """Directly, or because it follows from what waits; what is not capped stays as it is computed."""
    register_resolvers()
    tree = {"a": "${mul:5,${_dims.steps}}", "b": "${a}", "c": "${add:${a},1}", "d": "${_dims.steps}"}
    tree = capped(tree, {"a": 7, "b": 7, "c": 100})
    found = OmegaConf.to_container(OmegaConf.create(tree | {"_dims": {"steps": steps}}), resolve=True)
    assert [found[key] for key in "abcd"] == [expected, expected, expected + 1, steps]


def test_tiny_makes_an_experiment_short(composed):
    config = composed(
        "budget=tiny", "environment.num_envs=64", "training.total_timesteps=1e9", "training.eval_frequency=1e6"
    )
    assert config.environment.num_envs == 4
    assert config.training.total_timesteps == 128
    assert config.training.phases[0].duration_steps == 128
    assert config.training.eval_frequency == 128
    assert config.training.num_eval_episodes == 2
    assert composed("budget=full").training.num_eval_episodes == 10
