"""What a person beside a robot says reaches it, wherever it is hosted."""

import pytest
import torch

from rl_lab.environments.gymnasium import GymnasiumEnv
from rl_lab.environments.pendulum import Pendulum
from rl_lab.human.cell.env import SimulatedCellEnv
from rl_lab.human.cell.insertion import InsertionCell
from rl_lab.orchestration.overlap import BackgroundEnv

PUSH = torch.full((2, 3), 0.5)


@pytest.fixture(scope="module", params=["sync", "process", "background"])
def env(request):
    backend = "sync" if request.param == "background" else request.param
    env = GymnasiumEnv("cell/Insertion-v0", 2, backend=backend, num_workers=None, info_keys=["is_success"])
    env = BackgroundEnv(env) if request.param == "background" else env
    yield env
    env.close()


@pytest.mark.parametrize(
    ("word", "terminated", "reward"), [("success", True, 1.0), ("failure", True, 0.0), ("abort", False, 0.0)]
)
def test_a_word_ends_the_episode_with_a_step_that_holds(env, word, terminated, reward):
    env.reset(0)
    before = env.step(PUSH).observations
    assert env.instruct(word)
    step = env.step(PUSH)
    assert step.terminated.tolist() == [terminated] * 2
    assert step.truncated.tolist() == [not terminated] * 2
    assert step.rewards.tolist() == step.infos["is_success"].tolist() == [reward] * 2
    assert torch.equal(step.final_observations[:, :3], before[:, :3])  # the tip did not move
    after = env.step(PUSH)
    assert not (after.terminated | after.truncated).any()  # of the next episode nobody has spoken


def test_hold_moves_nothing_and_ends_nothing(env):
    env.reset(0)
    env.step(PUSH)
    assert env.instruct("hold")
    step = env.step(PUSH)
    assert not (step.terminated | step.truncated).any()


def test_a_hold_reaches_the_driver():
    driver = InsertionCell()
    env = SimulatedCellEnv(driver, "peg")
    env.reset(seed=0)
    env.step(PUSH[0].numpy())
    assert (driver.data.ctrl != driver.data.qpos).any()  # it pulls ahead
    env.instruct("hold")
    assert (driver.data.ctrl == driver.data.qpos).all()


def test_a_word_on_one_episode_is_none_on_another():
    env = SimulatedCellEnv(InsertionCell(), "peg")
    seen, _ = env.reset(seed=0)
    state = env.get_state()
    for leave in (lambda: env.begin_at(seen), lambda: env.set_state(state)):
        env.instruct("failure")
        leave()
        assert env.step(PUSH[0].numpy())[2:4] == (False, False)
    env.close()


def test_most_environments_listen_to_nobody():
    env = GymnasiumEnv("CartPole-v1", 1)
    assert not env.instruct("success")
    env.close()
    assert not Pendulum(2).instruct("hold")
