"""The consumers of exported policies do what the policy does, without the lab."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rl_lab.deploy.capture import capture
from rl_lab.deploy.formats import FILES, load_format
from rl_lab.deploy.function import PolicyFunction
from rl_lab.deploy.package import GOLDEN, embedded, file_hash, write_golden, write_metadata
from rl_lab.deploy.parity import record
from tests.deploy.building import build

EXAMPLES = Path(__file__).parents[1] / "examples" / "deploy"
HEADER = "onnxruntime_cxx_api.h"
PLACES = [os.environ.get("ONNXRUNTIME_INCLUDE", ""), "/usr/include/onnxruntime", "/usr/local/include/onnxruntime"]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A recurrent policy, and episodes that it played."""
    folder = tmp_path_factory.mktemp("export")
    workflow, spec, env = build("ppo_memory_lstm")
    policy = capture(PolicyFunction(workflow, spec))
    calls = record(policy.function, env, 40)
    write_golden(calls, folder / GOLDEN)
    ports = {"inputs": policy.function.inputs, "outputs": policy.function.outputs}
    about = {key: [port.to_json() for port in value] for key, value in ports.items()}
    about |= {"schema_version": 1, "workflow": "PPO", "tolerance": 1e-5, "environment": {"id": spec.id}}
    about["golden"] = {"file": GOLDEN, "sha256": file_hash(folder / GOLDEN)}
    load_format("onnx").write(policy, folder / FILES["onnx"], embedded(about))
    about["files"] = {"onnx": {"file": FILES["onnx"], "sha256": file_hash(folder / FILES["onnx"])}}
    write_metadata(about, folder)
    return folder, calls


def test_python_consumer(exported):
    folder, calls = exported
    played = {"first": calls.inputs["is_first"].tolist(), "obs": calls.inputs["observation"].tolist()}
    (folder / "played.json").write_text(json.dumps(played))
    program = f"""
import json, sys
sys.path.insert(0, {str(EXAMPLES)!r})
import policy
policy.main({str(folder)!r})
mine, played, found = policy.Policy({str(folder)!r}), json.load(open({str(folder / "played.json")!r})), []
for first, obs in zip(played["first"], played["obs"]):
    if first[0]:
        mine.reset()
    found.append(mine.act({{"observation": obs}})["action"].tolist())
assert not {{"torch", "rl_lab"}} & {{*sys.modules}}
print(json.dumps(found))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    first, second, found = done.stdout.splitlines()
    assert first.startswith("PPO for ")
    assert second.startswith(
        "reads observation, state.0, state.1, is_first; writes action, next_state.0, next_state.1; "
    )
    np.testing.assert_array_equal(json.loads(found), calls.outputs["action"][:, 0])
    (folder / "other").mkdir()
    for name in ("policy.json", GOLDEN):
        shutil.copyfile(folder / name, folder / "other" / name)
    (folder / "other" / "policy.onnx").write_bytes(b"another")
    done = subprocess.run(
        [sys.executable, EXAMPLES / "policy.py", folder / "other"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "is not the file that policy.json tells about" in done.stderr


def test_cpp_consumer(exported, tmp_path):
    include = next((place for place in PLACES if place and Path(place, HEADER).is_file()), None)
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if include is None or compiler is None:
        pytest.skip(f"needs a C++ compiler and {HEADER} (ONNXRUNTIME_INCLUDE says where)")
    import onnxruntime

    folder, calls = exported
    (library,) = Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*")
    for name in ("libonnxruntime.so", "libonnxruntime.so.1", library.name):
        (tmp_path / name).symlink_to(library)
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", f"-isystem{include}", f"-L{tmp_path}"]
    command = [compiler, *flags, EXAMPLES / "policy.cpp", "-lonnxruntime", f"-Wl,-rpath,{tmp_path}"]
    subprocess.run([*command, "-o", tmp_path / "policy"], check=True)
    lines = []
    for first, obs in zip(calls.inputs["is_first"], calls.inputs["observation"], strict=True):
        lines += ["reset"] if first[0] else []
        lines.append(" ".join(f"{number:.9g}" for number in obs.flat))
    done = subprocess.run(
        [tmp_path / "policy", folder / "policy.onnx"],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=True,
    )
    found = [[float(number) for number in line.split()] for line in done.stdout.splitlines()]
    np.testing.assert_array_equal(found, calls.outputs["action"].reshape(len(found), -1))
    assert '"id"' in done.stderr
