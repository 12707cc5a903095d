"""What a robot shows is checked: sizes, kinds and numbers, cameras that stand still, clocks that do not."""

import time

import numpy as np
import pytest

from rl_lab.core.errors import ConfigError, EnvironmentFault
from rl_lab.environments.gymnasium import GymnasiumEnv
from rl_lab.human.cell.env import CellEnv
from tests.human.test_driver import Cart


class Filmed(Cart):
    """A cart whose camera and numbers can be spoiled."""

    def __init__(self):
        super().__init__()
        self.num_pictures, self.is_frozen = 0, False
        self.spoil_picture = self.spoil_numbers = lambda value: value

    def observe(self):
        return self.spoil_numbers(super().observe())

    def draw(self, camera, height, width):
        self.num_pictures += not self.is_frozen
        return self.spoil_picture(np.full((height, width, 3), self.num_pictures % 256, np.uint8))


def make_filmed(**options):
    return CellEnv(Filmed(), "filmed", observations="pixels", size=8, max_action_age_s=None, **options)


def begun(**options):
    env = make_filmed(**options)
    env.reset(seed=0)
    return env, env._driver


def go(env, place):
    return env.step(np.array([place], np.float32))[4]["is_held"]


PICTURES = {
    "camera 'cam_high' shows float32 of shape (8, 8, 3), not uint8 of shape (8, 8, 3)": lambda x: x.astype(np.float32),
    "camera 'cam_high' shows uint8 of shape (4, 8, 3), not uint8 of shape (8, 8, 3)": lambda x: x[::2],
    "camera 'cam_high' shows object of shape (), not uint8 of shape (8, 8, 3)": lambda x: None,
}
NUMBERS = {
    "the robot's 'state' is not finite: place": lambda x: {"state": np.array([np.nan], np.float32)},
    "the robot's 'state' is float32 of shape (2,), not 1 numbers": lambda x: {"state": np.zeros(2, np.float32)},
    "the robot shows no 'state', only arm": lambda x: {"arm": x["state"]},
}


@pytest.mark.parametrize("text", [*PICTURES, *NUMBERS])
@pytest.mark.parametrize("at", ["reset", "step"])
def test_what_does_not_fit_is_one_line_that_names_it_and_the_robot_holds(text, at):
    env, driver = begun()
    if text in PICTURES:
        driver.spoil_picture = PICTURES[text]
    else:
        driver.spoil_numbers = NUMBERS[text]
    with pytest.raises(EnvironmentFault) as fault:
        env.reset() if at == "reset" else go(env, 0.1)
    assert str(fault.value) == text
    assert driver.asked[-1] == "hold"
    env.close()


def test_the_line_comes_through_the_environment():
    env = GymnasiumEnv("tests.human.test_senses:make_filmed", 1)
    env.reset(0)
    driver = env._backend._group._members[0]._env.unwrapped._driver
    driver.spoil_picture = PICTURES["camera 'cam_high' shows uint8 of shape (4, 8, 3), not uint8 of shape (8, 8, 3)"]
    with pytest.raises(EnvironmentFault, match="camera 'cam_high' shows uint8 of shape"):
        env.reset(0)
    env.close()


def test_a_robot_that_raises_is_held():
    env, driver = begun()

    def act(command):
        raise OSError("no answer")

    driver.act = act
    with pytest.raises(OSError, match="no answer"):
        go(env, 0.1)
    assert driver.asked[-1] == "hold"
    env.close()


def test_a_frozen_camera_holds_the_robot_until_it_changes(caplog):
    env, driver = begun(max_same_pictures=3)
    driver.is_frozen = True
    held = [go(env, place) for place in (0.1, 0.1, 0.2, 0.3, 0.4, 0.5)]
    assert held == [False, False, False, False, True, True]  # the second picture was of a robot that stood still
    assert driver.place == pytest.approx(0.3)
    driver.is_frozen = False
    assert [go(env, place) for place in (0.4, 0.5)] == [True, False]  # it looks first
    assert caplog.messages == [
        "camera cam_high: the picture before, while the robot moved: frames dropped since this was last told: 1",
        "camera cam_high: 3 times the picture before, while the robot moved: the robot holds until it changes",
        "camera cam_high: it changes again",
    ]
    env.close()


def test_a_camera_at_half_the_rate_of_control_is_told_once_a_minute(caplog, monkeypatch):
    env, driver = begun(max_episode_steps=1000)
    seconds = [0.0]
    offset_s = env._senses._offset_s
    monkeypatch.setattr(time, "monotonic", lambda: seconds[0])
    monkeypatch.setattr(time, "time", lambda: seconds[0] + offset_s)
    for number in range(1, 131):
        seconds[0] = float(number)  # a look per second
        driver.is_frozen = number % 2 == 1
        assert not go(env, 0.01 * (number % 7))
    assert [message.rpartition(": ")[2] for message in caplog.messages] == ["1", "30", "30"]
    env.close()


@pytest.mark.parametrize(("options", "most"), [({}, 5), ({"max_same_pictures": None}, None)])
def test_how_many_pictures_may_be_the_same(options, most):
    env, driver = begun(max_episode_steps=100, **options)
    driver.is_frozen = True
    held = [go(env, 0.05 * number) for number in range(1, 15)]
    assert held.index(True) == most if most is not None else not any(held)
    env.close()


def test_no_picture_at_all_may_not_be_the_same():
    with pytest.raises(ConfigError, match="max_same_pictures must be above 0, auto or null, got 0"):
        make_filmed(max_same_pictures=0)


def test_a_clock_that_jumps_is_told_and_control_goes_on(caplog, monkeypatch):
    env, _ = begun()
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 3600.0)
    assert not go(env, 0.1)
    monkeypatch.undo()
    assert not go(env, 0.2)
    assert [message.split(":")[0] for message in caplog.messages] == [
        "the wall clock jumped by +3600.0 s",
        "the wall clock jumped by -3600.0 s",
    ]
    env.close()
