"""Several buffers as one, in fixed shares: RLPD (Ball et al., 2023) draws half of every batch from demonstrations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from rl_lab.core import (
    Batch,
    BatchKind,
    Buffer,
    ConfigError,
    Footprint,
    LabError,
    State,
    Trajectory,
    Witness,
    tree_leaves,
    tree_map,
    unknown_name,
)

INFOS = "infos"
BESIDE = (INFOS, "teacher_actions", "is_teacher")  # what is recorded beside a step and is no part of it
TOLERANCE = 1e-6


@runtime_checkable
class FixedBatch(Protocol):
    """A buffer that tells before it is used how many rows it draws."""

    batch_size: int


class UnionBuffer(Buffer):
    """Joins what its parts draw, in the order of `ratios`; what is collected goes to those that take it.

    All parts must give the same keys; infos and a teacher's actions are joined where all parts have them. Importance
    weights of prioritized parts are those within the part.

    Args:
        parts: Buffers by name, each with a batch_size of its own.
        ratios: Share of every batch by name of the part; together 1. They must agree with the parts' batch sizes.
        batch_size: Rows per batch, the sum of the parts'.
        add_to: Part that gets what is collected, or several; null: none does, and collecting is an error.
    """

    def __init__(
        self,
        parts: Mapping[str, Buffer],
        ratios: Mapping[str, float],
        batch_size: int,
        *,
        add_to: str | Sequence[str] | None = None,
    ) -> None:
        if not parts or set(parts) != set(ratios):
            raise ConfigError(f"ratios must name the parts of the union {sorted(parts)}, not {sorted(ratios)}")
        taking = [add_to] if isinstance(add_to, str) else list(add_to or ())
        for name in taking:
            if name not in parts:
                raise ConfigError(unknown_name("part in add_to", name, parts))
        if min(ratios.values()) <= 0.0 or abs(sum(ratios.values()) - 1.0) > TOLERANCE:
            raise ConfigError(f"ratios of a union must be above 0 and together 1, not {dict(ratios)}")
        self.batch_size, self._taking, self._ratios = batch_size, taking, dict(ratios)
        self._parts = {name: parts[name] for name in ratios}
        declared = {name: part.batch_size for name, part in self._parts.items() if isinstance(part, FixedBatch)}
        self._reject_sizes(declared)
        self._sizes: list[int] = []  # rows of each part in the last batch

    @property
    def size(self) -> int:
        """Return how many env steps all parts hold."""
        return sum(part.size for part in self._parts.values())

    @property
    def brings_data(self) -> bool:
        """Return whether all parts do."""
        return all(part.brings_data for part in self._parts.values())

    @property
    def is_on_policy(self) -> bool:
        """Return whether any part is."""
        return any(part.is_on_policy for part in self._parts.values())

    @property
    def needed_steps(self) -> int:
        """Return the most that a part needs which gets what is collected."""
        return max((self._parts[name].needed_steps for name in self._taking), default=0)

    @property
    def batch_kind(self) -> BatchKind | None:
        """Return what those of all parts are; None where these differ."""
        kinds = {part.batch_kind for part in self._parts.values()}
        return kinds.pop() if len(kinds) == 1 else None

    def add(self, trajectory: Trajectory) -> None:
        """Store `T` vector steps in the parts that take them."""
        if not self._taking:
            raise LabError(f"this union takes no steps: name one of its parts in add_to ({sorted(self._parts)})")
        for name in self._taking:
            self._parts[name].add(trajectory)

    def witness(self, seen: Witness) -> None:
        """Tell the parts that take the steps."""
        for name in self._taking:
            self._parts[name].witness(seen)

    def end_episodes(self) -> None:
        """Tell the parts that take the steps."""
        for name in self._taking:
            self._parts[name].end_episodes()

    def is_ready(self) -> bool:
        """Return whether all parts are; raises LabError when one never will be."""
        waiting = [name for name, part in self._parts.items() if not part.is_ready()]
        if self._taking and (idle := [name for name in waiting if name not in self._taking]):
            raise LabError(
                f"parts.{idle[0]} of a union holds {self._parts[idle[0]].size} env steps, too few for a batch, and "
                f"takes none of those that are collected (add_to: {', '.join(self._taking)})"
            )
        return not waiting

    def sample(self) -> Batch:
        """Return the joined batches of the parts, in the order of `ratios`."""
        self._reject_unready()
        batches = _comparable({name: part.sample() for name, part in self._parts.items()})
        self._sizes = self._sizes_of(batches)
        return tree_map(lambda *leaves: torch.cat(leaves), *batches.values())

    def peek(self, seed: int) -> Batch:
        """Return the joined batches that are drawn from this seed."""
        self._reject_unready()
        batches = _comparable({name: part.peek(seed) for name, part in self._parts.items()})
        self._sizes_of(batches)
        return tree_map(lambda *leaves: torch.cat(leaves), *batches.values())

    def limits(self, key: str) -> tuple[Any, Any]:
        """Return the lowest and the highest of each number of `key` in all parts."""
        self._reject_unready()
        lows, highs = zip(*(part.limits(key) for part in self._parts.values()), strict=True)
        return (
            tree_map(lambda *leaves: torch.stack(leaves).amin(0), *lows),
            tree_map(lambda *leaves: torch.stack(leaves).amax(0), *highs),
        )

    def _reject_unready(self) -> None:
        if waiting := [name for name, part in self._parts.items() if not part.is_ready()]:
            held = ", ".join(f"{name} has {self._parts[name].size} env steps" for name in waiting)
            raise LabError(f"a union was sampled before all its parts were ready: {held}")

    def _sizes_of(self, batches: Mapping[str, Batch]) -> list[int]:
        """Return the rows of batches that fit together."""
        sizes = {name: len(next(leaf for _, leaf in tree_leaves(batch))) for name, batch in batches.items()}
        self._reject_sizes(sizes)
        _reject_different_keys(batches)
        return list(sizes.values())

    def write_back(self, values: Mapping[str, Tensor]) -> None:
        """Give every part what concerns its rows of the last batch."""
        split = {key: value.split(self._sizes) for key, value in values.items()}
        for number, part in enumerate(self._parts.values()):
            part.write_back({key: pieces[number] for key, pieces in split.items()})

    def statistics(self) -> dict[str, float]:
        """Return the statistics of all parts, by name."""
        parts = {name: part.statistics() for name, part in self._parts.items()}
        named = {f"{name}/{key}": value for name, numbers in parts.items() for key, value in numbers.items()}
        return {"size": float(self.size), **named}

    def footprint(self) -> tuple[Footprint, ...]:
        """Return those of the parts that are bounded, each under its name."""
        return tuple(
            taken._replace(part=".".join(filter(None, ("parts", name, taken.part))))
            for name, part in self._parts.items()
            for taken in part.footprint()
        )

    def attach(self, directory: Path) -> None:
        """Give every part a directory of its own within this one."""
        for name, part in self._parts.items():
            part.attach(directory / name)

    def get_state(self) -> State:
        """Return the state of every part."""
        return {name: part.get_state() for name, part in self._parts.items()}

    def set_state(self, state: State) -> None:
        """Hold exactly what `state` held."""
        for name, part in self._parts.items():
            part.set_state(state[name])

    def _reject_sizes(self, sizes: Mapping[str, int]) -> None:
        """Compare the rows of parts with their shares; parts that do not tell their batch size are seen when drawn."""
        for name, rows in sizes.items():
            if abs(rows - self._ratios[name] * self.batch_size) >= 1.0:
                raise ConfigError(
                    f"parts.{name} draws {rows} rows, which is not {self._ratios[name]} of batch_size={self.batch_size}"
                )
        if len(sizes) == len(self._parts) and sum(sizes.values()) != self.batch_size:
            raise ConfigError(f"batch_size={self.batch_size} is not the sum of what the parts draw: {dict(sizes)}")


def _comparable(batches: Mapping[str, Batch]) -> dict[str, Batch]:
    """Return batches without what only some of them have beside their steps, such as infos."""
    infos = set.intersection(*(set(batch.get(INFOS, {})) for batch in batches.values()))
    left_out = {key for key in BESIDE if any(key not in batch for batch in batches.values())}
    left_out |= set() if infos else {INFOS}
    return {name: _without(batch, left_out, infos) for name, batch in batches.items()}


def _without(batch: Batch, left_out: Set[str], infos: Set[str]) -> Batch:
    kept = {key: value for key, value in batch.items() if key not in left_out}
    return {**kept, INFOS: {name: batch[INFOS][name] for name in sorted(infos)}} if infos else kept


def _reject_different_keys(batches: Mapping[str, Batch]) -> None:
    keys = {name: {path for path, _ in tree_leaves(batch)} for name, batch in batches.items()}
    everywhere = set.intersection(*keys.values())
    if lone := {name: sorted(own - everywhere) for name, own in keys.items() if own - everywhere}:
        found = "; ".join(f"{name} alone has {', '.join(paths)}" for name, paths in lone.items())
        raise LabError(f"the parts of a union give batches with different keys: {found}")
