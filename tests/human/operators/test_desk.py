import pytest

from rl_lab.human.operators.desk import Desk, Refused

HANDS = {"left": ("x", "gripper"), "right": ("x", "y", "gripper")}


@pytest.fixture
def desk():
    return Desk(HANDS)


def test_one_at_a_time(desk):
    desk.take_over("a", "anna")
    with pytest.raises(Refused, match="anna is in control"):
        desk.take_over("b", "bert")
    with pytest.raises(Refused, match="anna is in control"):
        desk.move("b", {"x": 1.0})
    desk.hand_back("a")
    with pytest.raises(Refused, match="take over first"):
        desk.move("a", {"x": 1.0})
    desk.take_over("b", "bert")
    assert desk.look().name == "bert"


def test_motion_lasts_and_a_tap_does_not(desk):
    desk.take_over("a", "anna")
    assert desk.is_idle
    desk.move("a", {"x": 3.0})
    assert not desk.is_idle
    assert [desk.take_step().motion for _ in range(2)] == [{"x": 1.0}] * 2  # cut to 1
    desk.move("a", {})
    assert desk.take_step().motion == {}
    desk.move("a", {"x": -1.0}, is_tap=True)
    assert [dict(desk.take_step().motion) for _ in range(2)] == [{"x": -1.0}, {}]


def test_pressed_and_let_go_between_two_steps_still_counts_once(desk):
    desk.take_over("a", "anna")
    desk.move("a", {"x": 0.5})
    desk.move("a", {"x": 0.0})
    assert [desk.take_step().motion["x"] for _ in range(2)] == [0.5, 0.0]


def test_hands_have_axes_of_their_own(desk):
    desk.take_over("a", "anna")
    with pytest.raises(Refused, match="hand 'left' has no axis 'y'"):
        desk.move("a", {"y": 1.0})
    desk.choose("a")
    desk.move("a", {"y": 1.0})
    desk.grip("a", True)
    assert (desk.look().hand, dict(desk.look().closes)) == ("right", {"right": True})
    desk.choose("a")
    assert (desk.look().hand, dict(desk.look().motion)) == ("left", {})  # another hand is not moved along
    with pytest.raises(Refused, match="there is no hand 'third'"):
        desk.choose("a", "third")


def test_a_pause_lets_go_and_taking_over_ends_it(desk):
    desk.take_over("a", "anna")
    desk.move("a", {"x": 1.0})
    desk.pause("paused by bert")
    desk.move("a", {"x": 1.0})
    assert (desk.look().paused, dict(desk.look().motion)) == ("paused by bert", {})
    desk.go_on()
    assert (desk.look().paused, dict(desk.look().motion), desk.look().name) == ("", {}, "anna")
    desk.pause("again")
    desk.take_over("a", "anna")
    assert desk.look().paused == ""


def test_endings_are_used_up_by_a_step(desk):
    desk.end("success", "anna")
    assert [desk.take_step().ending for _ in range(2)] == ["success", None]


@pytest.mark.parametrize(("on_loss", "paused"), [("pause", "anna is gone"), ("hand_back", "")])
def test_who_is_gone_has_let_go(on_loss, paused):
    desk = Desk(HANDS, on_loss)
    assert not desk.lose("a", "anna is gone")  # she was not in control
    desk.take_over("a", "anna")
    desk.move("a", {"x": 1.0})
    assert desk.lose("a", "anna is gone")
    seen = desk.look()
    assert (seen.controller, dict(seen.motion), seen.paused) == (None, {}, paused)
