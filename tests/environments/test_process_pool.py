"""Worker processes: the same numbers as in one process, and nothing left behind however they end."""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

from rl_lab.core import ConfigError, EnvironmentFault
from rl_lab.environments.gymnasium import GymnasiumEnv
from tests.environments.rollouts import assert_equal, random_actions

torch.set_num_threads(1)


def shared_files():
    names = {path.name for path in Path("/dev/shm").iterdir()}
    return {name for name in names if not name.startswith("sem.")}  # semaphores come and go with other programs


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition, limit_s=20.0):
    end = time.monotonic() + limit_s
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


@pytest.mark.parametrize("name", ["CartPole-v1", "Zoo/Menagerie-v0", "Zoo/Nest-v0", "Zoo/Pilot-v0", "HalfCheetah-v5"])
def test_it_equals_the_sync_backend_bit_for_bit(name):
    files = shared_files()
    sync, pool = GymnasiumEnv(name, 5), GymnasiumEnv(name, 5, backend="process", num_workers=2)
    assert_equal([sync.reset(1)], [pool.reset(1)])
    actions = random_actions(sync.spec, 5, 120)
    for action in actions[:60]:
        assert_equal(sync.step(action), pool.step(action))
    from_sync, from_pool = sync.get_state(), pool.get_state()
    pool.set_state(from_sync)
    sync.set_state(from_pool)
    for action in actions[60:]:
        assert_equal(sync.step(action), pool.step(action))
    children = multiprocessing.active_children()
    assert len(children) == 2
    assert shared_files() == files  # its memory has no name
    pool.close()
    pool.close()
    assert not multiprocessing.active_children()


def test_a_killed_worker_is_named_and_nothing_stays():
    files = shared_files()
    env = GymnasiumEnv("CartPole-v1", 4, backend="process", num_workers=2)
    env.reset(0)
    env.step(torch.tensor([0, 1, 0, 1]))
    pids = [child.pid for child in multiprocessing.active_children()]
    os.kill(max(pids), signal.SIGKILL)
    with pytest.raises(EnvironmentFault, match=r"'CartPole-v1' \(copy \d, vector step 2, step with action 1\) lost"):
        env.step(torch.ones(4, dtype=torch.int64))
    env.close()
    assert not any(is_running(pid) for pid in pids)
    assert shared_files() == files


def test_an_environment_that_kills_its_process_is_named():
    kwargs = {"fault": "die"}
    env = GymnasiumEnv("Zoo/Faulty-v0", 3, backend="process", num_workers=1, env_kwargs=kwargs, exact_resume=True)
    env.reset(0)
    for _ in range(2):
        env.step(torch.zeros(3, dtype=torch.int64))
    with pytest.raises(EnvironmentFault, match=r"\(copy 0, vector step 3, step with action 4\) lost .*exit code -9"):
        env.step(torch.full((3,), 4))
    env.close()


def test_infos_are_the_same_in_both_backends():
    keys = ["steps", "won", "array", "episode.r", "absent"]
    options = {"name": "Zoo/Informer-v0", "num_envs": 3, "info_keys": keys}
    sync, pool = GymnasiumEnv(**options), GymnasiumEnv(**options, backend="process", num_workers=2)
    sync.reset(0)
    pool.reset(0)
    lengths = [0] * 3
    for action in random_actions(sync.spec, 3, 30):
        ours, theirs = sync.step(action), pool.step(action)
        assert_equal(ours, theirs)
        lengths = [length + 1 for length in lengths]
        ended = ours.terminated.tolist()
        assert list(ours.infos) == keys
        assert ours.infos["steps"].tolist() == lengths
        assert ours.infos["won"].tolist() == [float(choice == 2) for choice in action]
        assert ours.infos["array"].tolist() == [float(choice) * 0.5 for choice in action]
        assert ours.infos["episode.r"].tolist() == [10.0 * n * end for n, end in zip(lengths, ended, strict=True)]
        assert ours.infos["absent"].tolist() == [0.0] * 3
        assert ours.infos["won"].dtype == torch.float32
        lengths = [0 if end else length for length, end in zip(lengths, ended, strict=True)]
    pool.close()
    wordy = GymnasiumEnv("Zoo/Informer-v0", 1, info_keys=["name"])
    wordy.reset(0)
    with pytest.raises(
        EnvironmentFault, match=r"\(copy 0, .*action 1\) reported the info 'name' as str, which is not one"
    ):
        wordy.step(torch.ones(1, dtype=torch.int64))


def restartable(name, num_envs, num_workers=1, **kwargs):
    return GymnasiumEnv(name, num_envs, backend="process", num_workers=num_workers, on_crash="restart", **kwargs)


def test_a_killed_worker_is_restarted_by_choice(caplog):
    env, sync = restartable("CartPole-v1", 5, 2), GymnasiumEnv("CartPole-v1", 5)
    before = env.reset(0)
    sync.reset(0)
    actions = random_actions(env.spec, 5, 200)
    for action in actions[:3]:
        before = env.step(action).observations
        sync.step(action)
    victim = env._backend._workers[0]
    assert victim.share.rows == slice(0, 2)
    os.kill(victim.process.pid, signal.SIGKILL)
    step, untouched = env.step(actions[3]), sync.step(actions[3])
    lost, others = slice(0, 2), slice(2, 5)
    assert step.truncated[lost].all()
    assert not step.terminated[lost].any()
    assert step.rewards[lost].tolist() == [0.0, 0.0]
    assert torch.equal(step.final_observations[lost], before[lost])
    assert_equal([part[others] for part in step[:5]], [part[others] for part in untouched[:5]])
    # the members begin anew with a child of the seed they had
    for copy, word in enumerate(np.random.SeedSequence(0).generate_state(5)[lost]):
        (child,) = np.random.SeedSequence(int(word) >> 1, spawn_key=(0,)).generate_state(1)
        expected, _ = gymnasium.make("CartPole-v1").reset(seed=int(child) >> 1)
        assert step.observations[copy].tolist() == expected.tolist()
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    who = r"environment 'CartPole-v1' \(copy \d, step with action [01]\)"
    what = r"lost its worker process \(pid \d+, exit code -9\); copies 0 to 1 begin new episodes in a new process"
    assert re.fullmatch(f"{who} {what}", record.getMessage())
    # the run stays resumable
    other = GymnasiumEnv("CartPole-v1", 5)
    other.set_state(env.get_state())
    for action in actions[4:60]:
        assert_equal(env.step(action), other.step(action))
    env.close()
    assert not multiprocessing.active_children()


