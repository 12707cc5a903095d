"""Testers against a tester of the test: commands held, errors recomputed from what the environment shows."""

import csv

import pytest
import torch

from rl_lab.core import ConfigError
from rl_lab.robots.testers import TESTERS, commands_of, run_tester, run_testers
from tests.robots.tasks import task

torch.set_num_threads(1)


def standing(obs, is_first):
    return torch.zeros(len(is_first), 12)


def calm(**changes):
    return task(num_envs=4, events={"push": None}, observations={"critic": {"terms": {"push": None}}}, **changes)


def test_commands_of_each_tester():
    env = calm(commands={"vx": [-0.5, 1.0]})
    held = {tester: commands_of(env, tester) for tester in TESTERS}
    assert held["normal"] is None
    assert (held["zero"] == 0.0).all()
    torch.testing.assert_close(held["x"][:, 0], torch.tensor([-0.5, 0.0, 0.5, 1.0]))
    assert (held["x"][:, 1:] == 0.0).all()
    assert held["yaw"][:, 2].tolist() == pytest.approx([-1.0, -1.0 / 3, 1.0 / 3, 1.0])
    assert held["forward"][0].tolist() == [1.0, 0.0, 0.0]
    assert held["backward"][0].tolist() == [-0.5, 0.0, 0.0]
    with pytest.raises(ConfigError, match="unknown tester 'sideways'"):
        commands_of(env, "sideways")


def test_a_robot_that_stands_is_as_wrong_as_its_command_is_fast(tmp_path):
    env = calm()
    row = run_tester(env, standing, "forward", steps=120, path=tmp_path / "forward.csv")
    assert row["velocity_rms"] == pytest.approx(1.0, abs=0.05)
    assert row["yaw_rate_rms"] < 0.05
    assert row["falls"] == 0
    assert 1.0 < row["torque_rms"] < 8.0
    lines = list(csv.DictReader((tmp_path / "forward.csv").read_text().splitlines()))
    assert len(lines) == 120
    assert {line["command_vx"] for line in lines[1:]} == {"1.0"}
    assert float(lines[-1]["time"]) == pytest.approx(2.4)
    assert float(lines[-1]["height"]) == pytest.approx(0.27, abs=0.03)
    assert env.commands.fixed is None


def test_the_summary_is_what_the_steps_say():
    env = calm()
    row = run_tester(env, standing, "zero", steps=80, seed=4)
    env.commands.fixed = torch.zeros(4, 3)
    env.reset(4)
    errors, torques, rewards = [], [], []
    for step in range(80):
        result = env.step(torch.zeros(4, 12))
        state = env.last_state
        if step >= 50:  # a second
            errors.append(state.lin_vel[:, :2].double().square().sum(-1))
        torques.append(state.torques.double().square())
        rewards.append(result.rewards.double())
    assert row["velocity_rms"] == pytest.approx(float(torch.cat(errors).mean().sqrt()), rel=1e-4)
    assert row["torque_rms"] == pytest.approx(float(torch.stack(torques).mean().sqrt()), rel=1e-4)
    assert row["reward"] == pytest.approx(float(torch.stack(rewards).mean()) / 0.02, rel=1e-4)


def test_all_testers_write_one_table(tmp_path):
    rows = run_testers(calm(), standing, steps=10, directory=tmp_path)
    assert [row["tester"] for row in rows] == list(TESTERS)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*(f"{t}.csv" for t in TESTERS), "summary.csv"])
    assert len(list(csv.DictReader((tmp_path / "summary.csv").read_text().splitlines()))) == 7


def test_falls_are_counted():
    over = {"push": None, "reset_base": {"params": {"tilt": [1.5, 1.5]}}}
    env = task(num_envs=4, events=over)
    row = run_tester(env, standing, "zero", steps=5)
    assert row["falls"] == 20
    assert row["falls_per_minute"] == pytest.approx(20 / (20 * 0.02 / 60))


def test_a_time_out_is_followed_by_another_second_to_settle():
    env = calm(episode_s=1.5)  # 75 steps
    row = run_tester(env, standing, "forward", steps=150)
    env.commands.fixed = commands_of(env, "forward")
    env.reset(0)
    errors = []
    for step in range(150):
        env.step(torch.zeros(4, 12))
        if step % 75 >= 50:
            errors.append((env.last_state.command - env.last_state.lin_vel)[:, :2].double().square().sum(-1))
    assert row["velocity_rms"] == pytest.approx(float(torch.cat(errors).mean().sqrt()), rel=1e-4)
    assert row["falls"] == 0
