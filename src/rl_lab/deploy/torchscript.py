"""TorchScript: needs nothing but torch, also from C++ (libtorch)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch

from rl_lab.deploy.capture import Captured, quiet
from rl_lab.deploy.formats import Runtime, one_by_one
from rl_lab.deploy.ports import Arrays, Port, to_arrays

METADATA = "policy.json"


def write(captured: Captured, path: Path, metadata: Mapping[str, str]) -> None:
    """Write a policy; the metadata are an extra file of the archive."""
    with quiet(), torch.no_grad():
        module = torch.jit.trace(captured.program.module(), captured.function.examples(), check_trace=False)
        frozen = torch.jit.freeze(module.eval(), optimize_numerics=False)  # without the parameters that it never reads
        torch.jit.save(frozen, str(path), _extra_files={METADATA: json.dumps(dict(metadata))})


def load(path: Path, inputs: Sequence[Port], outputs: Sequence[Port]) -> Runtime:
    """Return a policy that torch runs."""
    with quiet():
        module = torch.jit.load(str(path), map_location="cpu")

    def call(arrays: Arrays) -> Arrays:
        with torch.no_grad():
            found = module(*(torch.from_numpy(arrays[port.name]) for port in inputs))
        found = found if isinstance(found, tuple) else (found,)
        return to_arrays({port.name: tensor for port, tensor in zip(outputs, found, strict=True)})

    return partial(one_by_one, call)


def read_metadata(path: Path) -> dict[str, str]:
    """Return the metadata within the file."""
    found = {METADATA: ""}
    with quiet():
        torch.jit.load(str(path), map_location="cpu", _extra_files=found)
    text: str | bytes = found[METADATA]
    return dict(json.loads(text))
