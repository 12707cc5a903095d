"""The robot holds when nobody tells it in time what to do, and where it may not go."""

import os
import time

import numpy as np
import pytest

from rl_lab.core.errors import ConfigError
from rl_lab.human.cell.env import CellEnv
from rl_lab.human.cell.tasks import make_env
from rl_lab.human.cell.watchdog import Watchdog
from rl_lab.human.operators.jogging import Jogging
from rl_lab.human.operators.keyboard import KeyboardOperator
from tests.human.bench import FAST, Bench
from tests.human.test_driver import Cart, make_cart

LONG_S, SHORT_S = 60.0, 0.02


def eventually(look):
    deadline = time.monotonic() + 20
    while not look() and time.monotonic() < deadline:
        time.sleep(0.002)
    return look()


def go(env, place):
    return env.step(np.array([place], np.float32))


def test_a_robot_that_nobody_commands_is_held_once_and_the_late_command_is_not_carried_out():
    env = make_cart(max_action_age_s=SHORT_S)
    env.reset(seed=0)
    assert eventually(lambda: env._driver.asked == ["reset", "hold"])
    place = env._driver.place
    info = go(env, 0.5)[4]
    assert info["is_held"]
    assert env._driver.place == place
    assert eventually(lambda: env._driver.asked.count("hold") == 3)  # by the watchdog, the command, the watchdog
    env.close()


def test_a_command_in_time_is_carried_out_whatever_the_wall_clock_does(monkeypatch):
    env = make_cart(max_action_age_s=LONG_S)
    env.reset(seed=0)
    for jump in (1e9, -1e9, 0.0):
        monkeypatch.setattr(time, "time", lambda jump=jump: 1.8e9 + jump)
        assert not go(env, env._driver.place + 0.1)[4]["is_held"]
    assert "hold" not in env._driver.asked
    env.close()
    assert env._driver.asked[-1] == "hold"


def test_a_scene_may_be_set_up_slowly():
    held_within = []

    class Slow(Cart):
        def reset(self, rng):
            super().reset(rng)
            time.sleep(5 * SHORT_S)
            held_within.append(self.asked.count("hold"))

    env = CellEnv(Slow(), "slow", max_action_age_s=SHORT_S)
    for _ in range(3):  # from the second on the watchdog waits for a command when the reset begins
        env.reset(seed=0)
    env.close()
    assert held_within == [0, 0, 0]


def expire(watchdog):
    """Let it wait in vain, without a test that has to be quick afterwards."""
    before = watchdog.num_holds
    watchdog.expire()
    assert eventually(lambda: watchdog.num_holds == before + 1)


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_person_who_did_nothing_for_long_is_obeyed_at_once(is_paused):
    typist, terminal = os.openpty()
    jogging = Jogging({"cart": {"x": "place"}}, speed=0.1)
    operator = KeyboardOperator("anna", jogging, rules=FAST, device=os.ttyname(terminal))
    bench = Bench(operator, "tests.human.test_driver:make_cart", max_action_age_s=LONG_S)
    env = bench.env._backend._group._members[0]._env.unwrapped
    os.write(typist, b"t")
    for _ in range(2):
        assert not bench.step()  # she is in control and presses nothing
        if is_paused:
            operator.desk.pause("paused by bert")
            assert not bench.step()
            operator.desk.go_on()
        expire(env._watchdog)
        os.write(typist, b"\x1b[C")
        assert bench.step()
        assert bench.is_acting
        assert env._driver.asked[-1] == pytest.approx(0.1, abs=1e-3)
    bench.close()
    os.close(typist), os.close(terminal)


def test_a_policy_that_comes_back_to_a_held_robot_looks_first():
    env = make_cart(max_action_age_s=LONG_S)
    env.reset(seed=0)
    expire(env._watchdog)
    assert [go(env, env._driver.place + 0.1)[4]["is_held"] for _ in range(2)] == [True, False]
    env.close()


