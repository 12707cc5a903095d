"""The units in which a run says how often it learns."""

from rl_lab.buffers.replay import ReplayBuffer
from rl_lab.buffers.sequence import SequenceBuffer
from rl_lab.config.units import ratio_notes
from rl_lab.core import HookCall, Phase


def phase(name, buffer, train_ratio, times=1):
    calls = (HookCall("collect"), HookCall("update_agent", times, is_update=True))
    return Phase(name, "online", calls, "steps", 100, buffer=buffer, train_ratio=train_ratio)


def test_a_ratio_is_said_in_every_unit():
    buffers = {"replay": ReplayBuffer(1_000, 256), "sequences": SequenceBuffer(10_000, 16, 64)}
    phases = [phase("a", "sequences", 0.5), phase("b", "replay", 1.0, times=2), phase("c", "replay", None)]
    assert list(ratio_notes(phases, buffers, 2)) == [
        "phase a: 0.5 updates per env step, 0.25 per frame (2 frames per env step), 512 replayed steps per env step",
        "phase b: 2 updates per env step, 1 per frame (2 frames per env step), 512 replayed steps per env step",
    ]
    assert list(ratio_notes(phases[1:2], buffers, 1)) == [
        "phase b: 2 updates per env step, 512 replayed steps per env step"
    ]
