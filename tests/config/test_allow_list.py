import importlib
import os
import sys

import pytest
import torch

from rl_lab.config.allow_list import AllowList, load_plugins
from rl_lab.config.options_page import packaged_targets
from rl_lab.core import ConfigError
from tests.config.tiny import PLUGIN

ALLOW = AllowList()
TRICKY = ("this:1", "this: x", " this:x", "this :x", "os.path:join", "this::x", "this:", "this:/x", "this:x:y")
TRICKY += ("this:\nx", "\nthis:x", "this\n:x", "\uff54\uff48\uff49\uff53:x", "this:\u0663", "cuda:0x", "cuda:\u0663")


@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "builtins.eval",
        "torch.load",
        "torch.hub.load",
        "torch.optimal.load",
        "subprocess.run",
        "rl_lab.config.build.build",
        "rl_lab.tracking.atomic.replace_file",
        "rl_lab",
        "torch",
        "",
        "os.system()",
        "rl_lab.workflows.ppo.PPO; import os",
        "../etc/passwd",
        3,
        None,
    ],
)
def test_names_outside_the_allowed_packages_are_refused(name):
    with pytest.raises(ConfigError, match=r"^workflow\._target_: "):
        ALLOW.load("workflow._target_", name)


@pytest.mark.parametrize(
    "name",
    [
        "rl_lab.environments.cartpole.math.exp",  # through a module into another package
        "rl_lab.environments.cartpole.torch.load",
        "rl_lab.environments.cartpole.Tensor",  # imported there, but torch's
        "rl_lab.environments.cartpole.GRAVITY",  # neither class nor function
        "torch.nn.functional.torch.load",
        "torch.nn.modules.module.torch.hub",
        "torch.nn.Module.load_state_dict",
        "torch.nn.modules.module.itertools.chain",
    ],
)
def test_an_allowed_module_is_no_door_to_another_package(name):
    with pytest.raises(ConfigError):
        ALLOW.load("x", name)


