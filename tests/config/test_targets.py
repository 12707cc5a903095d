import functools

import pytest
import torch

from rl_lab.config.signatures import meanings, signature_of
from rl_lab.config.targets import Pending
from rl_lab.core import ConfigError

LINEAR = {"_target_": "torch.nn.Linear", "in_features": 4, "out_features": 2}


def test_a_node_is_checked_and_built(targets):
    node = targets.check("net", {**LINEAR, "in_features": 4.0})
    layer = targets.instantiate("net", node)
    assert isinstance(node["in_features"], int)
    assert (layer.in_features, layer.out_features) == (4, 2)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"in_featurs": 1}, "net: unknown argument of Linear 'in_featurs'; did you mean 'in_features'?"),
        ({"in_features": "x"}, "net.in_features: must be a valid integer, not 'x'"),
        ({"out_features": None}, "net.out_features: must be a valid integer"),
        ({"_partial_": "yes"}, "net._partial_: must be true or false"),
    ],
)
def test_wrong_arguments_are_named(targets, change, text):
    with pytest.raises(ConfigError) as error:
        targets.check("net", LINEAR | change)
    assert str(error.value).startswith(text)


def test_missing_arguments_are_named_unless_the_lab_gives_them(targets):
    node = {"_target_": "torch.nn.Linear", "in_features": 4}
    with pytest.raises(ConfigError, match=r"^net\.out_features: missing$"):
        targets.check("net", node)
    assert targets.check("net", node, supplied=("out_features",)) == node
    with pytest.raises(ConfigError, match="missing _target_"):
        targets.check("net", {"in_features": 4})


def test_partial_waits_for_the_rest(targets):
    node = {"_target_": "torch.optim.SGD", "_partial_": True, "lr": 0.5}
    factory = targets.instantiate("opt", targets.check("opt", node))
    assert isinstance(factory, functools.partial)
    optimizer = factory([torch.nn.Parameter(torch.zeros(1))])
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_nested_targets_are_checked_and_built(targets):
    node = {"_target_": "tiny_plugin.Wrapper", "inner": LINEAR, "parts": [LINEAR, LINEAR]}
    module = targets.instantiate("net", targets.check("net", node))
    assert isinstance(module.inner, torch.nn.Linear)
    assert len(module.parts) == 2
    with pytest.raises(ConfigError, match=r"^net\.parts\.1: unknown argument"):
        targets.check("net", node | {"parts": [LINEAR, LINEAR | {"x": 1}]})
    with pytest.raises(ConfigError, match=r"^net\.inner\._target_"):
        targets.check("net", node | {"inner": {"_target_": "os.system", "command": "ls"}})


def test_a_dataclass_argument_is_a_block(targets):
    node = {"_target_": "tiny_plugin.TinyWorkflow", "clip": {"range": 1, "kind": "soft"}}
    workflow = targets.instantiate("workflow", targets.check("workflow", node))
    assert (workflow.clip.range, workflow.clip.kind) == (1.0, "soft")
    for clip, text in (
        ({"rang": 1}, "did you mean 'range'"),
        ({"kind": "x"}, "'hard' or 'soft'"),
        (3, "must be a block"),
    ):
        with pytest.raises(ConfigError, match=text):
            targets.check("workflow", node | {"clip": clip})


def test_nothing_is_no_object(targets):
    """What must be a network or a block cannot be null; a buffer may have no spec, and so may have None."""
    head = {"_target_": "rl_lab.components.latent_model.LatentModel", "encoder": None, "reward": None}
    for path, node, text in (
        ("model", head, r"^model\.encoder: must be a LatentEncoder, not None$"),
        (
            "workflow",
            {"_target_": "tiny_plugin.TinyWorkflow", "clip": None},
            r"^workflow\.clip: must be a Clip, not None$",
        ),
    ):
        with pytest.raises(ConfigError, match=text):
            targets.check(path, node)
    rollout = {"_target_": "rl_lab.buffers.rollout.RolloutBuffer", "spec": None}
    assert targets.check("buffer", rollout) == rollout


def test_functions_are_named_as_module_function(targets):
    node = {"_target_": "tiny_plugin.TinyWorkflow", "score": "tiny_plugin:double", "mode": "fast"}
    assert targets.instantiate("workflow", targets.check("workflow", node)).score(4) == 8


def test_ranges_of_annotated_arguments_hold(targets):
    with pytest.raises(ConfigError, match=r"^workflow\.gamma: must be less than 1, not 1.5$"):
        targets.check("workflow", {"_target_": "tiny_plugin.TinyWorkflow", "gamma": 1.5})


def test_pending_values_are_not_checked_yet(targets):
    node = targets.check("net", LINEAR | {"in_features": Pending("${_dims.observation}")})
    assert node["in_features"] == "${_dims.observation}"


def test_a_base_class_is_demanded(targets):
    with pytest.raises(ConfigError, match=r"net\._target_: 'torch.nn.Linear' is not a subclass of Optimizer"):
        targets.load("net", LINEAR, torch.optim.Optimizer)


def test_supplied_arguments_reach_only_those_who_take_them(targets):
    layer = targets.instantiate("net", LINEAR, device=torch.device("cpu"), num_envs=3)
    assert layer.weight.device.type == "cpu"


def test_signatures_and_their_documentation(targets):
    workflow = targets.load("workflow", {"_target_": "tiny_plugin.TinyWorkflow"})
    assert meanings(workflow) == {
        "gamma": "Discount of the return, per env step.",
        "width": "Units of the hidden layer.",
    }
    assert list(signature_of(workflow).arguments)[:2] == ["gamma", "width"]
    assert not signature_of(torch.nn.Linear).takes_any
    assert signature_of(lambda **options: options).takes_any
