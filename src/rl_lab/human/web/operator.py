"""People with a browser as the operator of a run: pictures, take over, jog, words on the episode, pauses."""

from __future__ import annotations

import time
from typing import Any

from torch import Tensor

from rl_lab.core import Box, ConfigError, EnvironmentFault, Observation
from rl_lab.human.operators.desk import Wishes
from rl_lab.human.operators.jogging import Jogging
from rl_lab.human.operators.person import Person, Rules
from rl_lab.human.web.access import Access, Listening
from rl_lab.human.web.billboard import Billboard
from rl_lab.human.web.server import PageServer
from rl_lab.human.web.sessions import Sessions

SCENE = "scene"  # what the environment draws of itself
QUIET_S = 1.0  # without a step: the run is busy with something else
RECENT = 500  # steps of the intervention rate


class WebOperator(Person):
    """Serves a page to any number of people, one of whom may act.

    Args:
        jogging: What can be moved, and how.
        listening: Where the page is served, and who may open it.
        rules: How a person and a robot get along.
        dead_man_ms: Milliseconds without a word from the browser that is in control, after which it has let go.
        fps: Pictures per second, at most.
    """

    def __init__(
        self,
        jogging: Jogging,
        *,
        listening: Listening | None = None,
        rules: Rules | None = None,
        dead_man_ms: float = 600.0,
        fps: float = 10.0,
    ) -> None:
        super().__init__(jogging, rules)
        if not dead_man_ms >= 200.0 or not fps > 0.0:
            raise ConfigError(f"dead_man_ms is 200 or more and fps more than 0, not {dead_man_ms} and {fps}")
        self._listening, self._dead_man_s, self._fps = listening or Listening(), dead_man_ms / 1000.0, fps
        self._access, self._billboard = Access(self._listening), Billboard()
        self._server: PageServer | None = None
        self._next_picture = self._last_step = 0.0
        self._trouble = ""  # why there is no picture
        self._steps = self._interventions = self._episodes = 0
        self._rate = 0.0  # share of recent steps by hand
        self._last_verdict: str | None = None

    @property
    def url(self) -> str:
        """Return the page's address, with the operators' token if there is one."""
        assert self._server is not None, "the page is served once the operator is bound"
        token = self._access.operator_token
        return self._server.url if token is None else f"{self._server.url}?token={token}"

    def _open(self) -> None:
        self._sessions = Sessions(self.desk, self._dead_man_s, self.is_closed)
        self._server = PageServer(self._listening, self._access, self._sessions, self._billboard, self.state)
        self.tell(f"people may look on at {self.url}")

    def close(self) -> None:
        """End the page."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def _poll(self) -> None:
        why = self._sessions.check_silence()
        if why is not None:
            holds = self._rules.on_loss == "pause"
            self.tell(f"{why}: {'the robot holds' if holds else 'the policy acts'}")

    def _note(self, wishes: Wishes, is_acting: bool) -> None:
        self._last_step = time.monotonic()
        self._steps += 1
        self._interventions += is_acting
        window = min(self._steps, RECENT)
        self._rate += (is_acting - self._rate) / window
        if wishes.ending is not None:
            self._last_verdict = f"{wishes.ending} ({wishes.ended_by})"

    def judge(self, final_obs: Observation, rewards: Tensor) -> Tensor:
        """Return what was said of the episodes that ended, and count them."""
        self._episodes += len(rewards)
        return super().judge(final_obs, rewards)

    def state(self) -> dict[str, Any]:
        """Return what the page shows."""
        wishes, counters = self.desk.look(), self.station.counters
        facts = self.station.env.describe()
        return {
            "task": facts.get("prompt") or self.station.env.spec.id,
            "controller": wishes.name or None,
            "controller_key": wishes.controller and wishes.controller[:8],
            "paused": wishes.paused,
            "is_stepping": time.monotonic() - self._last_step < QUIET_S,
            "hand": wishes.hand,
            "hands": {hand: list(axes) for hand, axes in self._jogger.hands.items()},
            "is_closed": self.is_closed(wishes.hand),
            "motion": dict(wishes.motion),
            "env_steps": counters.env_steps,
            "total_steps": self.station.total_steps,
            "episodes": max(counters.episodes, self._episodes),  # an actor is not told those of the run
            "episode_step": self.episode_step,
            "max_episode_steps": self.station.env.spec.max_episode_steps,
            "intervention_rate": round(self._rate, 4),
            "interventions": self._interventions,
            "watched_steps": self._steps,
            "last_verdict": self._last_verdict,
            "people": self._sessions.people,
            "beat_ms": self._dead_man_s * 1000.0 / 5.0,
            "no_picture": self._trouble,
        }

    def _show(self, obs: Observation | None) -> None:
        now = time.monotonic()
        if self._billboard.num_streams == 0 or now < self._next_picture:
            return
        self._next_picture = now + 1.0 / self._fps
        pictures = {} if obs is None else self._cameras(obs)
        if not pictures and (scene := self._scene()) is not None:
            pictures = {SCENE: scene}
        if pictures:
            self._billboard.show(pictures)

    def _cameras(self, obs: Observation) -> dict[str, Tensor]:
        """Return the pictures among the observations of the first copy, [H, W, 3] each."""
        space = self.station.env.spec.observation
        parts = obs if isinstance(obs, dict) else {"camera": obs}
        spaces = space if isinstance(space, dict) else {"camera": space}
        return {
            name: leaf[0].permute(1, 2, 0).cpu().contiguous()
            for name, leaf in parts.items()
            if isinstance(box := spaces.get(name), Box) and _is_picture(box)
        }

    def _scene(self) -> Tensor | None:
        if self._trouble:
            return None
        try:
            scene = self.station.env.render()
        except EnvironmentFault as fault:  # nobody's run ends because somebody looks
            scene, self._trouble = None, str(fault)
        else:
            if scene is None:
                self._trouble = "no pictures: environment.env_kwargs.render_mode=rgb_array draws them"
        return scene


def _is_picture(box: Box) -> bool:
    return len(box.shape) == 3 and box.shape[0] == 3 and str(box.dtype) == "torch.uint8"
