"""From an episode on disk to a trajectory [T, 1, ...] as the collector records it, in the environment's terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from rl_lab.buffers.datasets.format import Actions, Array, DatasetError, Episode, named, unnamed
from rl_lab.core import Box, Discrete, EnvSpec, Leaf, MultiDiscrete, Trajectory, leaves_of, tree_map, unknown_name

_SLACK = 0.01  # of the range: recorded actions may be this far outside their bounds


@dataclass(frozen=True)
class Converter:
    """Picks and checks what an environment's spec asks for; without a spec everything is taken as it is.

    Attributes:
        spec: What observations and actions must look like.
        observation_keys: Where each observation of the environment lies in the dataset, if under another name; one
            name where the environment's observation is one array.
        action_range: (low, high) of the dataset's actions, which are then mapped to the bounds of the spec.
        keep_last_step: Whether to keep a last step that was cut and whose true successor is not on disk.
    """

    spec: EnvSpec | None = None
    observation_keys: Mapping[str, str] | str | None = None
    action_range: tuple[Sequence[float] | float, Sequence[float] | float] | None = None
    keep_last_step: bool = False

    def __call__(self, episode: Episode, where: str, device: torch.device) -> Trajectory | None:
        """Return the trajectory; None when no step of the episode can be used."""
        observations, actions = _each(
            where,
            lambda: self._observations(episode.observations, where, batched=True),
            lambda: self._actions(episode.actions, where),
        )
        final = self._observations(episode.final_observation, where, batched=False)
        numbers = {**named(observations), **named(actions, "actions"), "rewards": episode.rewards}
        reject_infinite(where, {**numbers, **named(final, "final_observation")})
        steps = len(episode)
        if not (episode.has_final_observation or episode.terminated or self.keep_last_step):
            # the last transition has no true successor to bootstrap from, but the one before it has
            final, steps = tree_map(lambda array: array[-1], observations), steps - 1
            if steps == 0:
                return None
        following = tree_map(lambda array, last: np.concatenate([array[1:steps], last[None]]), observations, final)
        ends = np.zeros(steps, dtype=np.bool_)
        ends[-1] = True
        rows: dict[str, Any] = {
            "observations": tree_map(lambda array: array[:steps], observations),
            "actions": tree_map(lambda array: array[:steps], actions),
            "rewards": episode.rewards[:steps].astype(np.float32),
            "terminated": ends & episode.terminated,
            "truncated": ends & (not episode.terminated),
            "final_observations": following,
            "is_first": np.arange(steps) == 0,
        }
        if episode.infos:
            rows["infos"] = {name: _info(array)[:steps] for name, array in episode.infos.items()}
        return tree_map(lambda array: torch.from_numpy(np.array(array[:, None], order="C")).to(device), rows)

    def fits(self, extremes: Mapping[str, Array]) -> bool:
        """Return whether the extremes of an episode raise no suspicion."""
        try:
            self._actions(unnamed(extremes, "actions"), "")
            reject_infinite("", extremes)
        except DatasetError:
            return False
        return True

    def _observations(self, found: Any, where: str, *, batched: bool) -> Any:
        if self.spec is None:
            return found
        wanted = self.spec.observation
        if not isinstance(wanted, Mapping):
            return _fit(self._single(found, where), wanted, f"{where}: observations", batched)
        keys = self.observation_keys or {}
        if isinstance(keys, str):
            raise DatasetError(f"observation_keys is {keys!r}, but the environment has observations {sorted(wanted)}")
        for key in keys:
            if key not in wanted:
                raise DatasetError(unknown_name("observation of the environment in observation_keys", key, wanted))

        def fit(key: str, leaf: Leaf) -> Array:
            return _fit(_pick(found, keys.get(key, key), where), leaf, f"{where}: observations {key!r}", batched)

        fitted = _each(where, *(partial(fit, key, leaf) for key, leaf in wanted.items()))
        return dict(zip(wanted, fitted, strict=True))

    def _single(self, found: Any, where: str) -> Array:
        """Return the one array that an environment with one observation wants."""
        if not isinstance(found, dict):
            return found
        if isinstance(self.observation_keys, str):
            return _pick(found, self.observation_keys, where)
        if len(found) != 1:
            raise DatasetError(
                f"{where} has the observations {', '.join(found)}, the environment has one: name it by observation_keys"
            )
        return next(iter(found.values()))

    def _actions(self, actions: Actions, where: str) -> Actions:
        if self.spec is None:
            return actions
        parts = leaves_of(self.spec.action)
        given = actions if isinstance(actions, dict) else {"": actions}
        if given.keys() != parts.keys():
            found, wanted = (", ".join(names) or "one array" for names in (given, parts))
            raise DatasetError(f"{where}: actions are {found}, the environment takes {wanted}")
        if self.action_range is not None and isinstance(actions, dict):
            raise DatasetError(f"{where}: action_low and action_high are for actions that are one array, not a dict")
        if self.action_range is not None:
            given = {"": _rescale(given[""], self.action_range, parts[""], where)}
        names = {name: f"{where}: actions {name}".rstrip() for name in parts}
        fitted = {name: _fit_action(given[name], leaf, names[name]) for name, leaf in parts.items()}
        return fitted if isinstance(actions, dict) else fitted[""]


def reject_infinite(where: str, arrays: Mapping[str, Array]) -> None:
    """Raise when a number is not finite, with its name and step."""
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            rows = np.isfinite(array).reshape(len(array), -1).all(1) if array.ndim else np.array([False])
            step = "" if name.startswith("final") else f" at step {int((~rows).argmax())}"
            raise DatasetError(f"{where}: {name} is not finite{step}")


def _each(where: str, *makers: Callable[[], Any]) -> list[Any]:
    """Return what all of them make; where some cannot, all that does not fit is told at once."""
    made, lines = [], list[str]()
    for make in makers:
        try:
            made.append(make())
        except DatasetError as error:
            lines.append(str(error) if not lines else str(error).removeprefix(where).lstrip(": "))
    if lines:
        raise DatasetError("; ".join(lines))
    return made


def _pick(found: Any, key: str, where: str) -> Array:
    if not isinstance(found, dict):
        raise DatasetError(f"{where} has one observation without a name, the environment wants {key!r}")
    if key not in found:
        raise DatasetError(f"{where} has no observation {key!r} (it has: {', '.join(found)}): see observation_keys")
    return found[key]


def _fit(array: Array, leaf: Leaf, where: str, batched: bool) -> Array:
    """Return the array in the shape and type of the spec; numbers of another kind are refused."""
    shape = leaf.shape if isinstance(leaf, Box) else (len(leaf.nvec),) if isinstance(leaf, MultiDiscrete) else ()
    dtype = np.dtype(str(leaf.dtype).removeprefix("torch.")) if isinstance(leaf, Box) else np.dtype(np.int64)
    array = np.asarray(array)
    found = array.shape[1:] if batched else array.shape
    if found != shape and {found, shape} != {(), (1,)}:  # a number and a list of one number are the same
        raise DatasetError(f"{where} are {list(found)}, the environment has {list(shape)}")
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        raise DatasetError(f"{where} are {array.dtype}, the environment has {dtype}")
    fitted = array.reshape(*array.shape[:1], *shape) if batched else array.reshape(shape)
    _reject_choices(fitted, leaf, where)
    return fitted.astype(dtype)


def _reject_choices(array: Array, leaf: Leaf, where: str) -> None:
    """Raise when a choice is none of those that there are."""
    if isinstance(leaf, Box) or not array.size:
        return
    known = f"[0, {leaf.n - 1}]" if isinstance(leaf, Discrete) else f"choices of {list(leaf.nvec)}"
    if array.min() < 0 or (array >= (leaf.n if isinstance(leaf, Discrete) else leaf.nvec)).any():
        raise DatasetError(f"{where} lie in [{array.min():g}, {array.max():g}], the environment takes {known}")


def _fit_action(array: Array, leaf: Leaf, where: str) -> Array:
    fitted = _fit(array, leaf, where, True)
    if not isinstance(leaf, Box):
        return fitted
    slack = _SLACK * (leaf.high - leaf.low) if np.isfinite(leaf.high - leaf.low) else 0.0
    if fitted.size and (fitted.min() < leaf.low - slack or fitted.max() > leaf.high + slack):
        raise DatasetError(
            f"{where} lie in [{fitted.min():g}, {fitted.max():g}], the environment takes "
            f"[{leaf.low:g}, {leaf.high:g}]: give action_low and action_high of the dataset"
        )
    return fitted


def _rescale(actions: Array, given: tuple[Any, Any], leaf: Leaf, where: str) -> Array:
    if not isinstance(leaf, Box) or not np.isfinite(leaf.high - leaf.low):
        raise DatasetError(f"{where}: action_low and action_high need an environment with bounded numbers as actions")
    _fit(actions, leaf, f"{where}: actions", True)  # tells what has another shape
    begin, end = (np.asarray(bound, dtype=np.float64) for bound in given)
    if any(bound.size > 1 and bound.shape != leaf.shape for bound in (begin, end)) or not (begin < end).all():
        wanted = f"one number or {list(leaf.shape)} numbers, the lower first"
        raise DatasetError(f"{where}: action_low and action_high are {wanted}, not {given[0]} and {given[1]}")
    return ((actions - begin) / (end - begin) * (leaf.high - leaf.low) + leaf.low).astype(np.float32)


def _info(array: Array) -> Array:
    return array.astype(np.float32) if array.ndim == 1 else array
