"""Episodes as mp4 files. Recording only looks: a run with videos gives the same bits as one without."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from rl_lab.core.mp4 import Mp4Writer, find_ffmpeg
from rl_lab.environments.exact.adapter import LayerState
from rl_lab.environments.hosting.foreign import config_error
from rl_lab.environments.wrappers.base import LabWrapper, Outcome, check_number

DEFAULT_FPS = 30


class Video(LabWrapper):
    """Records episodes of the first copy as `episode-000012.mp4`; needs env_kwargs.render_mode: rgb_array.

    A file has its name once its episode is over; until then it is hidden. What is recorded after a resume in the middle
    of an episode says at which step it begins. An existing file is kept: the new one gets a number.

    Args:
        folder: Where the files go; made when the first one begins.
        every: Record every so many episodes, beginning with the first.
        fps: Pictures per second; null: as the environment says.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], *, folder: str, every: int = 1, fps: int | None = None) -> None:
        if env.render_mode != "rgb_array":
            mend = "environment.env_kwargs.render_mode=rgb_array"
            raise config_error(f"environment.wrappers.video needs {mend}, not {env.render_mode}")
        if not isinstance(folder, str | os.PathLike):
            raise config_error(f"environment.wrappers.video needs a folder, not {folder!r}")
        self._folder = Path(folder)
        self._every: int = check_number("video.every", every, low=1, is_count=True)
        known = env.metadata.get("render_fps") or DEFAULT_FPS
        self._fps = known if fps is None else check_number("video.fps", fps, low=1)
        _check_ffmpeg()
        super().__init__(env)
        self._is_first_copy = False  # until told so: samples and probes are not worth a film
        self._episode, self._step = -1, 0
        self._film: _Film | None = None

    def assign_copy(self, index: int) -> None:
        """Record if this is the first copy of the vector environment."""
        self._is_first_copy = index == 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the next film when it is its turn."""
        self._end_film()
        result = self.env.reset(seed=seed, options=options)
        self._episode, self._step = self._episode + 1, 0
        self._begin_film()
        return result

    def step(self, action: Any) -> Outcome:
        """Add a picture, and end the film with the episode."""
        outcome = self.env.step(action)
        self._step += 1
        if self._film is not None:
            self._film.add(self.env.render())
            if outcome[2] or outcome[3]:
                self._end_film()
        return outcome

    def close(self) -> None:
        """Keep what was recorded so far."""
        self._end_film()
        super().close()

    def get_state(self) -> LayerState:
        """Return where it is."""
        return {"episode": self._episode, "step": self._step}

    def set_state(self, state: LayerState) -> None:
        """Go on in the middle of an episode."""
        self._end_film()
        self._episode, self._step = state["episode"], state["step"]
        self._begin_film()

    def _begin_film(self) -> None:
        if self._is_first_copy and self._episode % self._every == 0:
            since = f"-from-step-{self._step}" if self._step else ""
            self._film = _Film(self._folder, f"episode-{self._episode:06d}{since}", self._fps)
            self._film.add(self.env.render())

    def _end_film(self) -> None:
        if self._film is not None:
            self._film.close()
            self._film = None


class _Film:
    """One mp4 file, hidden until it is whole; of a killed process the hidden part stays."""

    def __init__(self, folder: Path, stem: str, fps: float) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._stem, self._pictures = folder, stem, 0
        self._part = folder / f".{stem}-{os.getpid()}-{id(self)}.mp4"
        self._writer = Mp4Writer(self._part, fps)

    def add(self, picture: Any) -> None:
        """Append one picture."""
        assert isinstance(picture, np.ndarray), type(picture)
        self._writer.add(picture)
        self._pictures += 1

    def close(self) -> None:
        """Show the file; a film of no step is dropped."""
        self._writer.close()
        if self._pictures < 2:
            self._part.unlink(missing_ok=True)
            return
        for number in itertools.count(1):
            path = self._folder / f"{self._stem}{f'-{number}' if number > 1 else ''}.mp4"
            try:
                os.link(self._part, path)  # fails where a file is, so that none is ever overwritten
            except FileExistsError:
                continue
            self._part.unlink()
            return


def _check_ffmpeg() -> None:
    """Say what is missing before anything is recorded."""
    try:
        find_ffmpeg()
    except ImportError as error:
        needed = "needs ffmpeg: pip install 'rl-lab[video]'"
        raise config_error(f"environment.wrappers.video {needed} ({error})") from error
