"""`lab play`: on film, in a window, by a hand and under testers; what is not there is told in one line."""

import csv
import json
from pathlib import Path

import mujoco.viewer
import pytest
import torch
from typer.testing import CliRunner

from rl_lab.cli.main import app
from rl_lab.cli.playing import play
from rl_lab.environments import joystick
from rl_lab.environments.counting import Counting
from rl_lab.robots import tester_plots, viewer
from tests.film_reader import read_film

SMALL = ("--num-envs", "2", "--frame-size", "64,48")
UNSEEN = ("logging=quiet", "training.eval_frequency=null", "training.checkpoint_frequency=null")  # only the end counts


@pytest.fixture(scope="module")
def robot(tmp_path_factory):
    """A run of a robot that has learned nothing yet."""
    path = tmp_path_factory.mktemp("play") / "robot"
    words = [
        "train",
        "+experiment=rotunbot_flat_ppo",
        "budget=tiny",
        "--run-dir",
        str(path),
        "environment.episode_s=20",
        *UNSEEN,
    ]
    assert CliRunner().invoke(app, words).exit_code == 0
    return path


@pytest.fixture(autouse=True)
def no_display(monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)


def film(path):
    """Return size, pictures per second and number of pictures of a file."""
    pictures, fps = read_film(path)
    count, height, width, _ = pictures.shape
    return (width, height), fps, count


def said(result):
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


class Window:
    """Takes the place of MuJoCo's window, which is closed after some steps and in which keys are pressed."""

    def __init__(self, model, data, *, key_callback, **options):
        self.data, self.press, self.heights, self.is_closed = data, key_callback, [], False

    def is_running(self):
        return len(self.heights) < 4

    def lock(self):
        return torch.no_grad()  # any context

    def sync(self):
        self.heights.append(float(self.data.qpos[2]))
        if self.press:
            self.press(265)

    def close(self):
        self.is_closed = True


@pytest.fixture
def windows(monkeypatch):
    opened = []
    monkeypatch.setenv("DISPLAY", ":7")
    monkeypatch.setenv("MUJOCO_GL", "egl")

    def launch(model, data, **options):
        opened.append(Window(model, data, **options))
        return opened[-1]

    monkeypatch.setattr(viewer, "_check_display", lambda: None)
    monkeypatch.setattr(mujoco.viewer, "launch_passive", launch)
    return opened


class Stick:
    axes = (0.5, -1.0, 0.0, 0.25)

    def __init__(self, index=0):
        pass

    def get_axis(self, index):
        return self.axes[index]

    def get_numaxes(self):
        return len(self.axes)

    def get_numbuttons(self):
        return 0

    def get_instance_id(self):
        return 0

    def get_name(self):
        return "stick"


@pytest.fixture
def stick(monkeypatch):
    """A joystick is connected."""
    pygame = joystick._pygame()
    monkeypatch.setattr(pygame.joystick, "get_count", lambda: 1)
    monkeypatch.setattr(pygame.joystick, "Joystick", Stick)


def test_a_robot_is_filmed_in_real_time(robot, lab):
    found = said(lab("play", robot, "--video", "--record-length", 10, "--fps", 25, "--frame-size", "64,48", "--json"))
    assert (found["steps"], found["episodes"], found["return"]) == (10, 0, None)
    assert film(found["video"]) == ((64, 48), 25.0, 5)  # of 50 steps a second
    assert Path(found["video"]).parent == robot / "media"


def test_without_a_display_a_film_is_made_and_said(robot, lab, fails):
    result = lab("play", robot, "--record-length", 2, "--frame-size", "64,48")
    assert "no display for the viewer; a video is made instead" in result.stderr
    assert "video: " in result.stdout
    assert "there is no display" in fails(lab("play", robot, "--keyboard"), 2)


def test_the_window_shows_the_robot_until_it_is_closed(robot, lab, windows):
    result = lab("play", robot)
    assert "played: 4 steps" in result.stdout
    (window,) = windows
    assert window.is_closed
    assert window.press is None
    assert window.heights[0] == pytest.approx(0.4, abs=0.05)


def test_a_display_that_is_not_there(robot, lab, fails, monkeypatch):
    monkeypatch.setenv("DISPLAY", ":9876")
    monkeypatch.setenv("MUJOCO_GL", "egl")
    assert "the viewer cannot open a window" in fails(lab("play", robot), 1)


def test_keys_command_the_robot(robot, lab, windows, monkeypatch):
    held = watch_commands(monkeypatch)
    found = said(lab("play", robot, "--keyboard", "--json"))
    assert (found["steps"], found["video"]) == (4, None)
    speeds = [command[0][0] for command in held]
    assert speeds == pytest.approx([0.0, *(speeds[1] * index for index in range(1, len(speeds)))])
    assert speeds[1] > 0.0


def watch_commands(monkeypatch):
    from rl_lab.robots.managers.commands import CommandManager

    held, steered = [], CommandManager._steered

    def watched(self, state):
        value = steered(self, state)
        if self.fixed is not None:
            held.append(value.tolist())
        return value

    monkeypatch.setattr(CommandManager, "_steered", watched)
    return held


