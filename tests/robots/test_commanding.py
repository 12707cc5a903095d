import pytest

from rl_lab.core import UsageError
from rl_lab.robots.commanding import Joystick, Keyboard

UP, DOWN, LEFT, COMMA, SPACE = 265, 264, 263, 44, 32


def test_keys_change_the_command_within_the_ranges():
    keyboard = Keyboard({"vx": (-0.5, 1.5), "vy": (-1.0, 1.0), "yaw": (-2.0, 2.0)})
    assert keyboard.read().tolist() == [0.0, 0.0, 0.0]
    for key in (UP, UP, DOWN, LEFT, COMMA, 65):  # the last is none of them
        keyboard.press(key)
    assert keyboard.read().tolist() == pytest.approx([0.2, 0.2, 0.4])
    for _ in range(20):
        keyboard.press(UP)
    assert keyboard.read()[0] == 1.5
    keyboard.press(SPACE)
    assert keyboard.read().tolist() == [0.0, 0.0, 0.0]


def test_pygame_is_needed_for_joysticks_only(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pygame", None)
    with pytest.raises(UsageError, match="a joystick needs: pip install"):
        Joystick((1.5, 1.0, 3.0), {"vx": (-1.0, 1.0), "vy": (-1.0, 1.0), "yaw": (-1.0, 1.0)})
