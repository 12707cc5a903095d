"""Scenes of MinAtar's games: copies that stand where a test wants them, and pictures as sets of cells."""

import torch

NONE, LEFT, UP, RIGHT, DOWN, FIRE = range(6)


def scene(kind, *, num_envs=1, game=None, **changes):
    """Return an environment without sticky actions whose state is the start of a game with these changes."""
    env = kind(num_envs, repeat_action_probability=0.0, **(game or {}))
    env.reset(0)
    state = env.get_state()
    assert changes.keys() <= state["dynamics"].keys()
    for name, value in changes.items():
        old = state["dynamics"][name]
        state["dynamics"][name] = torch.as_tensor(value, dtype=old.dtype).expand_as(old).contiguous()
    env.set_state(state)
    return env


def lanes(rest, **special):
    """Return eight values, `rest` but for those given as row5=..., with the rows as the picture numbers them."""
    return [special.get(f"row{row}", rest) for row in range(1, 9)]


def board(*cells):
    """Return the ten rows of bits with these (row, column) set."""
    return [sum(1 << column for row, column in cells if row == y) for y in range(10)]


def rectangle(rows, columns):
    return {(row, column) for row in rows for column in columns}


def act(env, *actions):
    """Take each action in all copies and return the steps."""
    return [env.step(torch.full((env.num_envs,), action)) for action in actions]


def seen(picture, channel):
    """Return the (row, column) of the cells that are set in a channel of the picture of the first copy."""
    return {tuple(cell) for cell in picture[0, channel].nonzero().tolist()}


def value(env, name):
    """Return a number of the state of the first copy."""
    return env.get_state()["dynamics"][name][0].tolist()
