"""The exact state of a running episode without replay: one small state per layer, innermost last. Knows no torch.

An environment is a chain of layers, wrappers around a base. A layer of this package gives its own state (`Stateful`);
foreign types are known by name in `ADAPTERS`, where a subclass does not count: it may remember more. When any layer
is unknown there is no native state and the episode is replayed instead (`hosting.member`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import gymnasium
import numpy as np

from rl_lab.environments.exact import atari, minigrid, mujoco, robotics, stock
from rl_lab.environments.exact.adapter import Adapter, LayerState
from rl_lab.environments.hosting.foreign import BadOutcome

Env = gymnasium.Env[Any, Any]
ADAPTERS: dict[str, Adapter] = {
    **stock.ADAPTERS,
    **mujoco.ADAPTERS,
    **atari.ADAPTERS,
    **minigrid.ADAPTERS,
    **robotics.ADAPTERS,
}
OURS = "rl_lab."


@runtime_checkable
class Stateful(Protocol):
    """A layer that gives and takes the state of its running episode; users' own layers inherit from this class."""

    def get_state(self) -> LayerState:
        """Return plain values: arrays, numbers, strings, None, lists and dicts of them."""
        ...

    def set_state(self, state: LayerState) -> None:
        """Go on from `state`; the layers below are already there."""
        ...


@runtime_checkable
class Remembering(Protocol):
    """A layer whose next episode depends on the one before by more than the random stream."""

    remembers_episodes: bool


@runtime_checkable
class Doubtful(Protocol):
    """A layer that tells, once it is made, whether its state is all that an episode depends on."""

    has_whole_state: bool


def layers(env: Env) -> Iterator[Env]:
    """Yield the wrappers, outermost first, and then the base."""
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env
    yield env


def has_native_state(env: Env) -> bool:
    """Return whether every layer can give its state."""
    return all(_adapter(layer) is not None for layer in layers(env))


def is_replayable(env: Env) -> bool:
    """Return whether `reset` forgets all earlier episodes, so that replaying the running one is enough."""
    return not any(isinstance(layer, Remembering) or _is_emulator(layer) for layer in layers(env))


def native_state(env: Env) -> dict[str, Any] | None:
    """Return the state of the running episode and of the random stream; None when some layer has none to give."""
    states = []
    for layer in layers(env):
        adapter = _adapter(layer)
        if adapter is None:
            return None
        states.append({"type": _name(layer), "state": adapter.read(layer)})
    return {"layers": states, "rng": rng_state(env)}


def restore_native(env: Env, state: Mapping[str, Any]) -> None:
    """Go on from `native_state` of an environment that was made the same way. It is reset on the way."""
    here, there = [_name(layer) for layer in layers(env)], [part["type"] for part in state["layers"]]
    if here != there:
        raise BadOutcome(f"cannot be restored: it has the layers {here} and the stored state {there}")
    env.reset()  # so that whatever a first reset sets up is there to be overwritten
    for layer, part in reversed(list(zip(layers(env), state["layers"], strict=True))):
        adapter = _adapter(layer)
        if adapter is None:
            raise BadOutcome(f"cannot be restored: nothing is known of the state of {_name(layer)}")
        adapter.write(layer, part["state"])
    env.unwrapped.np_random.bit_generator.state = state["rng"]


def rng_state(env: Env) -> Any:
    """Return the state of the base's random stream as dicts, lists, strings and ints."""
    return plain_rng(env.unwrapped.np_random.bit_generator.state)


def plain_rng(tree: Any) -> Any:
    """Return a bit generator's state as dicts, lists, strings and ints, which compare and store exactly."""
    if isinstance(tree, Mapping):
        return {key: plain_rng(value) for key, value in tree.items()}
    if isinstance(tree, np.ndarray | list | tuple):
        return [int(word) for word in tree]
    return tree if tree is None or isinstance(tree, str) else int(tree)


def _adapter(layer: Env) -> Adapter | None:
    kind = type(layer)
    if isinstance(layer, Doubtful) and not layer.has_whole_state:
        return None
    if Stateful in kind.__mro__ or (kind.__module__.startswith(OURS) and isinstance(layer, Stateful)):
        return _OWN
    adapter = ADAPTERS.get(_name(layer))
    return adapter if adapter is not None and adapter.fits(layer) else None


_OWN = Adapter(lambda layer: layer.get_state(), lambda layer, state: layer.set_state(state))


def _is_emulator(layer: Env) -> bool:
    """ALE draws its sticky actions from a stream of its own, which a reset does not begin anew."""
    return any(kind.__module__ == "ale_py.env" for kind in type(layer).__mro__)


def _name(layer: Env) -> str:
    return f"{type(layer).__module__}.{type(layer).__qualname__}"
