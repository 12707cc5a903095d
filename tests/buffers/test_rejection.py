"""Accepted trajectories against plain lists, through rounds, eviction, cuts and restores."""

import pytest
import torch

from rl_lab.buffers.rejection import RejectionBuffer
from rl_lab.buffers.storage.acceptance import Acceptance
from rl_lab.core import Box, ConfigError, EnvSpec, LabError, tree_map
from rl_lab.tracking.fingerprint import tree_hash
from tests.buffers.coded_stream import cut, stream

ROUNDS = Acceptance((0.0, 0.75, 0.85), 12, discount=0.95)


def judged(steps=150, lanes=3, seed=4):
    """A coded stream in which every other end is a success."""
    trajectory = stream(steps, lanes, seed)
    ended = trajectory["terminated"] | trajectory["truncated"]
    verdicts = torch.where(trajectory["terminated"], 1.0, -1.0) * ended
    codes = (torch.arange(float(steps))[:, None] + 10_000 * torch.arange(lanes)).unsqueeze(-1)  # no two alike
    seen = {"observations": codes, "final_observations": codes + 1}
    return {**trajectory, **seen, "infos": {"verdict": verdicts}}


def naive(trajectory, rule):
    """The accepted episodes in the order of their ends, each as its score and its codes, after all rounds."""
    lanes, kept, seen = trajectory["rewards"].shape[1], [], 0
    open_ = [[] for _ in range(lanes)]
    for t in range(len(trajectory["rewards"])):
        for lane in range(lanes):
            open_[lane].append(float(trajectory["observations"][t, lane, 0]))
            verdict = float(trajectory["infos"]["verdict"][t, lane])
            if verdict != 0.0:
                threshold = rule.thresholds[min(seen // rule.episodes_per_round, len(rule.thresholds) - 1)]
                kept = [each for each in kept if each[0] >= threshold]
                score = rule.discount ** (len(open_[lane]) - 1) if verdict > 0.0 else 0.0
                if score >= threshold and len(open_[lane]) >= rule.min_steps:
                    kept.append((score, open_[lane]))
                seen, open_[lane] = seen + 1, []
    return kept


def drawn(buffer, count=300):
    """Scores by code of what is drawn."""
    batches = [buffer.sample() for _ in range(count)]
    return {
        float(code): float(score)
        for batch in batches
        for code, score in zip(batch["observations"][:, 0], batch["scores"], strict=True)
    }


@pytest.mark.parametrize("rule", [ROUNDS, Acceptance((0.5,), discount=0.95, min_steps=4)], ids=["rounds", "fixed"])
def test_what_is_drawn_is_what_the_round_accepts(rule):
    trajectory = judged()
    buffer = RejectionBuffer(1000, 32, rule, num_envs=3, seed=1)
    buffer.add(trajectory)
    wanted = naive(trajectory, rule)
    assert 3 <= len(wanted) < buffer.statistics()["accepted"] or rule is not ROUNDS
    assert buffer.size == sum(len(codes) for _, codes in wanted)
    assert buffer.statistics()["episodes"] == len(wanted)
    assert drawn(buffer) == pytest.approx({code: score for score, codes in wanted for code in codes})


def test_a_round_forgets_and_the_ring_goes_on():
    trajectory = judged(400)
    buffer = RejectionBuffer(60, 16, ROUNDS, num_envs=3, seed=1)
    buffer.add(trajectory)
    rows, wanted = 0, []
    for score, codes in reversed(naive(trajectory, ROUNDS)):  # all was accepted in the last round: a ring of the newest
        rows += len(codes) + 1
        if rows > 60:
            break
        wanted += [(code, score) for code in codes]
    assert drawn(buffer) == pytest.approx(dict(wanted))


def test_nothing_depends_on_where_collecting_is_cut():
    trajectory = judged()
    whole = RejectionBuffer(1000, 8, ROUNDS, num_envs=3, seed=1)
    whole.add(trajectory)
    pieces = RejectionBuffer(1000, 8, ROUNDS, num_envs=3, seed=1)
    for piece in cut(trajectory, [1, 2, 30, 7, 1, 50]):
        pieces.add(piece)
    assert whole.statistics() == pieces.statistics()
    for _ in range(5):
        ours, theirs = whole.sample(), pieces.sample()
        assert all(torch.equal(ours[key], theirs[key]) for key in ("observations", "actions", "scores"))


def test_a_restored_buffer_goes_on_in_its_round():
    first, second = (tree_map(lambda x, s=part: x[s], judged(300)) for part in (slice(0, 77), slice(77, 300)))
    buffer = RejectionBuffer(500, 8, ROUNDS, chunk_length=3, history=2, num_envs=3, seed=1)
    buffer.add(first)
    buffer.sample()
    other = RejectionBuffer(500, 8, ROUNDS, chunk_length=3, history=2, num_envs=3, seed=9)
    other.set_state(buffer.get_state())
    for each in (buffer, other):
        each.add(second)
    assert tree_hash(buffer.sample()) == tree_hash(other.sample())
    assert buffer.statistics() == other.statistics()


def test_chunks_go_on_after_what_was_left_out():
    states = torch.tensor([0.0, 1.0, 1.0, 1.0, 2.0, 3.0])[:, None]  # nothing moves in steps 1 and 2
    steps = {
        "observations": states[:5, None],
        "final_observations": states[1:, None],
        "actions": torch.arange(5)[:, None],
        "rewards": torch.zeros(5, 1),
        "terminated": torch.tensor([[False]] * 4 + [[True]]),
        "truncated": torch.zeros(5, 1, dtype=torch.bool),
        "is_first": torch.tensor([[True]] + [[False]] * 4),
        "infos": {"verdict": torch.tensor([[0.0]] * 4 + [[1.0]])},
    }
    rule = Acceptance((0.6,), discount=0.9, no_op_std=0.1, no_op_steps=1)
    buffer = RejectionBuffer(50, 64, rule, chunk_length=2, history=2, seed=0)
    buffer.add(steps)
    batch = buffer.sample()
    found = {
        tuple(a.tolist()): o.flatten().tolist() for a, o in zip(batch["actions"], batch["observations"], strict=True)
    }
    assert found == {(0, 3): [0.0, 0.0], (3, 4): [0.0, 1.0], (4, 4): [1.0, 2.0]}
    assert batch["scores"].unique().tolist() == pytest.approx([0.9**4])  # of all five steps
    assert buffer.statistics()["left_out"] == 2.0


def test_bad_input_is_one_line():
    spec = EnvSpec("short", Box((1,)), Box((1,)), max_episode_steps=9)
    with pytest.raises(ConfigError, match=r"^acceptance.min_steps: 10 steps are longer than any episode of 'short'"):
        RejectionBuffer(50, 4, Acceptance(min_steps=10), spec=spec)
    buffer = RejectionBuffer(50, 4, Acceptance(min_steps=30), num_envs=3)
    buffer.add(judged(29))
    with pytest.raises(LabError, match=r"before it had accepted an episode \(.*'threshold': 1.0\}\)$"):
        buffer.sample()
