import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from rl_lab.deploy import export as exporting
from rl_lab.deploy import onnx_file, torchscript
from rl_lab.deploy.parity import Parity
from rl_lab.environments.cartpole import CartPole

ABOUT = {"joint_names": ["slide"], "gains": {"slide": [20.0, 0.5]}, "control_rate": 50.0}


@pytest.fixture
def run(train):
    assert train("training.total_timesteps=64").exit_code == 0
    (path,) = Path("experiments").glob("*")
    return path


@pytest.fixture
def exported(run, lab, monkeypatch):
    monkeypatch.setattr(CartPole, "describe", lambda self: ABOUT)
    result = lab("export", "--format", "torchscript", "--format", "onnx", "--calls", 40)
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    return run / "export"


def test_a_policy_with_all_about_it(exported, run, lab, monkeypatch, fails):
    about = json.loads((exported / "policy.json").read_text())
    assert {each.name for each in exported.iterdir()} == {"policy.pt", "policy.onnx", "policy.json", "golden.npz"}
    manifest = json.loads((run / "manifest.json").read_text())
    assert (about["schema_version"], about["run"], about["workflow"]) == (1, manifest["id"], "TinyWorkflow")
    assert (about["config_hash"], about["env_steps"]) == (manifest["config_hash"], 64)
    assert about["environment"] == {"id": "tensor/CartPole", "steps_per_second": None, "action_repeat": 1, **ABOUT}
    observation = {"name": "observation", "kind": "observation", "shape": [1, 4]}
    assert about["inputs"] == [{**observation, "dtype": "float32", "holds": "float32"}]
    action = {"name": "action", "kind": "action", "shape": [1], "dtype": "int32", "holds": "int64"}
    assert about["outputs"] == [{**action, "low": 0, "high": 1}]
    assert all(each["calls"] == 40 and each["max_difference"] < 1e-5 for each in about["files"].values())
    props = {each.key: json.loads(each.value) for each in onnx.load(exported / "policy.onnx").metadata_props}
    assert props == {key: value for key, value in about.items() if key not in ("files", "sha256")}
    assert {each.version for each in onnx.load(exported / "policy.onnx").opset_import if not each.domain} == {18}
    weights = onnx_weights(exported / "policy.onnx")
    golden = np.load(exported / "golden.npz", allow_pickle=False)
    scores = golden["inputs/observation"].astype(np.float64) @ weights["weight"].T + weights["bias"]
    assert scores.argmax(-1).tolist() == golden["outputs/action"].tolist()
    assert lab("export", "--check", exported).stdout.count("as exported") == 2
    check_refusals(exported, lab, fails)


def onnx_weights(path):
    found = {each.name: onnx.numpy_helper.to_array(each) for each in onnx.load(path).graph.initializer}
    return {name.rpartition(".")[2]: array.astype(np.float64) for name, array in found.items()}


def check_refusals(exported, lab, fails):
    """Whatever was changed since is noticed."""
    for name in ("policy.onnx", "golden.npz"):
        whole = (exported / name).read_bytes()
        (exported / name).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        line = f"error: {exported / name} is not as it was exported: its hash differs"
        assert fails(lab("export", "--check", exported / "policy.onnx"), 1) == line
        (exported / name).write_bytes(whole)
    (exported / "other.onnx").write_bytes(b"")
    assert "is none of the files of" in fails(lab("export", "--check", exported / "other.onnx"), 1)
    text = (exported / "policy.json").read_text()
    (exported / "policy.json").write_text(text.replace("20.0", "25.0"))
    assert "policy.json is not as it was exported" in fails(lab("export", "--check", exported), 1)
    (exported / "policy.json").write_text(text[:50])
    assert "policy.json is damaged" in fails(lab("export", "--check", exported), 1)
    (exported / "policy.json").unlink()
    assert "not an export of the lab" in fails(lab("export", "--check", exported), 1)


def test_a_file_that_differs_is_not_published(run, lab, fails, monkeypatch):
    assert lab("export", run, "--format", "torchscript", "--calls", 8).exit_code == 0
    before = {each.name: each.read_bytes() for each in (run / "export").iterdir()}
    monkeypatch.setattr(exporting, "compare", lambda *_: Parity(2e-5, 0))
    line = fails(lab("export", run, "--format", "torchscript", "--calls", 8), 1)
    assert line.startswith("error: --format torchscript: the file differs from the policy by 2e-05 (allowed: 1e-05)")
    assert {each.name: each.read_bytes() for each in (run / "export").iterdir()} == before
    fails(lab("export", run, "--format", "torchscript", "--calls", 8, "--out", "new"), 1)
    assert not Path("new").exists()
    assert not [each for folder in (run, Path()) for each in folder.glob(".tmp-*")]


def test_a_file_of_another_policy_is_noticed(run, lab, fails, monkeypatch):
    monkeypatch.setattr(exporting, "embedded", lambda metadata: {"run": '"another"'})
    assert lab("export", run, "--format", "torchscript", "--calls", 8).exit_code == 0
    assert "policy.pt says otherwise than policy.json about" in fails(lab("export", "--check", run / "export"), 1)
    assert torchscript.read_metadata(run / "export" / "policy.pt") == {"run": '"another"'}
    assert onnx_file.OPSET >= 17


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["--format", "onyx"], 2, "unknown --format 'onyx'; did you mean 'onnx'? (choices: mnn, onnx, torchscript)"),
        (["--noise", "no"], 2, "unknown --noise 'no'"),
        (["--out", "conf"], 2, "--out conf: neither empty nor an earlier export"),
        (["--checkpoint", "000099"], 1, "no checkpoint at"),
        (["--check", "nowhere"], 1, "no policy.json in"),
    ],
)
def test_bad_input_is_one_line(run, lab, fails, arguments, code, line):
    assert line in fails(lab("export", *arguments), code)
    assert not (run / "export").exists()
