"""Records and keepers: real processes, but of commands that end at once."""

import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from rl_lab.core.errors import UsageError
from rl_lab.launching import keeper, record
from rl_lab.launching.order import Plan
from rl_lab.launching.record import LaunchError
from rl_lab.tracking.lock import exclusive_lock
from tests.launching.orders import order

VERSION = ("--version",)
WRONG = ("runs", "nonsense")
LONG_S = 120.0


@pytest.fixture
def make(tmp_path):
    def made(*tasks):
        return record.create(tmp_path / "launches", "local", order(*tasks, project=tmp_path), Plan())

    return made


def test_a_record_comes_back(tmp_path):
    commands = {"start": [["ssh", "far", "cd a && lab 'x y'"], ["rsync", "a", "b"]], "down": [["true"]]}
    what = order(project=tmp_path)
    made = record.create(tmp_path / "launches", "ssh", what, Plan({"job.sh": "true\n"}, commands))
    again = record.read(tmp_path / "launches", "mine")
    assert again == made
    assert again.commands == commands
    assert (again.words, again.tasks, again.results) == (what.words, what.tasks, what.results)
    assert (again.path / "job.sh").read_text() == "true\n"
    assert record.names(tmp_path / "launches") == ["mine"]
    assert not again.is_started()
    again.set_started()
    assert again.is_started()


def test_nothing_is_overwritten(make, tmp_path):
    before = (make(VERSION).path / "launch.yaml").read_bytes()
    with pytest.raises(UsageError, match="--name mine is taken"):
        make(WRONG)
    assert (tmp_path / "launches/mine/launch.yaml").read_bytes() == before
    assert os.listdir(tmp_path / "launches") == ["mine"]


@pytest.mark.parametrize("text", ["", "[", "name: mine", "schema_version: 99\nname: mine"])
def test_a_damaged_record_is_one_line(make, tmp_path, text):
    (make(VERSION).path / "launch.yaml").write_text(text)
    with pytest.raises(LaunchError, match="is damaged|schema_version 99"):
        record.read(tmp_path / "launches", "mine")


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a-", "a" * 51, "a/b", ".."])
def test_names_that_some_place_would_refuse(name):
    with pytest.raises(UsageError, match="--name"):
        record.check_name(name)


def test_new_names_are_good_ones():
    for of in ("ppo_cartpole", "A very, very long name of an experiment that nobody would type", "___"):
        assert record.check_name(record.new_name(of))
    assert record.new_name("a") != record.new_name("a")


def test_commands_run_in_turn_and_a_failure_holds_up_none(make):
    launch = make(WRONG, VERSION)
    assert keeper.state_of(launch).word == "new"
    keeper.start(launch)
    assert keeper.wait(launch, LONG_S)
    assert keeper.state_of(launch) == keeper.State("failed", (2, 0))
    log = (launch.path / "job.log").read_text()
    assert log.count("lab --version") == 1
    assert log.count("lab runs nonsense") == 1
    keeper.start(launch)  # only what has failed is tried again
    assert keeper.wait(launch, LONG_S)
    log = (launch.path / "job.log").read_text()
    assert log.count("lab --version") == 1
    assert log.count("lab runs nonsense") == 2


def test_a_launch_runs_once(make):
    launch = make(VERSION)
    with exclusive_lock(launch.path / "lock"):
        assert keeper.state_of(launch).word == "running"
        with pytest.raises(LaunchError, match="launch mine is running already"):
            keeper.start(launch)
        assert not keeper.wait(launch, 0.0)
    assert keeper.wait(launch, LONG_S)


@pytest.mark.parametrize(("codes", "word"), [([0], "done"), ([3], "failed"), ([143], "stopped"), ([None], "killed")])
def test_how_a_launch_without_a_keeper_stands(make, codes, word):
    launch = make(VERSION)
    (launch.path / "lock").touch()
    (launch.path / "codes.json").write_text(json.dumps(codes))
    assert keeper.state_of(launch).word == word


def test_nobody_else_is_stopped(make):
    """The number of a keeper that died may belong to any other process by now."""
    launch = make(VERSION)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as innocent:
        owner = {"pid": innocent.pid, "host": socket.gethostname(), "since": 0.0}
        (launch.path / "lock").write_text(json.dumps(owner))
        assert not keeper.stop(launch)
        innocent.communicate(b"\n")
    assert innocent.returncode == 0  # it ended by itself


def test_a_keeper_elsewhere_is_not_stopped_from_here(make):
    launch = make(VERSION)
    with exclusive_lock(launch.path / "lock"):
        (launch.path / "lock").write_text(json.dumps({"pid": os.getpid(), "host": "another", "since": 0.0}))
        with pytest.raises(LaunchError, match="runs on host another"):
            keeper.stop(launch)


def test_a_stop_before_the_first_command_counts(make):
    launch = make(VERSION, VERSION)
    one = keeper.Keeper(launch)
    one.pass_on(signal.SIGTERM, None)
    one.run()
    (launch.path / "lock").touch()
    assert keeper.state_of(launch) == keeper.State("stopped", (143, 143))
