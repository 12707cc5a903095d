"""Worker processes: the same numbers as in one process, and nothing left behind however they end."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from rl_lab.core import ConfigError, EnvironmentFault
from rl_lab.environments.gymnasium import GymnasiumEnv
from tests.environments.rollouts import assert_equal, random_actions

torch.set_num_threads(1)


def shared_files():
    return {path.name for path in Path("/dev/shm").iterdir()}


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


@pytest.mark.parametrize("name", ["CartPole-v1", "Zoo/Menagerie-v0", "HalfCheetah-v5"])
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
    command = "import sys, rl_lab.environments.process_worker; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", command], check=False).returncode == 0
