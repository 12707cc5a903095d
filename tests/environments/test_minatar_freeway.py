"""Freeway of MinAtar, scene by scene: every expectation was worked out on paper from the rules."""

import pytest
import torch

from rl_lab.environments.minatar.freeway import MinAtarFreeway
from tests.environments.minatar_scenes import DOWN, LEFT, NONE, UP, act, lanes, scene, seen, value

CHICKEN, CAR, TRAIL = range(3)  # and four more trails
PARKED = {"car_x": 8, "car_timer": 10_000, "car_pause": 1}


def test_cars_start_at_the_left_with_drawn_speeds():
    picture = MinAtarFreeway(3000).reset(5)
    assert seen(picture, CHICKEN) == {(9, 4)}
    assert seen(picture, CAR) == {(row, 0) for row in range(1, 9)}
    trails = picture[:, TRAIL:].bool()
    assert (trails.sum((1, 3)) == torch.tensor([0, *[1] * 8, 0])).all()  # one per lane
    shares = trails.float().sum(2).mean(0) / 8  # [5, 10]
    expected = torch.zeros(5, 10)
    expected[:, [1, 9]] = 0.1  # behind a car that goes left is right of it; behind one that goes right is the other end
    torch.testing.assert_close(shares, expected, atol=0.008, rtol=0)  # four standard errors


def test_the_chicken_moves_every_third_step_and_crosses_in_nine_moves():
    env = scene(MinAtarFreeway, **PARKED)
    steps = act(env, *[UP] * 28)
    rows = [next(iter(seen(step.observations, CHICKEN))) for step in steps]
    # It may move at steps 4, 7, 10, ... and reaches the top at step 28, where it starts anew.
    assert rows[:-1] == [(9 - (t - 1) // 3, 4) if t > 3 else (9, 4) for t in range(1, 28)]
    assert rows[-1] == (9, 4)
    assert [step.rewards.item() for step in steps] == [0.0] * 27 + [1.0]
    assert not any(step.terminated.item() for step in steps)


def test_a_crossing_draws_speeds_but_leaves_the_cars_where_they_are():
    env = scene(MinAtarFreeway, num_envs=500, y=1, player_timer=0, **PARKED)
    assert (act(env, UP)[0].rewards == 1).all()
    state = env.get_state()["dynamics"]
    assert (state["car_x"] == 8).all()
    assert set(state["car_pause"].flatten().tolist()) == {-5, -4, -3, -2, -1, 1, 2, 3, 4, 5}
    assert torch.equal(state["car_timer"], state["car_pause"].abs() - 1)


@pytest.mark.parametrize("action", [NONE, LEFT])
def test_only_up_and_down_move_the_chicken_and_cost_a_pause(action):
    env = scene(MinAtarFreeway, player_timer=0, y=5, **PARKED)
    act(env, action)
    assert (value(env, "y"), value(env, "player_timer")) == (5, 0)
    act(env, DOWN)
    assert (value(env, "y"), value(env, "player_timer")) == (6, 2)
    env = scene(MinAtarFreeway, player_timer=0, **PARKED)
    act(env, DOWN)  # against the border
    assert (value(env, "y"), value(env, "player_timer")) == (9, 2)


@pytest.mark.parametrize(
    ("start", "action", "car_x", "car_timer", "pause", "row"),
    [
        (5, NONE, 3, 0, 2, 9),  # runs into the chicken
        (5, NONE, 5, 0, -2, 9),
        (5, NONE, 3, 1, 2, 5),  # not yet
        (6, UP, 4, 3, 2, 9),  # stands where the chicken goes
        (6, UP, 4, 0, 2, 9),  # is about to leave: too late
        (6, UP, 3, 0, 1, 9),
        (5, UP, 4, 3, 2, 4),  # the chicken leaves in time
        (5, NONE, 5, 0, 2, 5),
    ],
)
def test_a_car_sends_the_chicken_back(start, action, car_x, car_timer, pause, row):
    only = {"car_x": lanes(8, row5=car_x), "car_timer": lanes(50, row5=car_timer), "car_pause": lanes(1, row5=pause)}
    env = scene(MinAtarFreeway, y=start, player_timer=0, **only)
    step = act(env, action)[0]
    assert seen(step.observations, CHICKEN) == {(row, 4)}
    assert (step.rewards.item(), step.terminated.item()) == (0.0, False)


def test_cars_move_at_their_pace_and_come_in_again_at_the_other_side():
    pauses = [1, 2, 3, 4, 5, -1, -2, -5]
    env = scene(MinAtarFreeway, car_x=9, car_timer=[abs(pause) for pause in pauses], car_pause=pauses)
    for t in range(1, 61):
        picture = act(env, NONE)[0].observations
        for row, pause in enumerate(pauses, 1):
            moves, way = t // (abs(pause) + 1), 1 if pause > 0 else -1
            assert (row, (9 + way * moves) % 10) in seen(picture, CAR)
            assert {c for r, c in seen(picture, CAR + abs(pause)) if r == row} == {(9 + way * (moves - 1)) % 10}
        assert len(seen(picture, CAR)) == 8


def test_time_is_up_after_2501_steps_unless_it_is_cut_before():
    env = scene(MinAtarFreeway, elapsed=2499)
    ends = [(step.terminated.item(), step.truncated.item()) for step in act(env, NONE, NONE, NONE)]
    assert ends == [(False, False), (True, False), (False, False)]
    env = scene(MinAtarFreeway, elapsed=2498, game={"max_episode_steps": 2500})
    ends = [(step.terminated.item(), step.truncated.item()) for step in act(env, NONE, NONE, NONE)]
    assert ends == [(False, False), (False, True), (False, False)]