def test_what_is_held_is_counted_and_closing_ends_the_thread():
    holds = []
    watchdog = Watchdog(lambda: holds.append(1), SHORT_S)
    assert not watchdog.claim()  # nothing was seen
    for count in (1, 2):
        watchdog.saw()
        assert eventually(lambda count=count: watchdog.num_holds == count)
        assert not watchdog.claim()
    watchdog.close()
    assert len(holds) == 2
    assert not watchdog._thread.is_alive()


def test_a_pose_out_of_bounds_is_not_gone_to_and_the_next_command_starts_from_where_it_stands():
    class Fenced(Cart):
        layout = Cart.layout.__class__(
            **{**vars(Cart.layout), "pose_low": np.array([0.0]), "pose_high": np.array([0.6])}
        )

        def pose(self, command):
            return 2.0 * command  # of the tool: twice as far as the cart

    env = CellEnv(Fenced(), "fenced", max_action_age_s=None)
    env.reset(seed=0)
    env._driver.place = 0.2
    env._last = env._driver.home()
    assert not go(env, 0.29)[4]["is_held"]
    assert go(env, 0.31)[4]["is_held"]
    assert env._driver.place == pytest.approx(0.29)
    go(env, 0.0)
    assert env._driver.place == pytest.approx(0.04)  # a quarter at most, from 0.29 on


def test_an_age_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="max_action_age_s must be above 0, auto or null, got 0"):
        make_cart(max_action_age_s=0)


def test_commands_to_a_robot_age_where_nobody_says_and_those_to_a_simulation_do_not():
    env = CellEnv(Cart(), "cart")
    assert env._watchdog.max_age_s == pytest.approx(0.6)  # three steps, of which it does 5 per second
    env.close()
    simulated = make_env("cell/Insertion-v0")
    assert simulated._watchdog is None
    simulated.close()


def test_a_robot_that_does_not_listen_once_is_told_again_and_watched_on(caplog):
    told = []

    def hold():
        told.append(len(told))
        if told[-1] in (0, 1, 3):
            raise OSError("no answer")

    watchdog = Watchdog(hold, LONG_S)
    for count, tries in ((1, 3), (2, 5)):
        expire(watchdog)
        assert (watchdog.num_holds, len(told)) == (count, tries)
    watchdog.close()
    line = "the robot does not hold, and is told again: OSError: no answer"
    assert [record.getMessage() for record in caplog.records] == [line, line]


class Deaf(Cart):
    """Its power fails: commands raise, and so do the first holds."""

    num_deaf = 3

    def act(self, command):
        raise OSError("no power")

    def hold(self):
        super().hold()
        if self.asked.count("hold") <= self.num_deaf:
            raise OSError("no answer")


def test_a_robot_that_fails_and_does_not_hold_is_told_again_and_the_first_error_is_raised(caplog):
    env = CellEnv(Deaf(), "deaf", max_action_age_s=LONG_S)
    env.reset(seed=0)
    with pytest.raises(OSError, match="no power"):
        go(env, 0.1)
    assert eventually(lambda: env._watchdog.num_holds == 1)
    assert env._driver.asked == ["reset"] + ["hold"] * 4  # by the environment, and by the watchdog until it listens
    assert caplog.messages[0] == "the robot does not hold after an error: OSError: no answer"
    env.close()


def test_a_late_command_to_a_robot_that_does_not_hold_leaves_it_watched():
    env = CellEnv(Deaf(), "deaf", max_action_age_s=LONG_S)
    env.reset(seed=0)
    env._watchdog.claim()  # so the command is stale
    with pytest.raises(OSError, match="no answer"):
        go(env, 0.1)
    assert eventually(lambda: env._watchdog.num_holds == 1)
    env.close()


def test_without_a_watchdog_the_first_error_is_raised_too():
    env = CellEnv(Deaf(), "deaf", max_action_age_s=None)
    env.reset(seed=0)
    with pytest.raises(OSError, match="no power"):
        go(env, 0.1)
    env._driver.num_deaf = 0
    env.close()
