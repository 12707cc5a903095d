import pytest

from rl_lab.human.operators.desk import Desk, Refused
from rl_lab.human.web.access import MAX_SESSIONS, OPERATOR_SEATS, Denied
from rl_lab.human.web.sessions import Sessions


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def desk():
    return Desk({"arm": ("x", "gripper")})


@pytest.fixture
def people(desk, clock):
    return Sessions(desk, 0.5, lambda hand: False, clock)


def do(people, key, deed, **more):
    people.command({"session": key, "do": deed, **more})


def test_who_falls_silent_while_in_control_has_let_go(people, desk, clock):
    anna = people.join("anna", "operator")
    do(people, anna, "take_over")
    do(people, anna, "jog", motion={"x": 1})
    clock.now += 0.5
    assert people.check_silence() is None
    do(people, anna, "beat")
    clock.now += 0.49
    assert people.check_silence() is None
    clock.now += 0.02
    assert people.check_silence() == "anna fell silent while in control"
    assert (desk.look().controller, desk.look().paused) == (None, "anna fell silent while in control")
    assert people.check_silence() is None  # said once
    do(people, anna, "take_over")  # she is back
    assert (desk.look().name, desk.look().paused) == ("anna", "")


def test_who_is_forgotten_while_in_control_has_let_go(people, desk, clock):
    anna = people.join("anna", "operator")
    do(people, anna, "take_over")
    clock.now += 61.0  # nothing was looked at meanwhile: the run was busy
    people.join("bert", "operator")
    assert people.check_silence() == "anna left while in control"
    assert (desk.look().controller, desk.look().paused) == (None, "anna left while in control")


def test_a_command_that_is_done_after_its_session_left_is_undone(people, desk):
    anna = people.join("anna", "operator")
    late = people._heard(anna)  # another thread has read it, and is slow
    do(people, anna, "leave")
    people._take_over(late, {})
    assert desk.look().name == "anna"
    assert people.check_silence() == "anna left while in control"
    assert desk.look().controller is None


def test_silence_of_others_does_not_matter(people, desk, clock):
    people.join("anna", "operator")
    clock.now += 30.0
    assert people.check_silence() is None
    assert desk.look().paused == ""


def test_two_of_one_name_are_two(people):
    first, second = people.join("anna", "operator"), people.join("anna", "operator")
    do(people, first, "take_over")
    with pytest.raises(Refused, match="anna is in control"):
        do(people, second, "jog", motion={"x": 1})
    for deed in ("success", "failure", "abort"):
        with pytest.raises(Refused, match="anna is in control"):
            do(people, second, deed)
    do(people, second, "pause")  # a robot may be stopped by anybody who may act


def test_closing_the_page_lets_go(people, desk):
    anna = people.join("anna", "operator")
    do(people, anna, "take_over")
    do(people, anna, "leave")
    assert desk.look().paused == "anna left while in control"
    with pytest.raises(Denied, match="the session is over"):
        do(people, anna, "beat")


def test_viewers_only_look(people):
    eve = people.join("eve", "viewer")
    do(people, eve, "beat")
    for deed in ("take_over", "jog", "pause", "continue", "success", "abort", "gripper", "hand", "hand_back"):
        with pytest.raises(Denied) as caught:
            do(people, eve, deed, motion={})
        assert caught.value.status == 403


@pytest.mark.parametrize(
    "motion",
    [None, 1, {"x": "1"}, {"x": float("nan")}, {"x": float("inf")}, {"x": True}, {str(i): 0 for i in range(9)}],
)
def test_motion_is_numbers(people, motion):
    anna = people.join("anna", "operator")
    do(people, anna, "take_over")
    with pytest.raises(Denied) as caught:
        do(people, anna, "jog", motion=motion)
    assert caught.value.status == 400


def test_commands_and_people_are_limited(people, clock):
    anna = people.join("anna", "operator")
    for _ in range(60):
        do(people, anna, "beat")
    with pytest.raises(Denied) as caught:
        do(people, anna, "beat")
    assert caught.value.status == 429
    clock.now += 0.1
    do(people, anna, "beat")
    for number in range(MAX_SESSIONS - OPERATOR_SEATS - 1):
        people.join(f"p{number}", "viewer")
    with pytest.raises(Denied, match="12 people are here already") as caught:
        people.join("one more", "viewer")
    assert caught.value.status == 503
    for number in range(OPERATOR_SEATS):  # which viewers cannot take
        people.join(f"o{number}", "operator")
    with pytest.raises(Denied, match="16 people are here already"):
        people.join("one more", "operator")
    clock.now += 61.0
    people.join("one more", "viewer")  # who was silent for a minute has left