def test_a_joystick_commands_one_robot(robot, lab, stick, monkeypatch):
    held = watch_commands(monkeypatch)
    wide = [word for axis in ("vx", "vy") for word in ("--override", f"environment.commands.{axis}=[-3,3]")]
    words = ("--joystick", "--joystick-scale", "2,1,3", "--video", "--record-length", 2, *SMALL, *wide)
    assert said(lab("play", robot, *words, "--json"))["steps"] == 2
    # Forward is axis 1, left axis 0, turn axis 3, all negated; -0.75 rad/s is more than the task knows.
    assert held[-1] == [[2.0, -0.5, -0.5]]


def test_a_joystick_that_is_not_there(robot, lab, fails, stick, monkeypatch):
    monkeypatch.setattr(Stick, "axes", (0.0, 0.0))
    assert fails(lab("play", robot, "--joystick"), 2) == "error: --joystick: 'stick' has 2 axes, 4 are needed"
    monkeypatch.setattr(joystick._pygame().joystick, "get_count", lambda: 0)
    assert fails(lab("play", robot, "--joystick"), 2).startswith("error: --joystick: none is connected")


def test_testers_write_tables_films_and_plots(robot, lab):
    result = lab("play", robot, "--testers", "zero", "--test-length", 4, "--video", *SMALL)
    assert result.exit_code == 0, result.stderr
    (row,) = (line.split() for line in result.stdout.splitlines() if line.split()[:1] == ["zero"])
    assert row[1:4] == ["-", "-", "0"]  # errors are not known before a second is over
    names = {path.name for path in (robot / "test").iterdir() if path.name[0] not in "xy"}
    assert names == {"summary.csv", "zero.csv", "zero.png", "zero_video.mp4"}
    assert film(robot / "test" / "zero_video.mp4") == ((64, 48), 50.0, 4)


def test_another_solver_plays_the_same_policy(robot, lab, monkeypatch):
    monkeypatch.setattr(tester_plots, "find_spec", lambda name: None)  # without matplotlib there are no plots

    def table(*options):
        words = [word for option in options for word in ("--override", f"environment.{option}")]
        chosen = ("--testers", "y", "--testers", "x,y", "--test-length", 4)
        return said(lab("play", robot, *chosen, *SMALL, *words, "--json"))["testers"]

    (own, _), (other, second) = table(), table("simulation.timestep=0.0025", "control.substeps=8")
    assert own != other
    assert own["torque_rms"] == pytest.approx(other["torque_rms"], rel=0.2)
    rows = list(csv.DictReader((robot / "test" / "summary.csv").read_text().splitlines()))
    assert [row["tester"] for row in rows] == [other["tester"], second["tester"]] == ["y", "x"]
    assert not (robot / "test" / "y.png").exists()


def test_words_that_do_not_fit(robot, lab, fails):
    def line(*words):
        return fails(lab("play", robot, *words), 2)

    assert "only one of them can command" in line("--joystick", "--testers", "all")
    assert "unknown tester 'sideways'" in line("--testers", "x,sideways", *SMALL)
    assert "only options of the environment" in line("--override", "training.total_timesteps=3")
    assert "--num-envs says how many worlds" in line("--override", "environment.num_envs=8")
    assert "did you mean 'backend'?" in line("--override", "environment.simulation.backendd=warp")
    assert "expected 3 numbers" in line("--joystick-scale", "1,2")
    assert "16 to 8192" in line("--frame-size", "1,9")


def test_a_run_that_draws_nothing(train, lab, fails):
    assert train("training.total_timesteps=64").exit_code == 0
    assert "the viewer shows robots, not 'tensor/CartPole': --video" in fails(lab("play"), 2)
    assert "'tensor/CartPole' draws no pictures" in fails(lab("play", "--video"), 2)
    assert "command a robot, not 'tensor/CartPole'" in fails(lab("play", "--testers", "x"), 2)
    assert not list(Path("experiments").glob("*/media/*play*"))


def test_any_environment_that_draws_is_filmed(lab, tmp_path):
    words = (
        "+experiment=ppo_cartpole",
        "budget=tiny",
        "--run-dir",
        "run",
        "environment.env_kwargs.max_episode_steps=8",
    )
    assert lab("train", *words, *UNSEEN).exit_code == 0
    found = said(lab("play", "run", "--video", "--record-length", 10, "--frame-size", "60,40", "--json"))
    assert film(found["video"])[::2] == ((60, 40), 10)
    assert (found["episodes"], found["return"]) == (1, 8.0)


def test_returns_are_those_of_whole_episodes():
    env = Counting(1, min_length=3, max_length=3)
    looks = iter([True] * 7 + [False])
    found = play(env, lambda obs, is_first: torch.zeros(1, dtype=torch.int64), lambda: next(looks), seed=0, steps=None)
    assert (found["steps"], found["episodes"]) == (7, 2)
