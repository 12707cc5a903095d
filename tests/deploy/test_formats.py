"""Every workflow's policy leaves the lab, and the file computes what the policy computes."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import yaml
from torch.nn import functional

import rl_lab
from rl_lab.config.compose import compose
from rl_lab.core import Box, ConfigError, EnvSpec, UsageError, Workflow
from rl_lab.deploy.capture import capture
from rl_lab.deploy.formats import FILES, installed_formats, load_format, one_by_one
from rl_lab.deploy.function import PolicyFunction
from rl_lab.deploy.parity import Calls, compare
from rl_lab.workflows.planet import PlaNet
from tests.deploy.building import EVERY, LONG, captured, moved_by, parity


@pytest.mark.parametrize("experiment", EVERY)
def test_torchscript_of_every_workflow(experiment, tmp_path):
    policy, env = captured(experiment)
    assert " ".join(port.name for port in policy.function.inputs) == EVERY[experiment]
    found, calls = parity(policy, env, tmp_path / "policy.pt", load_format("torchscript"), count=12)
    assert found.max_difference < 1e-5
    assert found.unstable == 0
    assert any(len(np.unique(answers)) > 1 for answers in calls.outputs.values())  # not the same to everything


class Odd(Workflow):
    """Has what MNN does not know: Mish, the attention of masked rows, parts of length 0."""

    def initialize(self, context):
        raise AssertionError

    def initial_carry(self, num_envs):
        return {"sum": torch.zeros(num_envs, 4), "count": torch.zeros(num_envs, dtype=torch.int64)}

    def act(self, obs, carry, *, is_first, explore, step):
        total = torch.where(is_first[:, None], 0.0, carry["sum"]) + obs
        count = carry["count"].masked_fill(is_first, 0) + 1
        rows = functional.mish(total)[:, None] * torch.arange(1.0, 4.0)[:, None]  # [N, 3, 4]
        mask = (torch.arange(3) < count[:, None])[:, None]
        heads, mask = rows[:, None], mask[:, None]
        seen = functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask)[:, 0]
        some, none = seen.sum(1).split((4, 0), -1)
        action = torch.cat([some, none], -1) + torch.rand(len(obs), 4)
        return action, {}, {"sum": total, "count": count}


def test_all_formats(tmp_path):
    spec = EnvSpec("odd", Box((4,)), Box((4,), low=-1.0, high=1.0))
    policy = capture(PolicyFunction(Odd(), spec))
    assert [port.name for port in policy.function.inputs] == [
        "observation",
        "state.sum",
        "state.count",
        "is_first",
        "noise.0",
    ]
    rng = np.random.default_rng(0)
    inputs = {p.name: rng.random((8, *p.shape)).round(2 - 2 * (p.kind == "is_first")) for p in policy.function.inputs}
    inputs = {name: array.astype(np.float32) for name, array in inputs.items()}
    inputs["state.count"] = np.arange(8, dtype=np.float32)[:, None]
    calls = Calls(inputs, one_by_one(policy.function.call, inputs))
    for name in FILES:
        load_format(name).write(policy, tmp_path / FILES[name], {"run": '"X"'})
        run = load_format(name).load(tmp_path / FILES[name], policy.function.inputs, policy.function.outputs)
        assert compare(policy.function, calls, run(inputs)).max_difference < 1e-5, name
    kinds = {node.op_type for node in onnx.load(tmp_path / "policy.onnx").graph.node}
    assert not kinds & {"IsNaN", "Mish", "Split"}
    found = [load_format(name).read_metadata(tmp_path / file) for name, file in FILES.items()]
    assert found == [{"run": '"X"'}, {"run": '"X"'}, None]


def test_no_workflow_is_forgotten():
    """Each packaged one has an experiment here, but for what is refused below."""
    configs = Path(rl_lab.__file__).parent / "configs"
    packaged = {yaml.safe_load(path.read_text())["_target_"] for path in (configs / "workflow").glob("*.yaml")}
    here = {compose([f"+experiment={name}"])["workflow"]["_target_"] for name in (*EVERY, *LONG)}
    assert packaged - here == {"rl_lab.workflows.planet.PlaNet"}


@pytest.mark.learning
@pytest.mark.parametrize("experiment", [*EVERY, *LONG])
def test_all_formats_of_every_workflow_on_a_thousand_calls(experiment, tmp_path):
    policy, env = captured(experiment, scale=moved_by(experiment))
    for name in installed_formats():
        found, _ = parity(policy, env, tmp_path / FILES[name], load_format(name), count=1000)
        assert found.is_good, (name, found)
    assert installed_formats() == list(FILES)


def test_a_planner_is_refused():
    with pytest.raises(ConfigError, match="PlaNet has no policy to export"):
        PlaNet().decide({}, None, torch.ones(1))


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    import sys

    monkeypatch.delitem(sys.modules, "rl_lab.deploy.onnx_file", raising=False)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UsageError, match=r"onnxruntime is not installed: pip install 'rl-lab\[export\]'"):
        load_format("onnx")
    monkeypatch.setattr("rl_lab.deploy.mnn_file.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"MNN is not installed: pip install 'rl-lab\[mnn\]'"):
        load_format("mnn").load(tmp_path / "x.mnn", [], [])({})
