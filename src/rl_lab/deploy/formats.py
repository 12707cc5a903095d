"""The formats there are, and what runs a policy in a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol, cast

import numpy as np

from rl_lab.deploy.capture import Captured
from rl_lab.deploy.ports import Arrays, Port

Runtime = Callable[[Arrays], Arrays]  # inputs of many calls by name, [count, 1, ...] each -> their outputs
FILES = {"torchscript": "policy.pt", "onnx": "policy.onnx", "mnn": "policy.mnn"}
_MODULES = {"torchscript": "torchscript", "onnx": "onnx_file", "mnn": "mnn_file"}
_PACKAGES = {"torchscript": ("torch",), "onnx": ("onnx", "onnxruntime", "onnxscript")}
_PACKAGES["mnn"] = (*_PACKAGES["onnx"], "MNN")  # it is made from ONNX


class Format(Protocol):
    """What the module of a format offers."""

    def write(self, captured: Captured, path: Path, metadata: Mapping[str, str]) -> None:
        """Write a policy, and into the same file what is known about it."""

    def load(self, path: Path, inputs: Sequence[Port], outputs: Sequence[Port]) -> Runtime:
        """Return what runs the policy in a file."""

    def read_metadata(self, path: Path) -> dict[str, str] | None:
        """Return what `write` was told; None where the format has no room for it."""


def load_format(name: str) -> Format:
    """Return the module of a format; raises UsageError when a package is missing."""
    return cast(Format, import_module(f"rl_lab.deploy.{_MODULES[name]}"))


def installed_formats() -> list[str]:
    """Return the formats whose packages are there."""
    return [name for name in FILES if all(find_spec(package) is not None for package in _PACKAGES[name])]


def one_by_one(call: Callable[[Arrays], Arrays], inputs: Arrays) -> Arrays:
    """Return the outputs of many calls, each of its own inputs."""
    count = len(next(iter(inputs.values())))
    found = [call({name: array[index] for name, array in inputs.items()}) for index in range(count)]
    return {name: np.stack([outputs[name] for outputs in found]) for name in found[0]}
