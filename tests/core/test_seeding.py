import random

import numpy as np
import torch

from rl_lab.core import RngStreams, global_rng_state, isolated_rng, seed_everything, set_global_rng_state


def draw():
    return random.random(), np.random.rand(), torch.rand(2).tolist()


def test_streams_are_named_stable_and_independent():
    streams = RngStreams(7)
    assert streams.seed("env") == RngStreams(7).seed("env")
    assert len({streams.seed("env"), streams.seed("env", 1), streams.seed("eval"), RngStreams(8).seed("env")}) == 4
    assert 0 <= streams.seed("env") < 2**63


def test_state_brings_every_stream_back():
    seed_everything(3)
    random.gauss(0, 1)
    state = global_rng_state()
    expected = draw()
    seed_everything(4)
    set_global_rng_state(state)
    assert draw() == expected


def test_an_isolated_block_leaves_no_trace_and_depends_only_on_its_seed():
    seed_everything(0)
    expected = draw()
    seed_everything(0)
    with isolated_rng(5):
        inside = draw()
    assert draw() == expected
    with isolated_rng(5):
        assert draw() == inside
