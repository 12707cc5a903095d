"""Keys of a real terminal: a pseudo-terminal, whose other end types."""

import os
import termios

import pytest

from rl_lab.core import ConfigError
from rl_lab.human.operators.keyboard import KeyboardOperator, split_keys
from tests.human.bench import ARM, FAST, Bench


@pytest.fixture
def keys():
    """Give a bench, the typing end of its terminal and the terminal's path."""
    typist, terminal = os.openpty()
    bench = Bench(KeyboardOperator("anna", ARM, rules=FAST, device=os.ttyname(terminal)))
    bench.typist, bench.terminal = typist, terminal
    yield bench
    bench.close()
    for end in (typist, terminal):
        os.close(end)


def test_what_a_terminal_sends_is_split_into_keys():
    assert split_keys(b"t\x1b[A\x1bOC 1\x1b[5~\t") == ["t", "up", "right", "space", "1", "tab"]


def test_take_over_jog_and_hand_back(keys):
    assert keys.step()
    assert not keys.is_acting
    os.write(keys.typist, b"t\x1b[C")
    assert keys.step()
    assert (keys.is_acting, keys.action) == (True, [1.0, 0.0, 0.0])
    assert keys.operator.name == "anna"
    assert not keys.step()  # she is in control and presses nothing: the robot holds, nothing is recorded
    os.write(keys.typist, b"ws\x1b[B")
    keys.step_until(lambda: keys.action == [0.0, -1.0, -1.0])  # of two keys of an axis the last counts
    os.write(keys.typist, b"t")
    keys.step_until(lambda: not keys.is_acting)


def test_words_end_the_episode(keys):
    keys.step()
    os.write(keys.typist, b"1")
    assert keys.step()
    assert (bool(keys.last.terminated), float(keys.last.rewards)) == (True, 1.0)
    assert keys.action == [0.0, 0.0, 0.0]  # the last step holds, and counts as hers
    assert keys.verdict() == [1.0]
    keys.step()
    os.write(keys.typist, b"0")
    keys.step()
    assert (bool(keys.last.terminated), float(keys.last.rewards), keys.verdict()) == (True, 0.0, [-1.0])
    os.write(keys.typist, b"x")
    keys.step()
    assert (bool(keys.last.truncated), keys.verdict()) == (True, [0.0])


def test_a_pause_is_ended_by_the_same_key(keys):
    os.write(keys.typist, b" ")
    assert not keys.step()
    assert not keys.step()
    os.write(keys.typist, b" ")
    assert keys.step()


def test_refusals_are_told(keys):
    os.write(keys.typist, b"w")
    keys.step()
    keys.step()
    assert keys.lines[-1] == "key +z: take over first"


def test_the_terminal_is_given_back_as_it_was(keys):
    changed = termios.tcgetattr(keys.terminal)[3]
    keys.operator.close()
    restored = termios.tcgetattr(keys.terminal)[3]
    assert not changed & termios.ICANON
    assert changed & termios.ISIG  # Ctrl-C is still a signal
    assert restored & termios.ICANON


def test_a_terminal_that_is_gone_lets_the_robot_hold():
    typist, terminal = os.openpty()
    bench = Bench(KeyboardOperator("anna", ARM, rules=FAST, device=os.ttyname(terminal)))
    os.write(typist, b"tw")
    bench.step()
    assert bench.is_acting
    os.close(terminal), os.close(typist)
    assert not bench.step()
    assert not bench.step()
    assert [line for line in bench.lines if "is gone" in line] == [bench.lines[-1]]  # said once
    assert "the robot holds until it is back" in bench.lines[-1]
    bench.close()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"device": "/dev/null"}, "device /dev/null is no terminal to read keys from"),
        ({"keys": {"+q": "a"}}, r"unknown key in keys '\+q'"),
        ({"keys": {"success": "t"}}, "keys: one key does two things"),
    ],
)
def test_bad_input_is_one_line(options, line):
    with pytest.raises(ConfigError, match=line) as caught:
        Bench(KeyboardOperator("anna", ARM, **options))
    assert "\n" not in str(caught.value)
