"""Who took over and when, as events of a run: by env step, and in UTC beside everything that must repeat to the bit."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor

from rl_lab.core.errors import LabError
from rl_lab.core.operator import MAX_NAME_BYTES, POLICY, operator_id
from rl_lab.tracking.tracker import Tracker


class Interventions:
    """Writes `takeover` and `hand_back` events, and the names behind the numbers.

    Args:
        event: Writes an event of a kind and with fields, `Tracker.event` for instance.
        introduce: Is given all names by number whenever there is a new one.
    """

    def __init__(self, event: Callable[..., None], introduce: Callable[[Mapping[str, str]], None]) -> None:
        self._event, self._introduce = event, introduce
        self._names: dict[int, str] = {}
        self._acting: list[int] = []  # who acts in each copy
        self._elsewhere: dict[str, str] = {}  # who acts beside each actor; empty: the policy

    def id_of(self, name: str) -> int:
        """Return the number of one who acts, whose name is noted when it comes up first."""
        if len(name.encode()) > MAX_NAME_BYTES:
            raise LabError(f"operator {name[:20]!r}...: a name has {MAX_NAME_BYTES} bytes at most")
        number = operator_id(name)
        if (known := self._known(number, name)) != name:
            raise LabError(f"operators {known!r} and {name!r} have the same number: rename one of them")
        return number

    def say(self, line: str) -> None:
        """Tell people one line."""
        self._event("operator", message=line)

    def record(self, operators: Tensor, first_step: int, seconds: Sequence[float] | None) -> None:
        """Note every change of who acts, [T, N] ids from env step `first_step` on; `seconds` since 1970 of each row."""
        num_envs = operators.shape[1]
        earlier = torch.tensor([self._acting or [POLICY] * num_envs], device=operators.device)
        ids = torch.cat([earlier, operators.long()])
        for row, copy in (ids[1:] != ids[:-1]).nonzero().tolist():
            before, after = (self._name(int(ids[row + later, copy])) for later in (0, 1))
            utc = _utc(time.time() if seconds is None else seconds[row])
            self._change(before, after, copy=copy, step=first_step + row * num_envs, utc=utc)
        self._acting = ids[-1].tolist()

    def hear(self, actor: str, name: str, step: int, seconds: float) -> None:
        """Note who acts beside an actor at env step `step` of the run, taken so many seconds since 1970.

        An empty name is the policy. What actors sent cannot be sent anew, so names of one number are told, not refused.
        """
        before = self._elsewhere.get(actor, "")
        if name == before:
            return
        if name and (known := self._known(operator_id(name), name)) != name:
            self.say(f"operators {known!r} and {name!r} have the same number: rename one of them")
        self._change(before, name, actor=actor, step=step, utc=_utc(seconds))
        self._elsewhere[actor] = name

    def get_state(self) -> dict[str, Any]:
        """Return the names and who acts."""
        return {"names": list(self._names.values()), "acting": self._acting, "elsewhere": dict(self._elsewhere)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `get_state`."""
        self._names = {operator_id(name): name for name in state["names"]}
        self._acting = list(state["acting"])
        self._elsewhere = dict(state.get("elsewhere", {}))  # earlier checkpoints have none

    def _known(self, number: int, name: str) -> str:
        """Return the name that has this number: this one, unless there was another before."""
        if number not in self._names:
            self._names[number] = name
            self._introduce({str(key): who for key, who in self._names.items()})
        return self._names[number]

    def _name(self, number: int) -> str:
        return "" if number == POLICY else self._names[number]

    def _change(self, before: str, after: str, **where: Any) -> None:
        for kind, name in (("hand_back", before), ("takeover", after)):
            if name:
                self._event(kind, operator=name, **where)


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def journal_of(tracker: Tracker) -> Interventions:
    """Return the journal of a run: events are the run's, names go into its manifest."""
    return Interventions(tracker.event, lambda names: tracker.run.write_manifest({"operators": dict(names)}))
