"""Films while training: when they are made, what they show, and that nothing else changes."""

import json
import os
import signal

import numpy as np
import pytest
import torch
from PIL import Image

from rl_lab.core import EnvironmentFault, RngStreams
from rl_lab.environments.counting import STEP, Counting
from rl_lab.orchestration.films import Films
from rl_lab.orchestration.signals import Interrupted
from rl_lab.tracking import film
from rl_lab.tracking.checkpoint import CheckpointStore
from rl_lab.tracking.fingerprint import tree_hash
from tests.orchestration.test_orchestrator import build

EVERY, LENGTH = 17, 6  # cycles are of 12 and of 9 env steps


class Drawing(Counting):
    """Draws how many steps of its episode are over."""

    def __init__(self, num_envs=1):
        super().__init__(num_envs, min_length=3, max_length=5)
        self.is_broken = self.is_closed = False

    def render(self):
        if self.is_broken:
            raise RuntimeError("no OpenGL\nhere")
        shade = int(self._steps[0]) * 10
        return torch.full((8, 8, 3), shade, dtype=torch.uint8)

    def reset(self, seed):
        obs = super().reset(seed)
        self._steps = obs[:, STEP].clone()
        return obs

    def step(self, actions):
        step = super().step(actions)
        self._steps = step.observations[:, STEP].clone()
        return step

    def close(self):
        self.is_closed = True


@pytest.fixture(autouse=True)
def as_png(monkeypatch):
    monkeypatch.setattr(film, "find_spec", lambda name: None)


def filmed(path, env=None, **options):
    orchestrator = build(path, **options)
    made = env or Drawing()
    orchestrator.films = Films(lambda: made, path / "media", RngStreams(7), every=EVERY, length=LENGTH)
    return orchestrator


def names(path):
    return [each.name for each in sorted((path / "media").iterdir())]


def shades(path):
    with Image.open(path) as shown:
        found = []
        for number in range(shown.n_frames):
            shown.seek(number)
            found.append(int(np.asarray(shown.convert("RGB"))[0, 0, 0]))
        return found


def events(path):
    return [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]


def without_clock(state):
    return {key: value for key, value in state.items() if key not in ("films", "tracker")}


def test_a_film_at_the_end_of_every_rollout_that_passes_another_multiple(tmp_path):
    orchestrator = filmed(tmp_path / "run")
    orchestrator.run()
    # Rollouts end at 12, 24 (past 17), 33, 42 (past 34), 51 (51), 60, 69 (68).
    assert names(tmp_path / "run") == [f"train_{step:09d}.png" for step in (24, 42, 51, 69)]
    env = Drawing()
    lengths = [env.episode_length(0, episode) for episode in range(LENGTH)]
    expected = [10 * step for length in lengths for step in range(length)][:LENGTH]
    assert shades(tmp_path / "run" / "media" / "train_000000024.png") == expected
    orchestrator.films.close()
    assert not any(event["kind"] == "not_filmed" for event in events(tmp_path / "run"))


def test_training_does_not_notice(tmp_path):
    with_films = filmed(tmp_path / "with")
    with_films.run()
    without = build(tmp_path / "without")  # seeds what is global
    without.run()
    assert tree_hash(without_clock(with_films.get_state())) == tree_hash(without_clock(without.get_state()))
    assert (tmp_path / "with" / "metrics.jsonl").read_bytes() == (tmp_path / "without" / "metrics.jsonl").read_bytes()


class Stopping(Drawing):
    """A signal comes in the middle of the second film."""

    steps = 0

    def step(self, actions):
        self.steps += 1
        if self.steps == LENGTH + 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().step(actions)


def test_a_film_that_is_stopped_is_made_after_the_resume(tmp_path):
    whole = filmed(tmp_path / "whole")
    whole.run()
    with pytest.raises(Interrupted):
        filmed(tmp_path / "run", Stopping()).run()
    assert names(tmp_path / "run") == ["train_000000024.png"]
    again = filmed(tmp_path / "run", seed=99)
    again.restore(CheckpointStore(tmp_path / "run" / "checkpoints").load_newest().state)
    again.run()
    assert tree_hash(without_clock(again.get_state())) == tree_hash(without_clock(whole.get_state()))
    assert names(tmp_path / "run") == names(tmp_path / "whole")
    for name in names(tmp_path / "whole"):
        files = [(tmp_path / run / "media" / name).read_bytes() for run in ("run", "whole")]
        assert files[0] == files[1]


@pytest.mark.parametrize("env", [Drawing(), Counting(1)], ids=["raises", "draws nothing"])
def test_what_cannot_be_filmed_is_told_once_and_training_goes_on(env, tmp_path):
    if isinstance(env, Drawing):
        env.is_broken = True
    orchestrator = filmed(tmp_path / "run", env)
    orchestrator.run()
    assert orchestrator.scheduler.is_finished()
    assert orchestrator.workflow.training
    (told,) = [event for event in events(tmp_path / "run") if event["kind"] == "not_filmed"]
    assert told["message"].startswith("training.video_frequency: no films (environment")
    assert "\n" not in told["message"]
    assert names(tmp_path / "run") == []


def test_an_environment_that_cannot_be_made_is_no_film_either(tmp_path):
    def make():
        raise EnvironmentFault("not here")

    orchestrator = build(tmp_path / "run")
    orchestrator.films = Films(make, tmp_path / "run" / "media", RngStreams(7), every=EVERY, length=LENGTH)
    orchestrator.run()
    (told,) = [event["message"] for event in events(tmp_path / "run") if event["kind"] == "not_filmed"]
    assert "no films (not here)" in told
    orchestrator.films.close()


def test_the_clock_goes_on_with_another_interval_or_begins_anew(tmp_path):
    def due(every, state, env_steps):
        films = Films(Drawing, tmp_path, RngStreams(7), every=every, length=1)
        films.set_state(state, env_steps)
        return next(step for step in range(env_steps, 100) if films.is_due(step))

    assert due(20, {"every": 10, "last": 3}, 35) == 40
    assert due(5, {"every": 10, "last": 3}, 32) == 35
    assert due(10, {"every": 10, "last": 2}, 35) == 35  # one that was due and not made
    assert due(10, None, 35) == 40


def test_remains_of_a_killed_process_go(tmp_path):
    remains, others = tmp_path / ".tmp-train_000000001-ab.mp4", tmp_path / ".tmp-play_000000001-ab.mp4"
    for path in (remains, others):
        path.touch()
    orchestrator, env = build(tmp_path / "run"), Drawing()
    films = Films(lambda: env, tmp_path, RngStreams(7), every=1, length=1)
    films.shoot(orchestrator.workflow, 3, orchestrator.tracker, lambda: False)
    assert sorted(path.name for path in tmp_path.glob("*") if path.is_file()) == [others.name, "train_000000003.png"]
    films.close()
    assert env.is_closed
