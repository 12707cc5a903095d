"""Space Invaders of MinAtar, scene by scene: every expectation was worked out on paper from the rules."""

import pytest

from rl_lab.environments.minatar.space_invaders import MinAtarSpaceInvaders
from tests.environments.minatar_scenes import FIRE, LEFT, NONE, RIGHT, act, board, rectangle, scene, seen, value

CANNON, ALIEN, ALIEN_LEFT, ALIEN_RIGHT, BULLET, ALIEN_BULLET = range(6)
WAVE = rectangle(range(4), range(2, 8))
QUIET = {"alien_shot_timer": 9, "move_timer": 99}


def invaders(*aliens, **changes):
    return scene(MinAtarSpaceInvaders, aliens=board(*aliens), **{**QUIET, **changes})


def test_a_game_starts_with_24_aliens_that_go_left():
    picture = MinAtarSpaceInvaders(3).reset(0)
    cells = [seen(picture, channel) for channel in range(6)]
    assert cells == [{(9, 5)}, WAVE, WAVE, set(), set(), set()]


def test_shots_rise_a_row_per_step_and_take_five_steps_to_reload():
    env = scene(MinAtarSpaceInvaders)
    steps = act(env, *[FIRE] * 12)
    # The first shot reaches row 3 at step 6; the second, fired then, finds row 2 at step 12; the third left at step 11.
    bullets = [seen(step.observations, BULLET) for step in steps]
    assert bullets[:7] == [{(8, 5)}, {(7, 5)}, {(6, 5)}, {(5, 5)}, {(4, 5)}, {(8, 5)}, {(7, 5)}]
    assert bullets[10:] == [{(3, 5), (8, 5)}, {(7, 5)}]
    assert [step.rewards.item() for step in steps] == [float(t in (6, 12)) for t in range(1, 13)]
    assert seen(steps[-1].observations, ALIEN) == WAVE - {(3, 5), (2, 5)}


def test_shots_leave_at_the_top_and_several_aliens_pay_at_once():
    env = invaders((1, 1), (4, 7), (0, 0), bullets=board((0, 3), (2, 1), (5, 7)))
    step = act(env, NONE)[0]
    assert step.rewards.item() == 2.0
    assert (seen(step.observations, ALIEN), seen(step.observations, BULLET)) == ({(0, 0)}, set())


def test_aliens_shoot_at_step_11_and_hit_at_step_17():
    env = scene(MinAtarSpaceInvaders)
    steps = act(env, *[NONE] * 17)
    shots = [seen(step.final_observations, ALIEN_BULLET) for step in steps]
    assert shots == [set()] * 10 + [{(row, 5)} for row in range(3, 10)]
    assert [step.terminated.item() for step in steps] == [False] * 16 + [True]
    assert seen(steps[-1].observations, ALIEN_BULLET) == set()
    env = scene(MinAtarSpaceInvaders)
    assert not any(step.terminated.item() for step in act(env, *[NONE] * 16, LEFT, NONE))


@pytest.mark.parametrize(
    ("aliens", "cannon", "shooter"),
    [
        ([(0, 3), (2, 3), (5, 9)], 4, (2, 3)),  # the lowest of the nearest column
        ([(0, 3), (5, 7)], 5, (0, 3)),  # as near on both sides: the left one
        ([(4, 4), (1, 5)], 5, (1, 5)),
        ([(2, 0)], 9, (2, 0)),
    ],
)
def test_the_nearest_alien_shoots(aliens, cannon, shooter):
    env = invaders(*aliens, cannon=cannon, alien_shot_timer=0)
    step = act(env, NONE)[0]
    assert seen(step.observations, ALIEN_BULLET) == {shooter}
    assert value(env, "alien_shot_timer") == 9


def test_an_alien_that_is_hit_as_it_shoots_leaves_its_bullet():
    env = invaders((4, 5), (0, 0), bullets=board((5, 5)), alien_shot_timer=0)
    step = act(env, NONE)[0]
    assert (step.rewards.item(), seen(step.observations, ALIEN_BULLET)) == (1.0, {(4, 5)})


def test_aliens_move_every_12_steps():
    env = scene(MinAtarSpaceInvaders, move_timer=11)
    columns = []
    for _ in range(30):
        step = act(env, NONE)[0]
        if step.terminated.item():
            break
        columns.append(min(column for _, column in seen(step.observations, ALIEN)))
    assert columns[:16] == [2] * 11 + [1] * 5  # then the bullet of step 11 arrives


