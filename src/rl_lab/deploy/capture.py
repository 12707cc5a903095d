"""The tensor operations of a policy, recorded once; every format is made from this record."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from rl_lab.core.errors import LabError
from rl_lab.deploy.function import PolicyFunction
from rl_lab.deploy.ports import next_name

_FAILURES = (RuntimeError, TypeError, NotImplementedError, torch._dynamo.exc.TorchDynamoException)


@dataclass(frozen=True)
class Captured:
    """A policy with the inputs that matter, and the record of its operations."""

    function: PolicyFunction
    program: ExportedProgram


def capture(function: PolicyFunction) -> Captured:
    """Record a policy; inputs on which no action ever depends are left out, such as what only a critic reads."""
    program = _record(function)
    needed = _needed(function, program)
    if needed != {port.name for port in function.inputs}:
        function = function.restricted(needed)
        program = _record(function)
    return Captured(function, program)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what torch's exporters have to say to their own developers from the user."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "torch.__trace", "onnxscript")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _record(function: PolicyFunction) -> ExportedProgram:
    try:
        with quiet(), torch.no_grad():
            return torch.export.export(function, function.examples(), strict=False)
    except _FAILURES as error:
        name = type(function.workflow).__name__
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise LabError(f"the policy of {name} cannot be exported: {said}") from error


def _needed(function: PolicyFunction, program: ExportedProgram) -> set[str]:
    """Return the inputs that actions depend on, at once or through the state."""
    nodes = {node.name: node for node in program.graph.nodes}
    signature = program.graph_signature
    inputs = {str(name): port.name for name, port in zip(signature.user_inputs, function.inputs, strict=True)}
    ends = {port.name: nodes[str(name)] for port, name in zip(function.outputs, signature.user_outputs, strict=True)}
    needed: set[str] = set()
    waiting = [ends[port.name] for port in function.outputs if port.kind == "action"]
    while waiting:
        found = {inputs[name] for name in _sources(waiting.pop()) if name in inputs} - needed
        needed |= found
        waiting += [ends[next_name(name)] for name in found if next_name(name) in ends]
    return needed


def _sources(node: Node) -> set[str]:
    """Return the names of all nodes that a node is computed from, itself among them."""
    seen = {node.name}
    waiting = [node]
    while waiting:
        for before in waiting.pop().all_input_nodes:
            if before.name not in seen:
                seen.add(before.name)
                waiting.append(before)
    return seen
