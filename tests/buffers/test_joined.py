"""Buffers that are filled apart and drawn from as one."""

import pytest
import torch

from rl_lab.buffers.joined import JoinedBuffer
from rl_lab.buffers.replay import ReplayBuffer
from rl_lab.core import ConfigError, LabError, Named
from tests.buffers.streams import Source
from tests.workflows.off_policy import parts_of

torch.set_num_threads(1)


def joined(*sizes):
    parts = {name: ReplayBuffer(50, size, seed=size) for name, size in zip("ab", sizes, strict=True)}
    buffer = JoinedBuffer(["a", "b"])
    buffer.meet(Named("buffer", parts | {"both": buffer}))
    return buffer, parts


def test_a_batch_is_one_of_each_and_the_steps_are_the_others():
    buffer, parts = joined(6, 2)
    sources = [Source(number, 1, kind="vector") for number in (1, 2)]
    parts["a"].add(sources[0].take(10))
    assert not buffer.is_ready()
    parts["b"].add(sources[1].take(9))
    assert (buffer.is_ready(), buffer.size, buffer.batch_kind) == (True, 19, "transitions")
    noise = [{int(row[0]["noise"]) for row in source.reference} for source in sources]
    for _ in range(20):
        drawn = buffer.sample()["noise"].tolist()
        assert len(drawn) == 8
        assert set(drawn[:6]) <= noise[0]
        assert set(drawn[6:]) <= noise[1]
    assert buffer.get_state() == {}
    assert buffer.footprint() == ()
    with pytest.raises(LabError, match="takes no steps"):
        buffer.add(sources[0].take(1))


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["buffers.both.of=[]"], r"^buffers.both: of must name other buffers, each once, not \[\]"),
        (["buffers.both.of=[replay,replay]"], r"^buffers.both: of must name other buffers, each once"),
        (["buffers.both.of=[replay,third]"], r"^buffers.both: unknown buffer 'third'"),
        (["buffers.both.of=[replay,both]"], r"^buffers.both: of: buffer 'both' cannot be joined"),
        (["training.phases.1.buffer=both"], r"^phase 'north_or_west' collects into buffer 'both', which only joins"),
        (["training.phases.1.buffer=replay"], r"^phase 'compose' can never update: buffer 'both' is empty"),
        (["training.phases.2.buffer=replay"], r"neither a phase nor the workflow uses buffer 'both'"),
    ],
)
def test_what_cannot_be_joined_is_told_at_start(overrides, text):
    with pytest.raises(ConfigError, match=text) as error:
        parts_of(["+experiment=sql_multigoal_composed", *overrides])
    assert "\n" not in str(error.value)