def test_the_fewer_the_faster_and_they_sink_where_they_turn():
    env = invaders((2, 7), move_timer=0, goes_right=True)
    path = [next(iter(seen(step.observations, ALIEN))) for step in act(env, *[NONE] * 6)]
    assert path == [(2, 8), (2, 9), (3, 9), (3, 8), (3, 7), (3, 6)]  # one alien: a cell per step
    env = invaders((2, 1), (5, 4), (1, 0), move_timer=0)
    steps = act(env, *[NONE] * 4)
    assert seen(steps[0].observations, ALIEN) == {(3, 1), (6, 4), (2, 0)}  # the edge turns them all
    assert seen(steps[0].observations, ALIEN_LEFT) == set()
    assert seen(steps[0].observations, ALIEN_RIGHT) == seen(steps[0].observations, ALIEN)
    assert seen(steps[2].observations, ALIEN) == {(3, 1), (6, 4), (2, 0)}
    assert seen(steps[3].observations, ALIEN) == {(3, 2), (6, 5), (2, 1)}  # three aliens: every third step


@pytest.mark.parametrize(
    ("aliens", "action", "changes", "terminated"),
    [
        ([(9, 5)], NONE, {}, True),
        ([(9, 4)], NONE, {}, False),
        ([(9, 4)], LEFT, {}, True),  # the cannon runs into it
        ([(9, 4)], NONE, {"move_timer": 0, "goes_right": True}, True),  # it runs into the cannon
        ([(9, 5)], RIGHT, {"move_timer": 0, "goes_right": True}, True),  # both move: it follows
        ([(9, 0)], NONE, {"move_timer": 0}, True),  # it would sink below the ground
        ([(9, 1)], NONE, {"move_timer": 0}, False),
        ([(8, 0), (4, 5)], NONE, {"move_timer": 0}, False),
        ([(8, 0), (8, 5)], NONE, {"move_timer": 0}, True),  # sinks onto the cannon
        ([(0, 0)], NONE, {"alien_bullets": board((8, 5))}, True),
        ([(0, 0)], RIGHT, {"alien_bullets": board((8, 5))}, False),
        ([(0, 0)], RIGHT, {"alien_bullets": board((8, 6))}, True),
        ([(0, 0)], NONE, {"alien_bullets": board((9, 5))}, False),  # has gone into the ground
    ],
)
def test_what_ends_the_game(aliens, action, changes, terminated):
    step = act(invaders(*aliens, **changes), action)[0]
    assert (step.terminated.item(), step.truncated.item()) == (terminated, False)


@pytest.mark.parametrize(
    ("interval", "ramping", "after"), [(12, True, 11), (7, True, 6), (6, True, 6), (12, False, 12)]
)
def test_a_cleared_wave_is_followed_by_a_faster_one(interval, ramping, after):
    changes = {"bullets": board((6, 4), (7, 9)), "move_interval": interval, "game": {"ramping": ramping}}
    env = invaders((5, 4), **changes, goes_right=True)
    step = act(env, NONE)[0]
    assert (step.rewards.item(), step.terminated.item()) == (1.0, False)
    assert seen(step.observations, ALIEN) == seen(step.observations, ALIEN_RIGHT) == WAVE  # the way stays
    assert seen(step.observations, BULLET) == {(6, 9)}
    assert value(env, "move_interval") == after


def test_a_fast_wave_moves_at_its_interval():
    env = scene(MinAtarSpaceInvaders, move_interval=8, move_timer=0, alien_shot_timer=9)
    lefts = [min(column for _, column in seen(step.observations, ALIEN)) for step in act(env, *[NONE] * 10)]
    assert lefts == [1] * 8 + [0] * 2


@pytest.mark.parametrize(("action", "columns"), [(LEFT, [4, 3, 2, 1, 0, 0]), (RIGHT, [6, 7, 8, 9, 9, 9])])
def test_the_cannon_stays_on_the_board(action, columns):
    steps = act(invaders((0, 0)), *[action] * 6)
    assert [seen(step.observations, CANNON) for step in steps] == [{(9, column)} for column in columns]
