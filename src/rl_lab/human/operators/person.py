"""An operator who is a person: takes over, jogs, hands back, pauses and says what was a success.

Whatever device is used, wishes come together on a `Desk`; here they become orders, one step at a time.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rl_lab.core import Actions, Carry, ConfigError, Observation
from rl_lab.core.operator import FAILURE, SUCCESS, UNDECIDED, Operator, Orders, Station
from rl_lab.core.pace import Pace
from rl_lab.human.operators.desk import Desk, Ending, OnLoss, Wishes
from rl_lab.human.operators.jogging import Jogger, Jogging

POLL_S = 0.05  # seconds between two looks while nothing is done
VERDICTS: dict[Ending, float] = {"success": SUCCESS, "failure": FAILURE, "abort": UNDECIDED}


@dataclass(frozen=True)
class Rules:
    """How a person and a robot get along.

    Attributes:
        idle_steps: Whether steps go by while a person who is in control does nothing; else the robot holds and nothing
            is recorded.
        on_loss: When a device or a browser is gone while it is in control: pause (the robot holds) or hand_back.
        trust_task: Whether an episode nobody spoke of is a success exactly if the task rewards its last step; else it
            is undecided.
        steps_per_second: Of the control loop, at most; null: those of the environment.
    """

    idle_steps: bool = False
    on_loss: OnLoss = "pause"
    trust_task: bool = True
    steps_per_second: float | None = None


class Person(Operator):
    """Subclasses bring wishes to `desk`: in `_poll`, which is called between steps, or from threads of their own.

    Args:
        jogging: What can be moved, and how.
        rules: How a person and a robot get along.
    """

    is_live = True
    name = ""

    def __init__(self, jogging: Jogging, rules: Rules | None = None) -> None:
        self._jogging, self._rules = jogging, rules or Rules()
        self._pace: Pace | None = None
        self._lines: deque[str] = deque()  # for people, not said yet
        self._say: Callable[[str], None] | None = None
        self._is_holding = self._is_open = False
        self._label: float | None = None  # of the running episode
        self._labels: list[float | None] = []  # of those that ended and were not asked about
        self.episode_step = 0

    def bind(self, station: Station) -> None:
        """Sit down at one robot."""
        env = station.env
        if env.num_envs != 1:
            raise ConfigError(f"a person watches one robot (environment.num_envs=1), not {env.num_envs}")
        rate = self._rules.steps_per_second or env.spec.steps_per_second
        if rate is not None and not rate > 0.0:
            raise ConfigError(f"rules.steps_per_second must be more than 0, not {rate}")
        self.station, self._pace = station, None if rate is None else Pace(1.0 / rate)
        self._jogger = Jogger(self._jogging, env)
        self.desk = Desk({hand: tuple(entries) for hand, entries in self._jogger.hands.items()}, self._rules.on_loss)
        self._open()

    @abstractmethod
    def _open(self) -> None:
        """Open the device. Raises ConfigError where there is none."""

    def _poll(self) -> None:
        """Bring what the device says to the desk."""

    def _show(self, obs: Observation | None) -> None:
        """Show what is seen: at every step, and without observations while nothing is done."""

    def report_to(self, say: Callable[[str], None]) -> None:
        """Be given a way to tell people one line."""
        self._say = say
        self._tell()

    def is_ready(self) -> bool:
        """Wait for the time of the next step; not while there is a pause, or somebody in control who does nothing."""
        if self._pace is not None and not self._is_holding:
            self._pace.wait()
        self._poll()  # after the wait: the newest counts, and nobody who is gone
        self._tell()
        wishes = self.desk.look()
        if wishes.paused or (self.desk.is_idle and not self._rules.idle_steps):
            if not self._is_holding:
                self.station.env.instruct("hold")
                self._is_holding = True
            self._show(None)
            self.desk.wait(POLL_S)
            return False
        self._is_holding = False
        return True

    def watch(self, obs: Observation, proposed: Actions, carry: Carry, *, is_first: Tensor) -> tuple[Orders, Carry]:
        """Let the policy act, or whoever is in control; an episode somebody spoke of ends with a step that is still."""
        assert isinstance(proposed, Tensor)
        self._enter(obs, is_first)
        wishes = self.desk.take_step()
        is_ended = wishes.ending is not None and self._end(wishes.ending)
        is_acting = wishes.controller is not None or is_ended
        action = proposed
        if is_acting:
            action = self._jogged(wishes, obs, is_ended).to(proposed)
        else:
            self._jogger.watch(proposed[0])
        self._note(wishes, is_acting)
        return Orders(action, torch.full_like(is_first, is_acting)), carry

    def lead(self, obs: Observation, carry: Carry, *, is_first: Tensor) -> tuple[Orders, Carry] | None:
        """Let whoever is in control act; words on the episode also count, with a step that is still."""
        wishes = self.desk.take_led_step()
        if wishes is None:
            return None
        self._enter(obs, is_first)
        is_ended = wishes.ending is not None and self._end(wishes.ending)
        action = self._jogged(wishes, obs, is_ended or wishes.controller is None)
        self._note(wishes, True)
        return Orders(action.to(is_first.device), torch.ones_like(is_first)), carry

    def wants_control(self) -> bool:
        """Look at the device and the page, as often as it is asked."""
        self._poll()
        wishes = self.desk.look()
        return bool(wishes.paused) or wishes.is_led

    def _enter(self, obs: Observation, is_first: Tensor) -> None:
        """Begin a step."""
        if bool(is_first[0]):
            self._begin()
        self._is_open, self.episode_step = True, self.episode_step + 1
        self._show(obs)

    def _jogged(self, wishes: Wishes, obs: Observation, is_still: bool) -> Tensor:
        """Return the action [1, D] of a person, who sees the robot now, however long nothing was done."""
        self.name = wishes.name or wishes.ended_by
        self.station.env.instruct("fresh")
        return self._jogger.act(_still(wishes) if is_still else wishes, obs)[None]

    def _note(self, wishes: Wishes, is_acting: bool) -> None:
        """Take note of a step that is about to be done."""

    def judge(self, final_obs: Observation, rewards: Tensor) -> Tensor:
        """Return what was said of the episodes that ended; of the others, what the task says."""
        if self._is_open and len(self._labels) < len(rewards):
            self._close_episode()
        known, self._labels = self._labels[: len(rewards)], self._labels[len(rewards) :]
        known = [*[None] * (len(rewards) - len(known)), *known]  # those before were not watched
        task = torch.where(rewards > 0.0, SUCCESS, FAILURE) if self._rules.trust_task else rewards.new_zeros(len(known))
        said = [float(own) if label is None else label for label, own in zip(known, task.tolist(), strict=True)]
        return torch.tensor(said, device=rewards.device)

    def is_closed(self, hand: str) -> bool:
        """Return whether a gripper is closed, or about to be."""
        wishes = self.desk.look()
        return wishes.closes.get(hand, self._jogger.is_closed(hand))

    def tell(self, line: str) -> None:
        """Let people at the terminal know, from any thread."""
        self._lines.append(line)

    def _tell(self) -> None:
        while self._lines and self._say is not None:
            self._say(self._lines.popleft())

    def _begin(self) -> None:
        if self._is_open:
            self._close_episode()
        self.episode_step = 0

    def _close_episode(self) -> None:
        self._labels.append(self._label)
        self._label, self._is_open = None, False

    def _end(self, ending: Ending) -> bool:
        """Say what the episode was; return whether the environment ends it."""
        heard = self.station.env.instruct(ending)
        if heard or ending != "abort":
            self._label = VERDICTS[ending]
        if not heard:
            end = "cannot be called off" if ending == "abort" else f"ends by itself, as a {ending}"
            self.tell(f"the episode {end}: {self.station.env.spec.id!r} listens to nobody")
        return heard


def _still(wishes: Wishes) -> Wishes:
    return Wishes(hand=wishes.hand, closes=wishes.closes)