def test_a_second_crash_after_a_restore_goes_on_with_the_same_seeds():
    options = {"env_kwargs": {"fault": "die", "at_step": 4}, "exact_resume": True, "info_keys": ["none"]}
    env, other = restartable("Zoo/Faulty-v0", 2, **options), restartable("Zoo/Faulty-v0", 2, **options)
    env.reset(1)
    actions = random_actions(env.spec, 2, 10)
    steps = []
    for index, action in enumerate(actions):
        if index == 5:  # after the first crash, in step 4 of all copies
            state = env.get_state()
        steps.append(env.step(action))
    assert [step.truncated.all().item() for step in steps] == [False] * 3 + [True] + [False] * 3 + [True] + [False] * 2
    other.set_state(state)
    for step, action in zip(steps[5:], actions[5:], strict=True):
        assert_equal(step, other.step(action))
    env.close()
    other.close()


def test_restarts_that_do_not_help_are_a_fault(caplog):
    """Otherwise an environment that dies at every step would give empty steps for ever."""
    env = restartable("Zoo/Faulty-v0", 2, 2, env_kwargs={"fault": "die", "at_step": 1}, exact_resume=True)
    env.reset(0)
    for _ in range(3):
        assert env.step(torch.zeros(2, dtype=torch.int64)).truncated.all()
    with pytest.raises(
        EnvironmentFault,
        match=r"\(copy 0, vector step 4, step .*lost its worker .*, after 3 restarts within 100 vector steps: on_crash",
    ):
        env.step(torch.zeros(2, dtype=torch.int64))
    assert len(caplog.records) == 6  # three of each worker
    env.close()


def test_restarts_now_and_then_go_on_for_ever(monkeypatch):
    monkeypatch.setattr("rl_lab.environments.hosting.process_pool.RESTART_WINDOW", 3)
    env = restartable("Zoo/Faulty-v0", 1, env_kwargs={"fault": "die", "at_step": 1}, exact_resume=True)
    env.reset(0)
    for _ in range(4):
        assert env.step(torch.zeros(1, dtype=torch.int64)).truncated.all()
        env._backend._steps += 3  # steps that went well
    env.close()


def test_a_worker_that_cannot_begin_again_is_a_fault():
    env = restartable("Zoo/Faulty-v0", 1, env_kwargs={"fault": "die at reset"}, exact_resume=True)
    with pytest.raises(
        EnvironmentFault, match=r"\(copy 0, vector step 0, being reset in a new process\) lost its worker"
    ):
        env.reset(0)
    env.close()
    assert not multiprocessing.active_children()


def test_a_worker_that_hangs_counts_as_crashed(caplog):
    options = {"backend": "process", "env_kwargs": {"fault": "hang", "at_step": 2}, "exact_resume": True}
    env = GymnasiumEnv("Zoo/Faulty-v0", 1, **options, timeout_s=0.5)
    env.reset(0)
    action = torch.tensor([4])
    env.step(action)
    with pytest.raises(
        EnvironmentFault, match=r"\(copy 0, vector step 2, step with action 4\) gave no answer for 0.5 s"
    ):
        env.step(action)
    env.close()
    env = GymnasiumEnv("Zoo/Faulty-v0", 1, **options, timeout_s=0.5, on_crash="restart")
    first = env.reset(0)
    first = env.step(action).observations
    step = env.step(action)
    assert step.truncated.all()
    assert torch.equal(step.final_observations, first)
    assert "gave no answer for 0.5 s" in caplog.text
    env.close()
    assert not multiprocessing.active_children()


def test_interrupts_are_left_to_the_parent():
    env = GymnasiumEnv("CartPole-v1", 2, backend="process", num_workers=1)
    env.reset(0)
    (child,) = multiprocessing.active_children()
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(child.pid, number)
    time.sleep(0.2)
    env.step(torch.zeros(2, dtype=torch.int64))
    assert len(env.get_state()["members"]) == 2
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()
    env.close()


def test_a_wrapper_that_cannot_be_sent_is_a_config_error():
    with pytest.raises(ConfigError, match="environment.backend=process cannot start a worker"):
        GymnasiumEnv("CartPole-v1", 1, backend="process", wrappers=[lambda env: env], exact_resume=True)
    assert not multiprocessing.active_children()


SCRIPT = """
import os, signal, sys, multiprocessing
if __name__ == "__main__":
    from rl_lab.environments.gymnasium import GymnasiumEnv
    env = GymnasiumEnv("CartPole-v1", 4, backend="process", num_workers=2)
    env.reset(0)
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("end", ["killed", "forgotten"])
def test_workers_end_with_their_parent(tmp_path, end):
    files = shared_files()
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script, end], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == (-signal.SIGKILL if end == "killed" else 0), done.stderr
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    assert wait_until(lambda: not any(is_running(pid) for pid in pids))
    assert shared_files() == files


def test_workers_import_no_torch():
    command = "import sys, rl_lab.environments.hosting.process_worker; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", command], check=False).returncode == 0
