"""Asterix of MinAtar, scene by scene: every expectation was worked out on paper from the rules."""

import pytest
import torch

from rl_lab.environments.minatar.asterix import MinAtarAsterix
from tests.environments.minatar_scenes import DOWN, LEFT, NONE, RIGHT, UP, act, lanes, scene, seen, value

PLAYER, ENEMY, TRAIL, GOLD = range(4)


def runner(row, column, *, goes_right, is_gold, **changes):
    """Return a game with one runner and the player in the middle, at (5, 5)."""
    return scene(
        MinAtarAsterix,
        is_running=lanes(False, **{f"row{row}": True}),
        runner_x=lanes(0, **{f"row{row}": column}),
        goes_right=goes_right,
        is_gold=is_gold,
        **changes,
    )


def test_the_first_runner_comes_at_step_11_and_moves_at_once():
    env = scene(MinAtarAsterix, num_envs=200)
    steps = act(env, *[NONE] * 16)
    assert not any(step.observations[:, ENEMY:].any() for step in steps[:10])
    for step, distance in ((steps[10], 1), (steps[14], 1), (steps[15], 2)):  # every fifth step it moves
        there = step.observations[:, ENEMY] | step.observations[:, GOLD]
        assert (there.flatten(1).count_nonzero(-1) == 1).all()
        columns = there.amax(1).argmax(-1)
        assert set(columns.tolist()) == {distance, 9 - distance}
        behind = torch.where(columns < 5, columns - 1, columns + 1)
        assert torch.equal(step.observations[:, TRAIL].amax(1).argmax(-1), behind)
        assert torch.equal(step.observations[:, TRAIL].amax(2), there.amax(2))  # in the same row
    assert act(env, *[NONE] * 4)[-1].observations[:, TRAIL].flatten(1).count_nonzero(-1).max() == 1
    assert (act(env, NONE)[0].observations[:, TRAIL].flatten(1).count_nonzero(-1) == 2).all()  # the second, at step 21


@pytest.mark.parametrize("occupied", [(), (1, 2, 5, 8)])
def test_a_row_a_side_and_a_kind_are_drawn(occupied):
    num = 8000
    is_running = lanes(False, **{f"row{row}": True for row in occupied})
    env = scene(MinAtarAsterix, num_envs=num, is_running=is_running, runner_x=2, spawn_timer=0, move_timer=9)
    act(env, NONE)
    state = env.get_state()["dynamics"]
    new = state["is_running"] & ~torch.tensor(is_running)
    assert (new.sum(-1) == 1).all()
    rows = new.float().mean(0)
    free = [row for row in range(1, 9) if row not in occupied]
    assert rows.nonzero().flatten().add(1).tolist() == free
    assert rows[rows > 0].sub(1 / len(free)).abs().max() < 0.02  # four standard errors
    assert state["is_gold"][new].float().mean() == pytest.approx(1 / 3, abs=0.022)
    goes_right = state["goes_right"][new]
    assert goes_right.float().mean() == pytest.approx(1 / 2, abs=0.023)
    assert torch.equal(state["runner_x"][new], torch.where(goes_right, 0, 9))
    assert (state["spawn_timer"] == 9).all()


def test_nothing_comes_where_every_row_is_taken():
    env = scene(MinAtarAsterix, is_running=True, runner_x=2, is_gold=True, spawn_timer=0, move_timer=9)
    assert seen(act(env, NONE)[0].observations, GOLD) == {(row, 2) for row in range(1, 9)}
    assert value(env, "spawn_timer") == 9


@pytest.mark.parametrize("is_gold", [True, False])
@pytest.mark.parametrize(
    ("row", "column", "action", "changes"),
    [
        (5, 6, RIGHT, {}),
        (4, 5, UP, {}),
        (6, 5, DOWN, {}),
        (5, 4, NONE, {"move_timer": 0, "goes_right": True}),
        (5, 6, NONE, {"move_timer": 0, "goes_right": False}),
        (5, 5, NONE, {"move_timer": 0, "goes_right": True}),  # met before it moves on
    ],
)
def test_gold_pays_and_enemies_end_the_game(row, column, action, changes, is_gold):
    env = runner(row, column, is_gold=is_gold, **({"goes_right": False} | changes))
    step = act(env, action)[0]
    assert (step.rewards.item(), step.terminated.item()) == ((1.0, False) if is_gold else (0.0, True))
    assert seen(step.final_observations, GOLD) == set()
    assert len(seen(step.final_observations, ENEMY)) == (0 if is_gold else 1)
    if not is_gold:
        assert seen(step.observations, PLAYER) == {(5, 5)}
        assert not step.observations[0, ENEMY:].any()


def test_a_runner_that_is_passed_by_is_not_met():
    env = runner(5, 6, goes_right=False, is_gold=True, move_timer=0)
    step = act(env, LEFT)[0]
    assert (step.rewards.item(), seen(step.observations, PLAYER), seen(step.observations, GOLD)) == (
        0.0,
        {(5, 4)},
        {(5, 5)},
    )
    assert seen(step.observations, TRAIL) == {(5, 6)}


@pytest.mark.parametrize(("column", "goes_right", "before"), [(0, False, (3, 1)), (9, True, (3, 8))])
def test_runners_leave_at_the_edges(column, goes_right, before):
    env = runner(3, column, goes_right=goes_right, is_gold=False, move_timer=1)
    first, second = act(env, NONE, NONE)
    assert (seen(first.observations, ENEMY), seen(first.observations, TRAIL)) == ({(3, column)}, {before})
    assert not second.observations[0, ENEMY:].any()


@pytest.mark.parametrize(
    ("action", "place"), [(LEFT, (5, 0)), (RIGHT, (5, 9)), (UP, (1, 5)), (DOWN, (8, 5)), (NONE, (5, 5))]
)
def test_the_player_stays_on_the_board_and_off_the_first_and_last_row(action, place):
    env = scene(MinAtarAsterix)
    assert seen(act(env, *[action] * 9)[-1].observations, PLAYER) == {place}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # (interval of spawning, interval of moving, ramps so far), when a ramp is due
        ((10, 5, 0), (9, 5, 1)),
        ((9, 5, 1), (8, 4, 2)),
        ((2, 1, 8), (1, 1, 9)),
        ((1, 3, 9), (1, 2, 10)),
        ((1, 3, 10), (1, 3, 11)),
        ((1, 1, 12), (1, 1, 12)),
    ],
)
def test_ramps_shrink_the_intervals(before, after):
    names = ("spawn_interval", "move_interval", "num_ramps")
    changes = dict(zip(names, before, strict=True))
    env = scene(MinAtarAsterix, ramp_timer=-1, spawn_timer=0, move_timer=0, **changes)
    act(env, NONE)
    assert tuple(value(env, name) for name in names) == after
    assert value(env, "ramp_timer") == (-1 if before == after else 100)
    # Clocks that ran out at the same step start from the old intervals.
    assert (value(env, "spawn_timer"), value(env, "move_timer")) == (before[0] - 1, before[1] - 1)
    fixed = scene(MinAtarAsterix, ramp_timer=-1, game={"ramping": False}, **changes)
    act(fixed, NONE)
    assert tuple(value(fixed, name) for name in names) == before


def test_the_first_ramp_is_at_step_102():
    env = scene(MinAtarAsterix, num_envs=64)
    for _ in range(110):
        act(env, NONE)
        state = env.get_state()["dynamics"]
        assert torch.equal(state["spawn_interval"], torch.where(state["elapsed"] >= 102, 9, 10))
    assert (state["elapsed"] >= 102).any()
