"""Several gymnasium environments stepped one after another: the inner loop of both backends. Knows no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rl_lab.environments.hosting.actions import ActionCodec, Rows
from rl_lab.environments.hosting.codec import Array, Arrays, ObservationCodec, is_finite
from rl_lab.environments.hosting.foreign import BadOutcome, Watch, one_line
from rl_lab.environments.hosting.member import Member, Signature
from rl_lab.environments.hosting.recipe import Recipe


class MemberFault(RuntimeError):
    """A member raised, or returned what it may not: which one, what it was doing and what happened."""

    def __init__(self, index: int, doing: str, what: str) -> None:
        super().__init__(index, doing, what)
        self.index, self.doing, self.what = index, doing, what


@dataclass(frozen=True)
class Blueprint:
    """All that is needed to make members, here or in a worker process."""

    recipe: Recipe
    observation: ObservationCodec
    action: ActionCodec
    signature: Signature  # the spaces that every member must have
    is_exact: bool  # False: keep no record, the members cannot be repeated
    info_keys: tuple[str, ...] = ()


@dataclass
class StepArrays:
    """What one vector step writes; `finals` only in the rows of episodes that ended."""

    observations: Arrays
    rewards: Array
    terminated: Array  # False on entry
    truncated: Array  # False on entry
    finals: Arrays
    infos: Array  # [info_keys, members]


class Group:
    """Members `first` .. `first + count - 1` of a vector environment, in this process."""

    def __init__(self, blueprint: Blueprint, first: int, count: int, cursor: Array | None = None) -> None:
        self._blueprint, self._first = blueprint, first
        self._cursor = np.zeros(1, np.int64) if cursor is None else cursor  # the member at work, read after a crash
        self._doing = "being made"
        self._rows: Rows = []
        self._write, self._target = blueprint.observation.write, blueprint.observation.target
        self._watch = Watch(lambda error: self._fault(int(self._cursor[0]), one_line(error)))
        self._members: list[Member] = []
        with self._watch:
            for index in range(count):
                self._cursor[0] = index
                self._members.append(
                    Member(blueprint.recipe, blueprint.signature, is_exact=blueprint.is_exact, index=first + index)
                )

    def reset(self, seeds: Sequence[int], observations: Arrays) -> None:
        """Start every member with its seed."""
        self._doing = "reset"
        with self._watch:
            for index, (member, seed) in enumerate(zip(self._members, seeds, strict=True)):
                self._cursor[0] = index
                self._write(self._target(observations), index, member.start(seed))
        self._check_observations(observations)

    def step(self, actions: Array, out: StepArrays) -> bool:
        """Step every member, reset those whose episode ended, and return whether there were any."""
        self._doing = "step"
        target, rewards, write, cursor = self._target(out.observations), out.rewards, self._write, self._cursor
        ended: list[int] = []
        info_keys = self._blueprint.info_keys
        self._rows, logged = self._blueprint.action.rows(actions)
        with self._watch:
            for index, member in enumerate(self._members):
                cursor[0] = index
                obs, rewards[index], terminated, truncated, info = member.step(self._rows[index])
                member.log(logged[index])
                write(target, index, obs)
                if info_keys:
                    out.infos[:, index] = [read_info(info, key) for key in info_keys]
                if terminated or truncated:
                    ended.append(index)
                    out.terminated[index], out.truncated[index] = terminated, not terminated
        self._check_observations(out.observations)
        self._check_rewards(rewards)
        if ended:
            self._restart(ended, out)
        return bool(ended)

    def _restart(self, ended: Sequence[int], out: StepArrays) -> None:
        """Keep the true last observations and begin the next episodes."""
        for name, final in out.finals.items():
            final[ended] = out.observations[name][ended]
        self._doing = "reset"
        with self._watch:
            for index in ended:
                self._cursor[0] = index
                self._write(self._target(out.observations), index, self._members[index].restart())
        self._check_observations(out.observations)

    def get_state(self, observations: Arrays) -> list[dict[str, Any]]:
        """Return each member's record with its current observation."""
        states = [member.get_state(self._blueprint.action) for member in self._members]
        for index, state in enumerate(states):
            state["observation"] = {name: array[index].copy() for name, array in observations.items()}
        return states

    def set_state(self, states: Sequence[Mapping[str, Any]], observations: Arrays) -> None:
        """Bring each member back; where a replay leads is compared with what was stored, bit for bit."""
        self._doing = "restore"
        with self._watch:
            for index, (member, state) in enumerate(zip(self._members, states, strict=True)):
                self._cursor[0] = index
                replayed = member.set_state(state, self._blueprint.action)
                if replayed is not None:
                    self._write(self._target(observations), index, replayed)
                for name, array in observations.items():
                    stored = np.asarray(state["observation"][name])
                    if replayed is None:
                        array[index] = stored
                    elif array[index].tobytes() != stored.tobytes():
                        raise BadOutcome(
                            "cannot be repeated: the replay led to another observation than the stored one"
                        )

    def render(self) -> Array | None:
        """Return the picture of the first member."""
        with self._watch:
            self._doing, self._cursor[0] = "render", 0
            return self._members[0].render()

    def instruct(self, instruction: str) -> bool:
        """Pass a person's word on to every member; return whether one of them listens."""
        heard = False
        with self._watch:
            self._doing = f"being told to {instruction}"
            for index, member in enumerate(self._members):
                self._cursor[0] = index
                heard |= member.instruct(instruction)
        return heard

    def close(self) -> None:
        """Free windows and simulators."""
        for member in self._members:
            member.close()

    def _check_observations(self, observations: Arrays) -> None:
        for name, array in observations.items():
            if not is_finite(array):
                raise self._fault(_first_bad(array), f"returned NaN or infinity in its observation {name}".rstrip())

    def _check_rewards(self, rewards: Array) -> None:
        if not is_finite(rewards):
            raise self._fault(_first_bad(rewards), f"returned the reward {rewards[_first_bad(rewards)]}")

    def _fault(self, index: int, what: str) -> MemberFault:
        doing = f"step with action {self._rows[index]}" if self._doing == "step" else self._doing
        return MemberFault(self._first + index, doing, what)


def read_info(info: Mapping[str, Any], key: str) -> float:
    """Return the number an environment reports under `key`, or under a dotted path; 0.0 where it reports none."""
    value: Any = info.get(key)
    if value is None and "." in key:
        value = info
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    if value is None:
        return 0.0
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise BadOutcome(f"reported the info {key!r} as {type(value).__name__}, which is not one number")
    return float(array.reshape(()))


def _first_bad(array: Array) -> int:
    return int(np.argmin(np.isfinite(array.reshape(len(array), -1)).all(axis=1)))
