"""A launch on a Ray cluster of one node with token authentication: submitted, stopped, gone on with."""

import json
import os
import secrets
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rl_lab.cli.main import app

pytestmark = pytest.mark.ray
LONG_S = 240.0


def free_ports(count):
    with_sockets = [socket.socket() for _ in range(count)]
    for one in with_sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in with_sockets]
    for one in with_sockets:
        one.close()
    return ports


def wait_until(is_true):
    end = time.monotonic() + LONG_S
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.2)


@pytest.fixture
def address(tmp_path, monkeypatch):
    """Start a cluster with a token of its own, and end it by its own process."""
    pytest.importorskip("ray")
    pytest.importorskip("aiohttp_cors")  # of ray[default], which has the dashboard
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    programs = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    port, dashboard = free_ports(2)
    words = ["--head", "--block", f"--port={port}", f"--dashboard-port={dashboard}", "--dashboard-host=127.0.0.1"]
    # Ray takes ports of 10002 to 19999 for its workers otherwise; sockets have names of 107 characters at most
    words += ["--min-worker-port=0", "--max-worker-port=0", "--num-cpus=2", "--disable-usage-stats"]
    with (tmp_path / "ray.txt").open("wb") as log:
        process = subprocess.Popen([programs / "ray", "start", *words], stdout=log, stderr=log)
    try:
        wait_until(lambda: b"block forever" in (tmp_path / "ray.txt").read_bytes() or process.poll() is not None)
        assert process.poll() is None, (tmp_path / "ray.txt").read_text()
        yield f"http://127.0.0.1:{dashboard}"
    finally:
        process.terminate()
        process.wait(LONG_S)


def lab(*words):
    result = CliRunner().invoke(app, ["launch", *words])
    assert result.exit_code == 0, result.output
    return result.stdout


def rows(run):
    file = run / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [line for line in lines if line.endswith("\n")]


def test_a_job_is_stopped_with_a_checkpoint_and_goes_on(address, tmp_path):
    endless = ("train", "+experiment=ppo_cartpole", "training.total_timesteps=1_000_000_000")
    lab("ray", "--address", address, "--name", "mine", *endless)
    run = tmp_path / "experiments" / "mine"
    wait_until(lambda: rows(run))
    assert "RUNNING" in lab("status", "mine")
    assert "ppo_cartpole" in lab("logs", "mine")
    lab("down", "mine")
    wait_until(lambda: (run / "status").read_text() == "stopped\n")
    before = rows(run)
    lab("up", "mine")
    wait_until(lambda: len(rows(run)) > len(before))
    lab("down", "mine")
    wait_until(lambda: (run / "status").read_text() == "stopped\n")
    lines = rows(run)
    assert lines[: len(before)] == before
    assert len({*lines}) == len(lines)  # every row once
    steps = [json.loads(line)["step"] for line in lines]
    assert steps == sorted(steps)
