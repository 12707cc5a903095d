"""Reports as they were recorded from devices, and a device file that is a pipe."""

import os
import time

import pytest

from rl_lab.core import ConfigError
from rl_lab.human.operators.device import DevicePerson
from rl_lab.human.operators.spacemouse import REST, SpaceMouseOperator, find_spacemouse, parse_report
from tests.human.bench import ARM, FAST, Bench


@pytest.mark.parametrize(
    ("report", "axes", "buttons"),
    [
        ("01 00 00 00 00 00 00", {}, set()),  # SpaceNavigator, as seen by Wireshark
        ("02 00 00 e2 ff 00 00", {"roll": 30 / 350}, set()),  # -30, about its second axis
        ("03 01 00", {}, {0}),
        ("03 03 00", {}, {0, 1}),
        ("01 5e 01 00 00 00 00", {"x": 1.0}, set()),  # 350
        ("01 00 00 a2 fe af 00", {"y": 1.0, "z": -0.5}, set()),  # -350: away from the person; 175: down
        ("01 ff 7f 00 00 00 00", {"x": 1.0}, set()),  # more than there should be
        ("01 af 00 00 00 00 00 00 00 00 00 51 ff", {"x": 0.5, "yaw": -0.5}, set()),  # all six in one
        ("17 64 00", {}, set()),  # the battery of a wireless one
        ("01 00", {}, set()),  # torn
        ("", {}, set()),
    ],
)
def test_reports(report, axes, buttons):
    read = parse_report(bytes.fromhex(report))
    assert read.axes == pytest.approx({**REST.axes, **axes})
    assert read.buttons == buttons


def test_what_a_report_does_not_speak_of_stays():
    moved = parse_report(bytes.fromhex("01 5e 01 00 00 00 00"))
    turned = parse_report(bytes.fromhex("02 00 00 00 00 5e 01"), moved)
    assert (turned.axes["x"], turned.axes["yaw"]) == (1.0, 1.0)


def test_it_is_found_among_other_devices(tmp_path):
    for name, identity in {"hidraw0": "0003:0000046D:0000C52B", "hidraw1": "0003:0000256F:0000C635"}.items():
        (tmp_path / name / "device").mkdir(parents=True)
        (tmp_path / name / "device" / "uevent").write_text(f"DRIVER=hid-generic\nHID_ID={identity}\n")
    assert find_spacemouse(tmp_path) == "/dev/hidraw1"
    assert find_spacemouse(tmp_path / "none") is None


def test_devices_that_vanish_while_they_are_looked_at_are_passed_over(tmp_path):
    (tmp_path / "hidraw0").mkdir()  # unplugged: nothing in it any more
    (tmp_path / "hidraw1" / "device").mkdir(parents=True)
    (tmp_path / "hidraw1" / "device" / "uevent").write_text("HID_ID=0003:0000256F:0000C635\n")
    assert find_spacemouse(tmp_path) == "/dev/hidraw1"
    assert find_spacemouse(tmp_path / "hidraw1" / "device" / "uevent") is None


@pytest.fixture
def mouse(tmp_path, monkeypatch):
    monkeypatch.setattr(DevicePerson, "RETRY_S", 0.0)
    path = tmp_path / "hidraw7"
    os.mkfifo(path)
    end = os.open(path, os.O_RDWR)
    bench = Bench(SpaceMouseOperator("anna", ARM, device=str(path), rules=FAST, release_s=0.0, dead_zone=0.0))
    bench.path, bench.end = path, end
    yield bench
    bench.close()
    os.close(bench.end)


def report(bench, text):
    os.write(bench.end, bytes.fromhex(text))


def test_moving_takes_over_and_rest_hands_back(mouse):
    assert mouse.step()
    assert not mouse.is_acting
    report(mouse, "01 af 00 00 00 00 00")
    mouse.step()
    assert (mouse.is_acting, mouse.action) == (True, [0.5, 0.0, 0.0])
    mouse.step()
    assert mouse.is_acting  # it is still pushed
    report(mouse, "01 00 00 00 00 00 00")
    mouse.step()
    assert not mouse.is_acting


def test_the_right_button_says_success(mouse):
    mouse.step()
    report(mouse, "03 02 00")
    mouse.step()
    assert mouse.verdict() == [1.0]
    mouse.step()
    mouse.step()
    assert not bool(mouse.last.terminated)  # a button that stays down speaks once


def test_unplugged_the_robot_holds_and_back_again_it_goes_on(mouse):
    report(mouse, "01 af 00 00 00 00 00")
    mouse.step()
    steps = mouse.operator.episode_step
    mouse.path.unlink()  # the device is gone, and so is whoever wrote to it
    os.close(mouse.end)
    assert not mouse.step()
    assert not mouse.step()
    assert mouse.operator.episode_step == steps
    assert mouse.lines[-1] == f"the SpaceMouse {mouse.path} is gone: the robot holds until it is back"
    os.mkfifo(mouse.path)
    mouse.end = os.open(mouse.path, os.O_RDWR)
    mouse.step_until(lambda: mouse.operator.desk.look().paused == "")
    report(mouse, "01 51 ff 00 00 00 00")
    mouse.step_until(lambda: mouse.is_acting and mouse.action == [-0.5, 0.0, 0.0])
    assert mouse.lines[-1] == "the device is back: going on"
    assert len(mouse.lines) == 2


def unplug(mouse):
    mouse.path.unlink()
    os.close(mouse.end)
    assert not mouse.step()


def plug_in(mouse):
    os.mkfifo(mouse.path)
    mouse.end = os.open(mouse.path, os.O_RDWR)
    mouse.step_until(lambda: any(line.startswith("the device is back") for line in mouse.lines))


@pytest.mark.parametrize("is_paused_before", [True, False])
def test_a_device_that_comes_back_does_not_end_the_pause_of_somebody(mouse, is_paused_before):
    desk = mouse.operator.desk
    report(mouse, "01 af 00 00 00 00 00")
    mouse.step()
    assert desk.look().controller == "anna"
    if is_paused_before:
        desk.pause("paused by bert")
    unplug(mouse)
    if not is_paused_before:
        desk.pause("paused by bert")
    plug_in(mouse)
    assert mouse.lines[-1] == "the device is back: paused by bert"
    assert not mouse.step()
    assert (desk.look().paused, desk.look().controller) == ("paused by bert", "anna")
    desk.go_on()
    report(mouse, "01 51 ff 00 00 00 00")
    mouse.step_until(lambda: mouse.is_acting and mouse.action == [-0.5, 0.0, 0.0])


def test_a_device_that_comes_back_leaves_another_in_control(mouse):
    report(mouse, "01 af 00 00 00 00 00")
    mouse.step()
    unplug(mouse)
    mouse.operator.desk.take_over("b", "bert")
    plug_in(mouse)
    mouse.step()
    assert (mouse.operator.desk.look().name, mouse.lines[-1]) == ("bert", "take_over: bert is in control")


def test_one_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"device: .*/none cannot be read \(No such file"):
        Bench(SpaceMouseOperator("anna", ARM, device=str(tmp_path / "none")))


@pytest.mark.manual
def test_a_real_one():
    """Push the cap to the right within ten seconds of the start, then let go: docs/operators.md."""
    bench = Bench(SpaceMouseOperator("anna", ARM, rules=FAST))
    deadline = time.monotonic() + 10.0
    bench.step()
    while not (bench.is_acting and bench.action[0] > 0.2):
        assert time.monotonic() < deadline, "nobody pushed the cap to the right"
        bench.step()
    bench.step_until(lambda: not bench.is_acting)
    bench.close()
