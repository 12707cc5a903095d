"""Breakout of MinAtar, scene by scene: every expectation was worked out on paper from the rules."""

import pytest
import torch

from rl_lab.environments.minatar.breakout import MinAtarBreakout
from tests.environments.minatar_scenes import LEFT, NONE, RIGHT, act, board, rectangle, scene, seen, value

PADDLE, BALL, TRAIL, BRICK = range(4)
WALL = rectangle((1, 2, 3), range(10))


def ball(row, column, dy, dx, **changes):
    position = {"y": row, "x": column, "last_y": row, "last_x": column, "dy": dy, "dx": dx}
    return scene(MinAtarBreakout, **position, **changes)


def flight(env, steps):
    """Return the (row, column) of the ball after each step without moving the paddle."""
    return [next(iter(seen(step.final_observations, BALL))) for step in act(env, *[NONE] * steps)]


def test_a_game_starts_at_one_of_the_edges():
    picture = MinAtarBreakout(1000).reset(3)
    assert seen(picture, BRICK) == WALL
    assert seen(picture, PADDLE) == {(9, 4)}
    starts = picture[:, BALL].flatten(1).argmax(-1)
    assert set(starts.tolist()) == {30, 39}  # row 3, the first or the last column
    assert (starts == 30).float().mean() == pytest.approx(0.5, abs=0.05)
    assert torch.equal(picture[:, BALL], picture[:, TRAIL])
    assert (picture.flatten(2).count_nonzero(-1) == torch.tensor([1, 1, 1, 30])).all()


def test_the_ball_flies_along_diagonals_and_leaves_a_trail():
    env = ball(4, 2, 1, 1)
    step = act(env, NONE)[0]
    assert seen(step.observations, BALL) == {(5, 3)}
    assert seen(step.observations, TRAIL) == {(4, 2)}
    assert flight(env, 2) == [(6, 4), (7, 5)]


def test_walls_reflect():
    assert flight(ball(5, 1, 1, -1), 3) == [(6, 0), (7, 0), (8, 1)]
    assert flight(ball(7, 8, -1, 1), 4) == [(6, 9), (5, 9), (4, 8), (4, 7)]  # and then a brick at (3, 7)
    assert flight(ball(1, 4, -1, 1, bricks=0), 3) == [(0, 5), (0, 6), (1, 7)]
    assert flight(ball(0, 9, -1, 1, bricks=0), 2) == [(0, 9), (1, 8)]  # a corner turns both ways


def test_a_brick_breaks_pays_and_reflects():
    env = ball(4, 5, -1, 1)
    first, second = act(env, NONE, NONE)
    assert (first.rewards.item(), first.terminated.item()) == (1.0, False)
    assert seen(first.observations, BRICK) == WALL - {(3, 6)}
    assert seen(first.observations, BALL) == {(4, 6)}  # sideways it goes on
    assert (second.rewards.item(), seen(second.observations, BALL)) == (0.0, {(5, 7)})


def test_right_after_a_brick_the_ball_flies_through_bricks():
    env = ball(4, 5, -1, 1, struck=True)
    steps = act(env, NONE, NONE, NONE, NONE)
    assert [step.rewards.item() for step in steps] == [0.0] * 4
    assert [next(iter(seen(step.observations, BALL))) for step in steps] == [(3, 6), (2, 7), (1, 8), (0, 9)]
    assert seen(steps[-1].observations, BRICK) == WALL
    # The corner turns it; now that it has been in the open, the next brick breaks.
    assert [step.rewards.item() for step in act(env, NONE, NONE)] == [0.0, 1.0]


@pytest.mark.parametrize(
    ("paddle", "action", "landing", "after", "terminated"),
    [
        (4, NONE, (8, 5), (7, 6), False),  # under the ball: it goes on to the right
        (5, NONE, (8, 5), (7, 4), False),  # where the ball goes: it flies back where it came from
        (3, RIGHT, (8, 5), (7, 6), False),  # the paddle moves first
        (6, LEFT, (8, 5), (7, 4), False),
        (4, LEFT, (9, 5), None, True),
        (6, NONE, (9, 5), None, True),
        (0, LEFT, (9, 5), None, True),
    ],
)
def test_the_paddle_reflects_or_the_game_is_over(paddle, action, landing, after, terminated):
    env = ball(8, 4, 1, 1, paddle=paddle)
    step = act(env, action)[0]
    assert seen(step.final_observations, BALL) == {landing}
    assert (step.terminated.item(), step.truncated.item(), step.rewards.item()) == (terminated, False, 0.0)
    if terminated:
        assert seen(step.observations, BALL) <= {(3, 0), (3, 9)}
        assert seen(step.observations, PADDLE) == {(9, 4)}
    else:
        assert flight(env, 1) == [after]


def test_at_the_edge_the_paddle_and_the_wall_both_reflect():
    assert flight(ball(8, 9, 1, 1, paddle=9), 2) == [(8, 9), (7, 8)]


def test_the_paddle_stays_on_the_board():
    env = ball(4, 5, 1, 1, bricks=0)
    act(env, *[LEFT] * 4)
    assert value(env, "paddle") == 0
    assert seen(act(env, LEFT)[0].final_observations, PADDLE) == {(9, 0)}


def test_a_new_wall_stands_when_the_ball_comes_down():
    env = ball(7, 4, 1, 1, bricks=0, paddle=5)
    first, second = act(env, NONE, NONE)
    assert seen(first.observations, BRICK) == set()
    assert seen(second.observations, BRICK) == WALL
    assert seen(second.observations, BALL) == {(8, 6)}
    assert not second.terminated
    env = ball(8, 4, 1, 1, bricks=board((2, 2)), paddle=4)
    assert seen(act(env, NONE)[0].observations, BRICK) == {(2, 2)}
