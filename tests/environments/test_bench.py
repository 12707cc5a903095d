"""Speeds are env steps over time, settings that fail do not end the others, and the recommendation is modest."""

import time

import pytest
import torch

from rl_lab.core import ACTION_MASK
from rl_lab.environments.checking.bench import (
    Setting,
    Speed,
    batched_settings,
    bench_environment,
    best,
    hosted_settings,
    other_settings,
    recommend,
    steps_per_s,
)
from rl_lab.environments.counting import Counting
from rl_lab.environments.gymnasium import GymnasiumEnv
from rl_lab.environments.identity import Identity

torch.set_num_threads(1)


class Slow(Counting):
    """Takes at least ten milliseconds per vector step."""

    def step(self, actions):
        time.sleep(0.01)
        return super().step(actions)


def test_the_speed_is_copies_times_vector_steps_per_second():
    speed = steps_per_s(Slow(5), seconds=0.2)
    assert 5 / 0.01 * 0.3 < speed < 5 / 0.01  # 500 env steps/s when nothing else runs


def test_one_step_is_measured_however_slow():
    assert 0 < steps_per_s(Slow(1), seconds=1e-6) < 100


def test_masks_are_obeyed():
    env = Identity(8, masked=True)
    steps_per_s(env, seconds=0.02)
    assert env.forbidden.sum() == 0
    assert ACTION_MASK in env.spec.observation


def test_a_setting_that_fails_says_why_and_the_others_go_on():
    closed = []

    class Closing(Counting):
        def close(self):
            closed.append(self.num_envs)

    def make(setting):
        if setting.num_envs == 4:
            raise MemoryError("no room\nfor four")
        return Closing(setting.num_envs)

    speeds = list(bench_environment(make, [Setting(1), Setting(4), Setting(2)], seconds=0.01))
    assert [speed.error for speed in speeds] == [None, "raised MemoryError: no room for four", None]
    assert closed == [1, 2]
    assert speeds[1].to_json() == {
        "num_envs": 4,
        "backend": None,
        "num_workers": None,
        "steps_per_s": 0.0,
        "error": "raised MemoryError: no room for four",
    }


def test_worker_processes_are_measured_too():
    def make(setting):
        return GymnasiumEnv("CartPole-v1", setting.num_envs, backend=setting.backend, num_workers=setting.num_workers)

    (speed,) = bench_environment(make, [Setting(2, "process", 1)], seconds=0.05)
    assert speed.error is None
    assert speed.steps_per_s > 100


def test_the_fewest_copies_among_the_nearly_fastest_are_recommended():
    speeds = [
        Speed(Setting(1, "sync"), 500.0),
        Speed(Setting(8, "process", 2), 910.0),
        Speed(Setting(8, "process", 1), 905.0),
        Speed(Setting(16, "process", 2), 1000.0),
        Speed(Setting(32, "process", 2), 0.0, "failed"),
    ]
    assert best(speeds) == speeds[3]
    assert recommend(speeds) == speeds[2]
    assert recommend(speeds[:2]) == speeds[1]
    assert best(speeds[4:]) is None
    assert recommend(speeds[4:]) is None


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        (Setting(16, "process", 2), "environment.backend=process environment.num_envs=16 environment.num_workers=2"),
        (Setting(8, "sync"), "environment.backend=sync environment.num_envs=8"),
        (Setting(4096), "environment.num_envs=4096"),
    ],
)
def test_a_setting_is_an_override_line(setting, line):
    assert setting.overrides == line


def test_settings_cover_one_to_all_cores():
    assert sorted({s.num_workers for s in hosted_settings(6) if s.num_workers}) == [1, 2, 4, 6]
    assert sorted({s.num_workers for s in hosted_settings(1) if s.num_workers}) == [1]
    assert {s.num_envs for s in hosted_settings(2) if s.backend == "sync"} >= {1, 4, 8}
    assert (batched_settings()[0].num_envs, batched_settings()[-1].num_envs) == (1, 16384)
    assert all(setting.backend is None for setting in [*batched_settings(), *other_settings()])
