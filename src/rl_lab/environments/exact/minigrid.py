"""The state of MiniGrid's own tasks: which object stands in which cell, the agent, and what each task remembers.

BabyAI's levels and generated mazes keep their instructions in objects of many kinds; they are replayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_lab.environments.exact.adapter import Adapter, LayerState, plain, unplain

_AGENT = ("agent_pos", "agent_dir", "step_count", "mission")
_NOWHERE = -99  # a coordinate of an object that was never placed; one that is carried is at -1
# class -> attributes with plain values, attributes that are objects (or lists of them) of the grid
_TASKS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "blockedunlockpickup.BlockedUnlockPickupEnv": ((), ("obj",)),
    "crossing.CrossingEnv": ((), ()),
    "distshift.DistShiftEnv": ((), ()),
    "doorkey.DoorKeyEnv": ((), ()),
    "dynamicobstacles.DynamicObstaclesEnv": ((), ("obstacles",)),
    "empty.EmptyEnv": ((), ()),
    "fetch.FetchEnv": (("targetType", "targetColor"), ()),
    "fourrooms.FourRoomsEnv": ((), ()),
    "gotodoor.GoToDoorEnv": (("target_pos", "target_color"), ()),
    "gotoobject.GoToObjectEnv": (("targetType", "target_color", "target_pos"), ()),
    "keycorridor.KeyCorridorEnv": ((), ("obj",)),
    "lavagap.LavaGapEnv": ((), ()),
    "lockedroom.LockedRoomEnv": ((), ()),
    "memory.MemoryEnv": (("success_pos", "failure_pos"), ()),
    "multiroom.MultiRoomEnv": ((), ()),
    "obstructedmaze.ObstructedMaze_1Dlhb": ((), ("obj",)),
    "obstructedmaze.ObstructedMaze_Full": ((), ("obj",)),
    "obstructedmaze_v1.ObstructedMaze_Full_V1": ((), ("obj",)),
    "playground.PlaygroundEnv": ((), ()),
    "putnear.PutNearEnv": (("move_type", "moveColor", "move_pos", "target_type", "target_color", "target_pos"), ()),
    "redbluedoors.RedBlueDoorEnv": ((), ("red_door", "blue_door")),
    "unlock.UnlockEnv": ((), ("door",)),
    "unlockpickup.UnlockPickupEnv": ((), ("obj",)),
}


class _Table:
    """Objects by number, each once, with what it contains."""

    def __init__(self) -> None:
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}

    def number(self, thing: Any) -> int:
        """Return the object's number; -1: no object."""
        if thing is None:
            return -1
        if id(thing) not in self._numbers:
            self._numbers[id(thing)] = len(self._objects)
            self._objects.append(thing)
            self.number(thing.contains)
        return self._numbers[id(thing)]

    def rows(self) -> NDArray[np.int32]:
        """Return type, colour, state, content, first and current place of each."""
        return np.array([self._row(thing) for thing in self._objects], np.int32).reshape(-1, 8)

    def _row(self, thing: Any) -> tuple[int, ...]:
        return (*thing.encode(), self.number(thing.contains), *_axes(thing.init_pos), *_axes(thing.cur_pos))


def _axes(place: Any) -> tuple[int, int]:
    return (_NOWHERE, _NOWHERE) if place is None else (int(place[0]), int(place[1]))


def _objects(rows: NDArray[Any]) -> list[Any]:
    from minigrid.core.constants import IDX_TO_COLOR
    from minigrid.core.world_object import WorldObj

    things: list[Any] = [WorldObj.decode(*map(int, row[:3])) for row in rows]
    for thing, row in zip(things, rows, strict=True):
        thing.color = IDX_TO_COLOR[int(row[1])]  # decoding gives some types their usual one
        thing.contains = things[row[3]] if row[3] >= 0 else None
        thing.init_pos, thing.cur_pos = (
            None if place[0] == _NOWHERE else (int(place[0]), int(place[1])) for place in (row[4:6], row[6:8])
        )
    return things


def _adapter(values: tuple[str, ...], objects: tuple[str, ...]) -> Adapter:
    names = (*_AGENT, *values)

    def read(env: Any) -> LayerState:
        table, held = _Table(), vars(env)
        cells = np.array([table.number(thing) for thing in env.grid.grid], np.int32)
        named = {name: _numbers(held[name], table) for name in ("carrying", *objects)}
        values = {name: plain(held[name]) for name in names}
        return {"cells": cells, "objects": table.rows(), "named": named, "values": values}

    def write(env: Any, state: Mapping[str, Any]) -> None:
        things = [*_objects(np.asarray(state["objects"])), None]  # the last one for the number -1
        env.grid.grid = [things[number] for number in np.asarray(state["cells"])]
        for name, number in state["named"].items():
            setattr(env, name, [things[each] for each in number] if isinstance(number, list) else things[number])
        for name, value in state["values"].items():
            setattr(env, name, unplain(value))

    return Adapter(read, write)


def _numbers(held: Any, table: _Table) -> int | list[int]:
    return [table.number(thing) for thing in held] if isinstance(held, list) else table.number(held)


ADAPTERS = {f"minigrid.envs.{name}": _adapter(values, objects) for name, (values, objects) in _TASKS.items()}
