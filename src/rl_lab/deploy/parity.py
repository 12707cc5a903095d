"""Whether a file computes what the policy computes: its answers beside those of the policy to the same calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rl_lab.core.environment import Observation, VectorEnv
from rl_lab.core.trees import tree_leaves
from rl_lab.deploy.function import PolicyFunction, join
from rl_lab.deploy.ports import Arrays, Port, next_name, to_arrays

TOLERANCE = 1e-5  # of each number, beyond 1 relative to its size
RESTART_CHANCE = 0.02  # of an episode, in calls that no environment made
SPREAD_SHARE, LEAST_SPREAD = 0.5, 0.1  # of the noise on observations, of their standard deviation
NUDGE, NUM_NUDGES = 1e-6, 16  # relative change of inputs, in their last digits


class Calls(NamedTuple):
    """Inputs and outputs of many calls by name, [count, 1, ...] each."""

    inputs: Arrays
    outputs: Arrays

    def rows(self, chosen: slice | npt.NDArray[np.int64]) -> Calls:
        """Return some of the calls."""
        return Calls(*({name: array[chosen] for name, array in part.items()} for part in self))


class Parity(NamedTuple):
    """How far a file is from the policy."""

    max_difference: float
    unstable: int = 0  # calls that were answered as the policy does when their inputs change in their last digits

    @property
    def is_good(self) -> bool:
        """Return whether it computes the same; a NaN does not."""
        return self.max_difference < TOLERANCE


def record(function: PolicyFunction, env: VectorEnv, count: int, seed: int = 0) -> Calls:
    """Let the policy act: half of the calls in whole episodes of `env`, half on noisy observations of these."""
    rng, num_real = np.random.default_rng(seed), count - count // 2
    ports = [port for port in function.inputs if port.kind == "observation"]
    obs, is_first = env.reset(seed), True
    state = {port.name: np.zeros(port.shape, np.float32) for port in function.inputs if port.kind == "state"}
    inputs: list[Arrays] = []
    outputs: list[Arrays] = []
    for index in range(count):
        seen = _observed(obs, ports) if index < num_real else _disturbed(inputs[:num_real], ports, rng)
        inputs.append(seen | state | _drawn(function.inputs, rng, is_first))
        outputs.append(function.call(inputs[-1]))
        state = {name: outputs[-1][next_name(name)] for name in state}
        if index < num_real:
            step = env.step(function.to_environment(outputs[-1]))
            obs, is_first = step.observations, bool(step.terminated | step.truncated)
        else:
            is_first = bool(rng.random() < RESTART_CHANCE)
    return Calls(_stacked(inputs), _stacked(outputs))


def _observed(obs: Observation, ports: list[Port]) -> Arrays:
    leaves = {join("observation", path): leaf for path, leaf in tree_leaves(obs)}
    return to_arrays({port.name: leaves[port.name].float() for port in ports})


def _disturbed(rows: list[Arrays], ports: list[Port], rng: np.random.Generator) -> Arrays:
    """Return the observations of a row with noise on what is continuous."""
    row = rows[rng.integers(len(rows))]
    found = {}
    for port in ports:
        value = row[port.name]
        if port.holds == "float32":
            spread = np.std([each[port.name] for each in rows[:: max(1, len(rows) // 64)]], axis=0)
            value = value + SPREAD_SHARE * np.maximum(spread, LEAST_SPREAD) * rng.standard_normal(value.shape)
            value = np.clip(value, port.low, port.high) if port.low is not None or port.high is not None else value
        found[port.name] = value.astype(np.float32)
    return found


def _drawn(ports: list[Port], rng: np.random.Generator, is_first: bool) -> Arrays:
    """Return the noise of a call, and whether it begins an episode."""
    draw: dict[str | None, Callable[..., npt.NDArray[np.float64]]] = {
        "normal": rng.standard_normal,
        "uniform": rng.random,
        "exponential": rng.standard_exponential,
    }
    noise = {port.name: draw[port.distribution](size=port.shape) for port in ports if port.kind == "noise"}
    first = {port.name: np.full(port.shape, is_first) for port in ports if port.kind == "is_first"}
    return {name: array.astype(np.float32) for name, array in (noise | first).items()}


def _stacked(rows: list[Arrays]) -> Arrays:
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def compare(function: PolicyFunction | None, calls: Calls, found: Arrays) -> Parity:
    """Return how far `found` is from what was recorded; with the policy at hand, other choices are told from errors.

    Between choices that are equally good to the last digits, a file may take another one than the policy: such a call
    is right when all its outputs are those that the policy gives to nearly the same inputs.
    """
    differences, unstable = _differences(calls.outputs, found), 0
    if function is None:
        return Parity(float(differences.max(initial=0.0)))
    for i in np.flatnonzero(~(differences < TOLERANCE)):
        answer = {name: array[i : i + 1] for name, array in found.items()}
        owns = _nearby_answers(function, calls.rows(slice(i, i + 1)))
        nearest = min(float(_differences(own, answer)[0]) for own in owns)
        if nearest < TOLERANCE:
            differences[i], unstable = nearest, unstable + 1
    return Parity(float(differences.max(initial=0.0)), unstable)


def _differences(wanted: Arrays, found: Arrays) -> npt.NDArray[np.float64]:
    """Return the largest difference of each call."""
    count = len(next(iter(wanted.values())))
    largest = np.zeros(count)
    for name, array in wanted.items():
        exact = array.astype(np.float64)
        apart = np.abs(found[name].astype(np.float64) - exact) / np.maximum(1.0, np.abs(exact))
        largest = np.maximum(largest, apart.reshape(count, -1).max(-1, initial=0.0))
    return largest


def _nearby_answers(function: PolicyFunction, call: Calls) -> Iterator[Arrays]:
    """Yield the policy's own answers when the inputs of a call change in their last digits."""
    rng = np.random.default_rng(0)
    for _ in range(NUM_NUDGES):
        nudged = {
            name: (array[0] * (1.0 + NUDGE * rng.standard_normal(array[0].shape))).astype(np.float32)
            for name, array in call.inputs.items()
        }
        yield {name: array[None] for name, array in function.call(nudged).items()}


def _own_jump(function: PolicyFunction, call: Calls) -> float:
    """Return how far the policy's own answer moves when the inputs of a call change in their last digits."""
    return max(float(_differences(call.outputs, own)[0]) for own in _nearby_answers(function, call))


def steadiest(function: PolicyFunction, calls: Calls, count: int) -> Calls:
    """Return a few of the calls, from first to last, whose answers do not hang on the last digits."""
    total = len(next(iter(calls.outputs.values())))
    candidates = np.unique(np.linspace(0, total - 1, 2 * count).astype(np.int64))
    jumps = [_own_jump(function, calls.rows(candidates[i : i + 1])) for i in range(len(candidates))]
    return calls.rows(np.sort(candidates[np.argsort(jumps, kind="stable")[:count]]))
