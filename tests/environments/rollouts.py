"""Actions and comparisons that several test files need."""

from collections.abc import Mapping

import torch
from torch import Tensor

from rl_lab.core import Box, Discrete, MultiDiscrete, tree_map
from rl_lab.environments.gymnasium import GymnasiumEnv
from tests.environments import zoo  # noqa: F401  (registers its ids, here and in new processes)


def random_actions(spec, num_envs, steps, seed=0):
    """Return [T, N, ...] actions, some of them outside the bounds of a Box; dicts of them as a list of T."""
    generator = torch.Generator().manual_seed(seed)
    if isinstance(spec.action, Mapping):
        parts = {name: _random_part(leaf, num_envs, steps, generator) for name, leaf in spec.action.items()}
        return [{name: part[step] for name, part in parts.items()} for step in range(steps)]
    return _random_part(spec.action, num_envs, steps, generator)


def _random_part(space, num_envs, steps, generator):
    if isinstance(space, Discrete):
        return torch.randint(space.n, (steps, num_envs), generator=generator)
    if isinstance(space, MultiDiscrete):
        columns = [torch.randint(n, (steps, num_envs), generator=generator) for n in space.nvec]
        return torch.stack(columns, dim=-1)
    assert isinstance(space, Box)
    return torch.randn(steps, num_envs, *space.shape, generator=generator)


def assert_equal(a, b):
    """Assert that two trees of tensors are equal to the bit."""
    assert type(a) is type(b) or isinstance(a, tuple | list | Mapping)
    if isinstance(a, Mapping):
        assert a.keys() == b.keys()
        a, b = list(a.values()), list(b.values())
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
        return
    for part, other in zip(a, b, strict=True):
        assert_equal(part, other)


def continue_gymnasium(kwargs, state, actions):
    """Go on from `state` in this process and return every step as arrays; for a test that starts a new process."""
    torch.set_num_threads(1)
    env = GymnasiumEnv(**kwargs)
    env.reset(987654321)
    env.set_state(state)
    return [tree_map(Tensor.numpy, tuple(env.step(torch.from_numpy(action)))) for action in actions]