def test_a_refused_name_imports_nothing(tmp_path, monkeypatch):
    (tmp_path / "hostile_module_of_test.py").write_text("raise SystemExit('executed')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="not allowed"):
        ALLOW.load("x", "hostile_module_of_test.run")
    with pytest.raises(ConfigError, match="not allowed"):
        ALLOW.check_tree({"env": {"name": "hostile_module_of_test:Env-v0"}})
    assert "hostile_module_of_test" not in sys.modules


def test_classes_and_functions_of_allowed_packages_are_found():
    assert ALLOW.load("x", "torch.nn.Linear") is torch.nn.Linear
    assert ALLOW.load("x", "torch.optim.Adam") is torch.optim.Adam
    assert ALLOW.load("x", "torch.nn.functional.relu") is torch.nn.functional.relu


@pytest.mark.parametrize(
    "name",
    [
        "rl_lab.environments.hosting.foreign.load_package",
        "rl_lab.environments.hosting.recipe.load_factory",
        "rl_lab.environments.hosting.process_pool.ProcessPool",
        "rl_lab.environments.checking.check.check_environment",
        "rl_lab.environments.exact.state.restore_native",
        "rl_lab.environments.racing.env.FastCarRacing",
        "rl_lab.buffers.datasets.lerobot_writer.LeRobotWriter",
        "rl_lab.buffers.datasets.lab.LabWriter",
        "rl_lab.buffers.datasets.files.anything",
        "rl_lab.buffers.storage.row_store.RowStore",
        "rl_lab.buffers.storage.chances.Priority",
    ],
)
def test_what_works_for_the_labs_classes_is_refused_before_it_is_imported(name, monkeypatch):
    monkeypatch.setattr(importlib, "import_module", lambda module: pytest.fail(f"imported {module}"))
    reference = ":".join(name.rsplit(".", 1))
    for tree in ({"a": {"_target_": name}}, {"a": [reference]}):
        with pytest.raises(ConfigError, match=r"^a\.\w+: .* is not allowed: it works for the lab's own classes"):
            ALLOW.check_tree(tree)
    with pytest.raises(ConfigError, match="is not allowed"):
        ALLOW.load("a", name)


@pytest.mark.parametrize(
    "name",
    [
        "rl_lab.environments.gymnasium.find_recipe",  # imported there from a package that is refused
        "rl_lab.environments.gymnasium.ProcessPool",
        "rl_lab.environments.minigrid.load_package",
        "rl_lab.environments.minigrid.make_env",  # a family is chosen by the environment's name
        "rl_lab.environments.dm_control.import_suite",
        "rl_lab.environments.wrappers.wrapping.build_wrappers",
        "rl_lab.environments.wrappers.video._Film",
        "rl_lab.buffers.dataset.open_dataset",
        "rl_lab.buffers.prioritized.Priority",
        "rl_lab.components.mlp.activation_module",
        "rl_lab.workflows.ppo.check_choice",
    ],
)
def test_in_the_labs_rooms_only_classes_can_be_named(name):
    with pytest.raises(ConfigError, match="is not a class or function that a config may name"):
        ALLOW.load("x", name)
    with pytest.raises(ConfigError, match="is not a class or function that a config may name"):
        ALLOW.check_tree({"name": ":".join(name.rsplit(".", 1))})


@pytest.mark.parametrize(
    "name",
    [
        "rl_lab.environments.wrappers.base.TimeLimit",
        "rl_lab.environments.wrappers.pixels.Resize",
        "rl_lab.environments.gymnasium.GymnasiumEnv",
        "rl_lab.buffers.dataset.DatasetBuffer",
        "rl_lab.ops.goal_rewards.SparseDistance",
        "rl_lab.ops.goal_rewards.distance",  # mathematics may be functions
    ],
)
def test_classes_of_the_labs_rooms_and_its_mathematics_can(name):
    assert ALLOW.load("x", name).__name__ == name.rpartition(".")[2]
    ALLOW.check_tree({"a": {"_target_": name}, "b": ":".join(name.rsplit(".", 1))})


def test_every_target_of_the_packaged_configs_is_allowed():
    assert len([ALLOW.load("configs", name) for name in packaged_targets()]) > 20


def test_misspelt_names_get_the_nearest_choice():
    with pytest.raises(ConfigError, match="did you mean 'CartPole'"):
        ALLOW.load("x", "rl_lab.environments.cartpole.CartPol")
    with pytest.raises(ConfigError, match="did you mean 'cartpole'"):
        ALLOW.load("x", "rl_lab.environments.cartpol.CartPole")


@pytest.mark.parametrize(
    "tree",
    [
        {"a": [{"b": {"_target_": "os.system"}}]},
        {"a": {"_args_": [1]}},
        {"a": {"_recursive_": False}},
        {"a": {"_convert_": "all"}},
        {"reward": "os:system"},
        {"reward": ["os.path:join"]},
        {"name": "os:Env-v0"},
        {"name": "this:namespace/Env-v0"},
        {"name": "os.path:Env-v0@x y"},
        *({"name": name} for name in TRICKY),
        {"wrappers": [{"noise": ["this:1"]}]},
        {"_target_": {"nested": 1}},
    ],
)
def test_the_whole_tree_is_checked(tree):
    with pytest.raises(ConfigError):
        ALLOW.check_tree(tree, "environment")


def test_ordinary_strings_are_left_alone():
    ALLOW.check_tree({"device": "cuda:0", "url": "http://x:80/", "note": "at 3: b", "name": "ALE/Pong-v5", "n": None})


def test_plugins_are_allowed_by_path_or_name(tmp_path, monkeypatch):
    allow = AllowList(load_plugins([PLUGIN]))
    assert allow.load("x", "tiny_plugin.double")(2) == 4
    assert allow.resolve_reference("x", "tiny_plugin:double")(3) == 6
    assert allow.resolve_reference("x", "plain text") == "plain text"
    for name in ("tiny_plugin.smuggled", "tiny_plugin.foreign.join", "tiny_plugin.EXECUTED"):
        with pytest.raises(ConfigError):
            allow.load("x", name)
    (tmp_path / "pack_of_test").mkdir()
    (tmp_path / "pack_of_test" / "__init__.py").write_text("def two() -> int:\n    return 2\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("LAB_PLUGINS", os.pathsep.join([str(tmp_path / "pack_of_test"), "some.package"]))
    names = load_plugins()
    assert names == ["pack_of_test", "some.package"]
    assert AllowList(names).load("x", "pack_of_test.two")() == 2


@pytest.mark.parametrize("entry", ["missing.py", "not a name", "/no/such/dir"])
def test_a_plugin_that_is_nothing_is_refused(entry):
    with pytest.raises(ConfigError, match="--plugin"):
        load_plugins([entry])


def test_a_missing_package_of_a_plugin_is_named(tmp_path, monkeypatch):
    (tmp_path / "needy_of_test.py").write_text("import not_installed_of_test\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    allow = AllowList(load_plugins([str(tmp_path / "needy_of_test.py")]))
    with pytest.raises(ConfigError, match="needs the package 'not_installed_of_test'"):
        allow.load("x", "needy_of_test.thing")
