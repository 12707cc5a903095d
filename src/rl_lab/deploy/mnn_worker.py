"""MNN in a process of its own: its library prints, and a graph that it does not like ends the process.

    python -m rl_lab.deploy.mnn_worker convert POLICY.onnx POLICY.mnn
    python -m rl_lab.deploy.mnn_worker run POLICY.mnn INPUTS.npz OUTPUTS.npz OUTPUT_NAME...

The converter is the compiled module within the package. The command `mnnconvert`, and all of `MNN.tools`, would report
to a server and install packages, so neither is touched. Imports nothing of the lab.
"""

from __future__ import annotations

import sys

import _tools as converter  # of the package MNN
import MNN
import numpy as np


def convert(source: str, path: str) -> None:
    """Make an MNN file from an ONNX file."""
    options = ["-f", "ONNX", "--modelFile", source, "--MNNModel", path, "--bizCode", "rl_lab", "--keepInputFormat=1"]
    converter.mnnconvert(["mnnconvert", *options])


def run(path: str, inputs: str, outputs: str, *asked: str) -> None:
    """Call a policy once for each row of the inputs, and write the rows of the outputs."""
    expr = MNN.expr
    given = dict(np.load(inputs, allow_pickle=False))
    module = MNN.nn.load_module_from_file(path, list(given), list(asked))
    found: dict[str, list[np.ndarray]] = {name: [] for name in asked}
    for index in range(len(next(iter(given.values())))):
        rows = [np.ascontiguousarray(array[index]) for array in given.values()]
        values = module.onForward([expr.const(row, list(row.shape), expr.NCHW, expr.float) for row in rows])
        for name, value in zip(asked, values, strict=True):
            found[name].append(np.array(value.read()))
    np.savez(outputs, **{name: np.stack(rows) for name, rows in found.items()})  # type: ignore[arg-type]


if __name__ == "__main__":
    (convert if sys.argv[1] == "convert" else run)(*sys.argv[2:])
