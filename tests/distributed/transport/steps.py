"""Steps for the transport's tests: each holds its own number, so that a lost or doubled one shows."""

import torch

from rl_lab.distributed.transport.schema import Schema


def step(number, num_envs=2):
    return {
        "observations": {"state": torch.full((num_envs, 3), float(number)), "flags": torch.tensor([number % 2 == 0])},
        "actions": torch.full((num_envs, 2), number, dtype=torch.int64),
        "rewards": torch.arange(num_envs, dtype=torch.float32) + number,
        "terminated": torch.zeros(num_envs, dtype=torch.bool),
    }


SCHEMA = Schema(step(0))


def payload(number):
    return SCHEMA.encode(step(number))


def number_of(tree):
    """Return the number that a step was made with; every array of it agrees."""
    number = int(tree["actions"][0, 0])
    for (path, wanted), (_, found) in zip(_leaves(step(number)), _leaves(tree), strict=True):
        assert torch.equal(wanted, found), path
    return number


def _leaves(tree, path=""):
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, key)
        else:
            yield f"{path}.{key}", value
