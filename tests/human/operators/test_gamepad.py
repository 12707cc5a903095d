import sys
import time

import pytest

from rl_lab.core import ConfigError
from rl_lab.environments import joystick
from rl_lab.environments.joystick import open_stick
from rl_lab.human.operators.device import DevicePerson
from rl_lab.human.operators.gamepad import GamepadOperator, read_sticks
from rl_lab.human.operators.sticks import Reading
from tests.human.bench import ARM, FAST, Bench


def test_axes_of_a_gamepad_become_axes_of_a_hand():
    sticks = {"x": (0, 1.0), "y": (1, -1.0), "yaw": (7, 1.0)}
    assert read_sticks([0.5, -1.0, 0.0], sticks) == {"x": 0.5, "y": 1.0}  # it has no axis 7


def test_the_dead_zone_is_cut_off_and_the_rest_stretched():
    operator = GamepadOperator("anna", ARM, dead_zone=0.2)
    assert [operator._cut(value) for value in (0.1, -0.2, 0.6, -1.0)] == pytest.approx([0.0, 0.0, 0.5, -1.0])


def test_without_pygame_or_gamepad_it_is_one_line(monkeypatch):
    if open_stick() is None:
        with pytest.raises(ConfigError, match="no gamepad is connected"):
            Bench(GamepadOperator("anna", ARM))
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(ConfigError, match=r"a joystick needs: pip install 'rl-lab\[play\]'"):
        Bench(GamepadOperator("anna", ARM))


class Pad:
    """What pygame has of a gamepad, since none is connected here."""

    axes, down, is_plugged = [0.0] * 5, set(), True

    def __init__(self, index):
        assert self.is_plugged

    def get_axis(self, index):
        return self.axes[index]

    def get_numaxes(self):
        return len(self.axes)

    def get_numbuttons(self):
        return 8

    def get_button(self, index):
        return index in self.down

    def get_instance_id(self):
        return 0

    def get_name(self):
        return "pad"


def test_a_gamepad_takes_over_moves_speaks_and_is_unplugged(monkeypatch):
    pygame = joystick._pygame()
    monkeypatch.setattr(Pad, "is_plugged", True)
    monkeypatch.setattr(pygame.joystick, "get_count", lambda: int(Pad.is_plugged))
    monkeypatch.setattr(pygame.joystick, "Joystick", Pad)
    monkeypatch.setattr(DevicePerson, "RETRY_S", 0.0)
    bench = Bench(GamepadOperator("anna", ARM, rules=FAST, dead_zone=0.0))

    def held(down, *axes):
        monkeypatch.setattr(Pad, "down", set(down))
        monkeypatch.setattr(Pad, "axes", [*axes, *[0.0] * (5 - len(axes))])
        return bench.step()

    assert held([], 1.0)
    assert not bench.is_acting  # a stick alone does not take over, unless release_s says so
    assert held([0], 0.5, -1.0, 0.0, 0.0, 0.25)
    assert (bench.is_acting, bench.action) == (True, [0.5, 1.0, -0.25])  # up is negative on a gamepad
    assert held([3], 0.5)
    assert (bool(bench.last.terminated), bench.verdict()) == (True, [1.0])
    assert not held([5], 0.5)  # paused
    assert not held([], 0.5)
    assert held([5], 0.5)
    monkeypatch.setattr(Pad, "is_plugged", False)
    assert not held([], 0.5)
    assert not held([], 0.5)
    assert bench.lines == ["the gamepad is gone: the robot holds until it is back"]
    monkeypatch.setattr(Pad, "is_plugged", True)
    bench.step_until(lambda: bench.operator.desk.look().paused == "")
    assert held([], -0.5)
    assert (bench.is_acting, bench.action) == (True, [-0.5, 0.0, 0.0])  # she was in control, and is again
    bench.close()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"sticks": {"u": 1}}, "unknown axis in sticks 'u'"),
        ({"sticks": {"x": "one"}}, "sticks.x: a number of the gamepad's axes"),
        ({"buttons": {"jump": 1}}, "unknown deed in buttons 'jump'"),
        ({"dead_zone": 1.0}, "dead_zone is 0 to 1"),
    ],
)
def test_bad_input_is_one_line(options, line):
    with pytest.raises(ConfigError, match=line):
        GamepadOperator("anna", ARM, **options)


@pytest.mark.manual
def test_a_real_one():
    """Press A (take over) and push the left stick to the right within ten seconds: docs/operators.md."""
    bench = Bench(GamepadOperator("anna", ARM, rules=FAST))
    deadline = time.monotonic() + 10.0
    while not (bench.orders is not None and bench.is_acting and bench.action[0] > 0.2):
        assert time.monotonic() < deadline, "nobody took over and pushed the stick to the right"
        bench.step()
    assert isinstance(bench.operator._read(), Reading)
    bench.close()
