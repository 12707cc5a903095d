import torch

from rl_lab.buffers.rollout import RolloutBuffer
from rl_lab.core import Box, EnvSpec


def chunk(start, stop):
    steps = torch.arange(start, stop).float().unsqueeze(-1).expand(-1, 2)
    return {"rewards": steps, "observations": {"a": steps.unsqueeze(-1)}, "carry": (steps, steps + 1)}


def test_chunks_come_out_as_one_rollout_once():
    buffer = RolloutBuffer()
    assert not buffer.is_ready()
    for start, stop in ((0, 3), (3, 4), (4, 8)):
        buffer.add(chunk(start, stop))
    assert buffer.is_ready()
    batch = buffer.sample()
    torch.testing.assert_close(batch, chunk(0, 8))
    assert not buffer.is_ready()


def test_state_does_not_tell_where_chunks_were_cut():
    cut, whole, restored = RolloutBuffer(), RolloutBuffer(), RolloutBuffer()
    cut.add(chunk(0, 2))
    cut.add(chunk(2, 5))
    whole.add(chunk(0, 5))
    torch.testing.assert_close(cut.get_state(), whole.get_state())
    restored.set_state(cut.get_state())
    restored.add(chunk(5, 6))
    torch.testing.assert_close(restored.sample(), chunk(0, 6))
    restored.set_state(RolloutBuffer().get_state())
    assert not restored.is_ready()


def test_footprint_is_what_a_cycle_collects():
    spec = EnvSpec("e", Box((17,)), Box((6,)))
    (footprint,) = RolloutBuffer(num_envs=8, spec=spec, collect_steps=128).footprint()
    assert footprint.capacity == 1024
    assert footprint.num_bytes == 1024 * (2 * 17 * 4 + 6 * 4 + 4 + 3)  # two observations, action, reward, three flags
    assert RolloutBuffer(num_envs=8, spec=spec).footprint() == ()
