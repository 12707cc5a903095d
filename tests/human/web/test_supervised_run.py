"""A run under the eyes of people: what they do ends up on disk, and a pause can be left by a signal."""

import json
import os
import signal
import threading
from contextlib import closing, contextmanager

import pytest
import torch

from rl_lab.buffers.datasets.open import read_episodes
from rl_lab.config.allow_list import AllowList
from rl_lab.config.build import assemble, build
from rl_lab.config.resume import config_files, recompose
from rl_lab.config.targets import Targets
from rl_lab.core import ConfigError
from rl_lab.core.operator import operator_id
from rl_lab.orchestration.signals import Interrupted
from rl_lab.tracking.checkpoint import CheckpointStore
from rl_lab.tracking.run_directory import RunDirectory
from tests.human.bench import LONG_S
from tests.human.web.test_page import Client
from tests.workflows.teaching import TINY, composed

torch.set_num_threads(1)
FAST = (
    *("training.operator.dead_man_ms=1e6", "+training.operator.rules.steps_per_second=20"),  # slower than requests
    "~environment.env_kwargs.render_mode",  # no pictures, no OpenGL
)


@contextmanager
def opened(config, path):
    """Give the orchestrator of a run, restored where it has a checkpoint, and its operator."""
    parts = assemble(config, Targets(AllowList()))
    exists = path.exists()
    run = RunDirectory.open(path) if exists else RunDirectory.create(path.parent, "watched", 1, path)
    with closing(parts.env), closing(parts.operator):
        for file, text in config_files(parts).items():
            run.write_text(file, text)
        orchestrator = build(parts, run)
        with closing(orchestrator.evaluator.env):
            if exists:
                orchestrator.restore(CheckpointStore(run.checkpoints).load_newest().state)
            yield orchestrator, parts.operator


class Person(threading.Thread):
    """Does what a person does at the page, beside the run; what went wrong is raised by `join`."""

    def __init__(self, deeds):
        super().__init__(daemon=True)
        self._deeds, self._error = deeds, None
        self.start()

    def run(self):
        try:
            self._deeds()
        except (AssertionError, OSError) as error:
            self._error = error
            os.kill(os.getpid(), signal.SIGTERM)

    def done(self):
        self.join(LONG_S)
        if self._error is not None:
            raise self._error


def wait_for(is_true):
    for _ in range(round(LONG_S / 0.01)):
        if is_true():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it never came about")


def events(run, *kinds):
    rows = [json.loads(line) for line in run.events_file.read_text().splitlines()]
    return [row for row in rows if row["kind"] in kinds]


def test_a_pause_is_left_by_a_signal_and_the_run_goes_on_later(tmp_path):
    path = tmp_path / "run"
    with opened(composed("supervised_insertion", tmp_path, *TINY, *FAST), path) as (orchestrator, operator):
        anna = Client(operator)
        anna.join("anna")
        anna.do("pause")

        def stop():
            wait_for(lambda: operator._is_holding)  # the run has come to where people are asked
            os.kill(os.getpid(), signal.SIGTERM)

        person = Person(stop)
        with pytest.raises(Interrupted, match="SIGTERM"):
            orchestrator.run()
        person.done()
        assert orchestrator.counters.env_steps == 32  # of the expert; not one of practice
        assert operator.episode_step == 0
        anna.connection.close()

    run = RunDirectory.open(path)
    with opened(recompose(run), path) as (orchestrator, operator):
        assert orchestrator.counters.env_steps == 32
        anna = Client(operator)
        anna.join("anna")
        anna.do("take_over")  # she holds from the first step on

        def act():
            anna.do("jog", motion={"z": 1})
            wait_for(lambda: operator.episode_step >= 1)
            anna.do("jog", motion={"z": 0})
            anna.do("failure")
            wait_for(lambda: operator.state()["last_verdict"] is not None)
            anna.do("hand_back")

        person = Person(act)
        orchestrator.run()
        person.done()
        anna.connection.close()

    number = operator_id("anna")
    assert run.read_manifest()["operators"] == {str(number): "anna"}
    watched = [
        episode
        for episode in read_episodes(path / "buffers/demonstrations/dataset")
        if "operator_time" in episode.infos
    ]
    first = next(episode for episode in watched if episode.infos["operator"].any())
    by_hand = first.infos["operator"] == number
    begun = int(by_hand.argmax())  # the episode had begun while the expert acted
    assert by_hand[begun:].all()
    assert (first.infos["is_intervention"] == by_hand).all()
    assert (first.infos["verdict"][-1], first.terminated) == (-1.0, True)
    assert set(first.actions[begun:-1, 2]) <= {0.0, 1.0}
    assert first.actions[begun:, 2].max() == 1.0
    assert (first.actions[-1] == 0.0).all()
    takeover, *_ = marks = events(run, "takeover", "hand_back")
    assert (takeover["kind"], takeover["operator"], takeover["step"]) == ("takeover", "anna", 32)
    assert [mark["kind"] for mark in marks][:2] == ["takeover", "hand_back"]
    assert marks[1]["step"] == 32 + by_hand.sum()
    assert "operator_time" not in run.metrics_file.read_text()


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("environment.num_envs=2", r"training.operator: a person watches one robot \(environment.num_envs=1\), not 2"),
        ("training.operator.jogging.hands.arm.x=move.u", "training.operator: unknown jogging.hands.arm.x 'move.u'"),
        ("training.operator.jogging.mod=velocity", "unknown argument of Jogging 'mod'"),
        ("training.operator.listening.host=0.0.0.0", "training.operator: listening.operator_token: missing"),
        ("training.overlap=strict", r"training.overlap: a person \(training.operator\) acts now"),
        ("operator@training.operator=keyboard", "training.operator: device /dev/tty is no terminal"),
        ("operator@training.operator=spacemouse", "training.operator: device: no SpaceMouse is connected"),
    ],
)
def test_bad_input_is_one_line(override, line, tmp_path):
    if override.endswith("keyboard") and os.isatty(0):
        pytest.skip("there is a terminal")
    with pytest.raises(ConfigError, match=line) as caught:
        assemble(composed("supervised_insertion", tmp_path, *TINY, override), Targets(AllowList()))
    assert "\n" not in str(caught.value)
