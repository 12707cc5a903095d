import json
import os
import platform
import socket

import torch

from rl_lab.tracking.manifest import build_manifest, versions


def test_manifest(run):
    fields = build_manifest(seed=3, device="cpu", exact_resume=True, argv=["lab", "train"], parent="p")
    run.write_manifest(fields)
    manifest = run.read_manifest()
    assert manifest["id"] == run.id
    expected = {"seed": 3, "device": "cpu", "exact_resume": True, "argv": ["lab", "train"], "parent": "p"}
    expected |= {"host": socket.gethostname(), "threads": torch.get_num_threads(), "cwd": os.getcwd()}
    assert {key: manifest[key] for key in expected} == expected
    assert manifest["versions"]["python"] == platform.python_version()
    assert json.dumps(fields)


def test_versions_name_what_is_installed():
    found = versions()
    assert found["torch"].startswith(str(torch.__version__).split("+")[0])
    assert "rl_lab" in found
