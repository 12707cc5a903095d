"""Runs `lab sweep` and `lab tune` in a process that can be killed; trials are forked: nothing is imported anew."""

import ctypes
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.config.tiny import PLUGIN

LAB = multiprocessing.get_context("forkserver")
LAB.set_forkserver_preload(["tests.lab_process", "tests.tuning.sweep_process"])
LAB_WORDS = [sys.executable, "-m", "rl_lab"]
CONFIG = ["--config-dir", "conf", "--plugin", PLUGIN]


class ForkedTrial:
    """A trial's process, with what is asked of one."""

    def __init__(self, pid):
        self.pid, self._code = pid, None

    def poll(self):
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def terminate(self):
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)

    def kill(self):
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def fork_trial(words, variables, log):
    """Do what `start_process` does, without another interpreter."""
    parent, pid = os.getpid(), os.fork()
    if pid:
        return ForkedTrial(pid)
    code = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)
        if os.getppid() == parent:
            os.environ.update(variables)
            with open(log, "a") as output:
                sys.stdout = sys.stderr = output
                code = _lab(words)
    finally:
        os._exit(code)


def _lab(words):
    from rl_lab.cli.main import app

    try:
        app(words)
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else 0 if left.code is None else 1
    return 0


def run(arguments, directory, file):
    """Be the process of the command."""
    from rl_lab.tuning import trial_process
    from tests.lab_process import run_lab

    trial_process.start_process = fork_trial
    run_lab(arguments, directory, file)


def start(arguments, directory, file="output.txt"):
    process = LAB.Process(target=run, args=([str(each) for each in arguments], str(directory), file))
    process.start()
    return process


def finish(arguments, directory, code=0):
    """Run a command to its end and return what it printed."""
    process = start(arguments, directory)
    process.join(600)
    if process.is_alive():
        process.kill()  # its trials are asked to stop then
    output = (Path(directory) / "output.txt").read_text()
    assert process.exitcode == code, output
    return output


def wait_for(is_time, process=None):
    deadline = time.monotonic() + 120
    while not is_time():
        assert time.monotonic() < deadline, "nothing happened for two minutes"
        if process is not None and not process.is_alive():
            return False
        time.sleep(0.002)
    return True


def fingerprints(sweep):
    from rl_lab.tracking.fingerprint import fingerprint
    from rl_lab.tracking.run_directory import RunDirectory

    runs = sorted((Path(sweep) / "trials").iterdir())
    return {run.name: (fingerprint(RunDirectory.open(run)), (run / "metrics.jsonl").read_bytes()) for run in runs}


def lab(*words, code=0):
    done = subprocess.run([*LAB_WORDS, *words], capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr.strip().splitlines()[-1]


def rows(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def check_rows(directory):
    """No row is there twice."""
    for run in Path(directory, "trials").iterdir():
        steps = [(row["step"], "eval/return" in row) for row in rows(run)]
        assert steps == sorted({*steps}), run
