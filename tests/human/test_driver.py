"""The interface of a robot, by one that is made of Python: what the environment asks of a driver, and when."""

import importlib

import numpy as np
import pytest

from rl_lab.environments.gymnasium import GymnasiumEnv
from rl_lab.human.cell.driver import Driver, Layout
from rl_lab.human.cell.env import CellEnv


class Cart(Driver):
    """A cart on a rail that goes where it is told and writes down what it was asked."""

    layout = Layout(
        actions=("place",),
        low=np.array([-1.0]),
        high=np.array([1.0]),
        max_step=np.array([0.25]),
        numbers={"state": ("place",)},
        cameras=("cam_high",),
        steps_per_second=5.0,
        prompt="go to the end",
    )

    def __init__(self):
        self.asked, self.place = [], 0.0

    def reset(self, rng):
        self.asked, self.place = ["reset"], float(rng.uniform(-0.1, 0.1))

    def observe(self):
        return {"state": np.array([self.place], np.float32)}

    def draw(self, camera, height, width):
        return np.full((height, width, 3), 7, np.uint8)

    def act(self, command):
        self.asked.append(round(float(command[0]), 3))
        self.place = float(command[0])

    def hold(self):
        self.asked.append("hold")

    def home(self):
        return np.array([self.place])

    def is_success(self):
        return self.place >= 0.99


def make_cart(max_action_age_s=None, **options):
    """Commands do not age here: tests may be slow."""
    return CellEnv(Cart(), "cart", max_action_age_s=max_action_age_s, **options)


class Unsteady(Cart):
    """Stands somewhere else after every reset, whatever the seed, and counts them all."""

    resets = 0

    def reset(self, rng):
        type(self).resets += 1
        self.place = self.resets / 100


def make_unsteady():
    return CellEnv(Unsteady(), "cart")


def test_a_robot_is_not_moved_before_its_first_episode():
    env = GymnasiumEnv("tests.human.test_driver:make_unsteady", 1)
    kind = importlib.import_module("tests.human.test_driver").Unsteady  # pytest has this module under another name
    assert kind.resets == 0
    assert not env.spec.exact_resume
    env.reset(0)
    assert kind.resets == 1
    env.close()


def test_commands_are_cut_to_the_limits_and_the_end_holds():
    env = make_cart()
    start = env.reset(seed=0)[0][0]
    outcomes = [env.step(np.array([5.0], np.float32)) for _ in range(4)]
    assert env._driver.asked[1:4] == pytest.approx([start + 0.25, start + 0.5, start + 0.75], abs=1e-3)
    while not outcomes[-1][2]:
        outcomes.append(env.step(np.array([5.0], np.float32)))
    assert env._driver.asked[-2:] == [1.0, "hold"]
    assert [outcome[1] for outcome in outcomes] == [0.0] * (len(outcomes) - 1) + [1.0]


def test_what_is_not_finite_holds_and_the_time_limit_too():
    env = make_cart(max_episode_steps=2)
    env.reset(seed=0)
    env.step(np.array([np.nan], np.float32))
    assert env._driver.asked == ["reset", "hold"]
    assert env.step(np.array([0.1], np.float32))[2:4] == (False, True)
    assert env._driver.asked[-1] == "hold"


class Dazed(Cart):
    """A cart that does not know where it is for a while."""

    is_dazed = False

    def home(self):
        return np.array([np.nan]) if self.is_dazed else super().home()


@pytest.mark.parametrize("is_dazed_at", ["reset", "hold"])
def test_a_robot_that_does_not_know_where_it_is_holds_until_it_does(is_dazed_at):
    env = CellEnv(Dazed(), "dazed", max_action_age_s=None)
    env._driver.is_dazed = is_dazed_at == "reset"
    env.reset(seed=0)
    env._driver.is_dazed = True
    outcomes = [env.step(np.array([action], np.float32)) for action in (np.nan, 1.0)]
    assert [outcome[4]["is_held"] for outcome in outcomes] == [True, True]
    assert env._driver.asked == ["reset", "hold", "hold"]
    env._driver.is_dazed, start = False, env._driver.place
    assert not env.step(np.array([1.0], np.float32))[4]["is_held"]
    assert env._driver.place == pytest.approx(start + 0.25)  # from where it stands
    env.close()


def test_a_driver_that_does_not_hold_at_the_end_is_let_go_of_all_the_same():
    class Stubborn(Cart):
        def hold(self):
            raise OSError("no answer")

        def close(self):
            self.asked.append("close")

    env = CellEnv(Stubborn(), "stubborn", max_action_age_s=None)
    with pytest.raises(OSError, match="no answer"):
        env.close()
    assert env._driver.asked == ["close"]


def test_a_real_robot_is_an_environment_that_cannot_be_taken_up_again():
    env = GymnasiumEnv("tests.human.test_driver:make_cart", 1, env_kwargs={"observations": "pixels", "size": 8})
    assert not env.spec.exact_resume
    assert env.spec.steps_per_second == 5.0
    assert env.describe()["prompt"] == "go to the end"
    obs = env.reset(0)
    assert obs["cam_high"].shape == (1, 3, 8, 8)
    assert (obs["cam_high"] == 7).all()
