"""ONNX, run by ONNX Runtime; an extra: `pip install 'rl-lab[export]'`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch

from rl_lab.core.errors import LabError, UsageError
from rl_lab.deploy.capture import Captured, quiet
from rl_lab.deploy.formats import Runtime, one_by_one
from rl_lab.deploy.ports import Arrays, Port

try:
    import onnx
    import onnxruntime
    import onnxscript  # noqa: F401  (torch writes ONNX with it)
except ModuleNotFoundError as error:
    raise UsageError(f"--format onnx: {error.name} is not installed: pip install 'rl-lab[export]'") from error

OPSET = 18
ERRORS_ONLY = 3  # of what ONNX Runtime logs


def write(captured: Captured, path: Path, metadata: Mapping[str, str]) -> None:
    """Write a policy; the metadata are the model's `metadata_props`."""
    model = _translated(captured)
    _spell_out(model.graph)
    onnx.helper.set_model_props(model, dict(metadata))
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def _translated(captured: Captured) -> onnx.ModelProto:
    function = captured.function
    try:
        with quiet():
            program = torch.onnx.export(
                captured.program,
                dynamo=True,
                verbose=False,
                opset_version=OPSET,
                input_names=[port.name for port in function.inputs],
                output_names=[port.name for port in function.outputs],
            )
    except torch.onnx.OnnxExporterError as error:
        why = str(error.__cause__ or error).strip().splitlines()[0]
        raise LabError(f"--format onnx: torch cannot write this policy: {why}") from error
    assert program is not None
    return program.model_proto


def _spell_out(graph: onnx.GraphProto) -> None:
    """Write what MNN does not know with what it knows; the numbers stay the same."""
    sizes = {each.name: [int(size) for size in onnx.numpy_helper.to_array(each).flat] for each in _sizes(graph)}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type == "Split" and 0 in (parts := sizes.get(node.input[-1], [])):
            nodes += _without_empty_parts(node, parts)
        else:
            nodes += _SPELLED_OUT[node.op_type](node) if node.op_type in _SPELLED_OUT else [node]
    del graph.node[:]
    graph.node.extend(nodes)


def _sizes(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield the constants that say how large the parts of a split are."""
    wanted = {node.input[1] for node in graph.node if node.op_type == "Split" and len(node.input) > 1}
    yield from (each for each in graph.initializer if each.name in wanted)


def _without_empty_parts(node: onnx.NodeProto, sizes: Sequence[int]) -> list[onnx.NodeProto]:
    """Return slices for the parts that hold anything: nothing reads the others."""
    make, (axis,) = onnx.helper.make_node, (each.i for each in node.attribute if each.name == "axis")
    nodes, start = [], 0
    for size, part in zip(sizes, node.output, strict=True):
        if size:
            bounds = {"starts": start, "ends": start + size, "axes": axis}
            for name, number in bounds.items():
                value = onnx.helper.make_tensor(f"{part}.{name}", onnx.TensorProto.INT64, [1], [number])
                nodes.append(make("Constant", [], [f"{part}.{name}"], value=value))
            nodes.append(make("Slice", [node.input[0], *(f"{part}.{name}" for name in bounds)], [part]))
        start += size
    return nodes


def _is_nan(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Return `not x == x`: attention asks for it where all is masked."""
    (x,), (y,) = node.input, node.output
    make = onnx.helper.make_node
    return [make("Equal", [x, x], [f"{y}.equal"]), make("Not", [f"{y}.equal"], [y])]


def _mish(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Return `x tanh(log(1 + e^x))`."""
    (x,), (y,) = node.input, node.output
    make = onnx.helper.make_node
    soft = make("Softplus", [x], [f"{y}.softplus"])
    return [soft, make("Tanh", [f"{y}.softplus"], [f"{y}.tanh"]), make("Mul", [x, f"{y}.tanh"], [y])]


_SPELLED_OUT = {"IsNaN": _is_nan, "Mish": _mish}


def load(path: Path, inputs: Sequence[Port], outputs: Sequence[Port]) -> Runtime:
    """Return a policy that ONNX Runtime runs on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, ERRORS_ONLY
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names, asked = [port.name for port in inputs], [port.name for port in outputs]

    def call(arrays: Arrays) -> Arrays:
        found = session.run(asked, {name: arrays[name] for name in names})
        return dict(zip(asked, found, strict=True))

    return partial(one_by_one, call)


def read_metadata(path: Path) -> dict[str, str]:
    """Return the metadata within the file."""
    return {entry.key: entry.value for entry in onnx.load(path, load_external_data=False).metadata_props}
