"""Episodes and action chunks against plain lists of steps."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_lab.buffers.episode import EpisodeBuffer
from rl_lab.core import Box, ConfigError, Discrete, EnvSpec, LabError, tree_leaves, tree_map
from tests.buffers.coded_stream import cut, stream


def naive_episodes(trajectory):
    """Finished episodes in the order of their ends, each a list of (code, action, reward) and how it ended."""
    steps, lanes = trajectory["rewards"].shape
    open_, done = [[] for _ in range(lanes)], []
    for t in range(steps):
        for lane in range(lanes):
            code = float(trajectory["observations"][t, lane, 0])
            action, reward = int(trajectory["actions"][t, lane]), float(trajectory["rewards"][t, lane])
            open_[lane].append((code, action, reward))
            terminated, truncated = bool(trajectory["terminated"][t, lane]), bool(trajectory["truncated"][t, lane])
            if terminated or truncated:
                done.append((open_[lane], terminated, float(trajectory["final_observations"][t, lane, 0])))
                open_[lane] = []
    return done


def kept(episodes, capacity):
    """The newest episodes whose rows, one per step and one for the end, fit."""
    out, rows = [], 0
    for episode in reversed(episodes):
        rows += len(episode[0]) + 1
        if rows > capacity:
            break
        out.append(episode)
    return out[::-1]


def expected_samples(episodes, chunk, history):
    """Everything a sample may be, by the code of its observation."""
    table = {}
    for steps, terminated, final in episodes:
        codes = [code for code, _, _ in steps]
        for t, (code, _, _) in enumerate(steps):
            following = steps[t : t + chunk]
            pad = chunk - len(following)
            is_over = t + chunk >= len(steps)
            table[code] = {
                "actions": [a for _, a, _ in following] + [steps[-1][1]] * pad,
                "rewards": [r for _, _, r in following] + [0.0] * pad,
                "is_pad": [False] * len(following) + [True] * pad,
                "history": [codes[max(0, t - k)] for k in range(history - 1, -1, -1)],
                "next": [(*codes, final)[max(0, min(t + chunk, len(steps)) - k)] for k in range(history - 1, -1, -1)],
                "terminated": is_over and terminated,
                "truncated": is_over and not terminated,
                "returns": sum(r for _, _, r in steps[t:]),
            }
    return table


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    lanes=st.integers(1, 3),
    steps=st.integers(1, 80),
    capacity=st.integers(40, 90),
    chunk=st.integers(1, 5),
    history=st.integers(1, 3),
    pieces=st.lists(st.integers(1, 9), max_size=8),
)
def test_chunks_belong_to_their_observation_before_at_and_after_the_wrap(
    seed, lanes, steps, capacity, chunk, history, pieces
):
    buffer = EpisodeBuffer(capacity, 50, chunk_length=chunk, history=history, num_envs=lanes, seed=seed)
    trajectory = stream(steps, lanes, seed, end_share=0.25)
    for piece in cut(trajectory, pieces):
        buffer.add(piece)
    held = kept(naive_episodes(trajectory), capacity)
    table = expected_samples(held, chunk, history)
    assert buffer.size == len(table) == sum(len(episode[0]) for episode in held)
    assert buffer.is_ready() == bool(table)
    seen = set()
    for _ in range(10 if table else 0):
        batch = buffer.sample()
        for i in range(50):
            code = batch["observations"][i, -1, 0].item()
            row = table[code]
            seen.add(code)
            assert batch["observations"][i, :, 0].tolist() == row["history"]
            assert batch["actions"][i].tolist() == row["actions"]
            assert batch["rewards"][i].tolist() == row["rewards"]
            assert batch["is_pad"][i].tolist() == row["is_pad"]
            assert batch["next_observations"][i, :, 0].tolist() == row["next"]
            assert batch["terminated"][i].item() == row["terminated"]
            assert batch["truncated"][i].item() == row["truncated"]
            assert batch["returns"][i].item() == pytest.approx(row["returns"])
    assert len(seen) >= 0.8 * len(table)


def test_plain_transitions_have_no_dimension_of_their_own():
    buffer = EpisodeBuffer(100, 7, seed=1)
    buffer.add(stream(60, 1, 2))
    batch = buffer.sample()
    assert batch["observations"].shape == (7, 2)
    assert batch["actions"].shape == batch["rewards"].shape == (7,)
    assert "is_pad" not in batch
    assert "left" not in batch


def episode_of(rewards, *, success=0.0):
    """One finished episode of a single copy."""
    length = len(rewards)
    codes = torch.arange(length, dtype=torch.float32)[:, None, None].expand(length, 1, 2).clone()
    last = torch.zeros(length, 1, dtype=torch.bool)
    last[-1] = True
    first = torch.zeros(length, 1, dtype=torch.bool)
    first[0] = True
    return {
        "observations": codes,
        "actions": torch.zeros(length, 1, dtype=torch.int64),
        "rewards": torch.tensor(rewards, dtype=torch.float32)[:, None],
        "terminated": last,
        "truncated": torch.zeros_like(last),
        "final_observations": codes + 1,
        "is_first": first,
        "infos": {"is_success": last * success, "is_intervention": torch.ones(length, 1)},
    }


def test_filters_keep_what_is_worth_it():
    by_return = EpisodeBuffer(100, 4, min_return=2.0)
    for rewards in ([1.0, 0.5], [1.0, 1.0], [3.0]):
        by_return.add(episode_of(rewards))
    assert by_return.statistics() == {
        "size": 3, "episodes": 2, "accepted": 2, "refused": 1, "mean_return": pytest.approx(6.5 / 3)
    }  # fmt: skip
    best_half = EpisodeBuffer(100, 4, top_share=0.5)
    kept_returns = []
    for value in (1.0, 5.0, 2.0, 4.0, 0.0, 6.0):
        before = best_half.statistics()["accepted"]
        best_half.add(episode_of([value]))
        if best_half.statistics()["accepted"] > before:
            kept_returns.append(value)
    assert kept_returns == [1.0, 5.0, 2.0, 4.0, 6.0]  # 2.0 is second of three: ceil(1.5) are kept
    by_success = EpisodeBuffer(100, 4, require_info="is_success")
    by_success.add(episode_of([1.0], success=0.0))
    by_success.add(episode_of([1.0], success=1.0))
    assert by_success.statistics()["accepted"] == 1
    assert (by_success.sample()["infos"]["is_intervention"] == 1).all()


def test_steps_with_a_gap_are_two_episodes_each_with_its_own_end():
    whole = stream(20, 1, 3, end_share=0.0)
    buffer = EpisodeBuffer(100, 64, chunk_length=4, seed=2)
    buffer.add(tree_map(lambda x: x[:6], whole))
    buffer.add(tree_map(lambda x: x[12:], whole))
    assert buffer.size == 6  # the second part is still open
    batch = buffer.sample()
    codes = batch["observations"][:, 0]
    last = batch["next_observations"][:, 0] == 6
    assert torch.equal(last, codes >= 2)
    assert torch.equal(batch["truncated"], last)
    assert not batch["terminated"].any()
    assert (batch["actions"][codes == 5] == 5 % 5).all()


def test_state_goes_on_exactly(tmp_path):
    first = EpisodeBuffer(60, 8, chunk_length=3, top_share=0.7, num_envs=2, storage="disk", seed=1)
    first.attach(tmp_path / "first")
    second = EpisodeBuffer(60, 8, chunk_length=3, top_share=0.7, num_envs=2, seed=55)
    parts = list(cut(stream(90, 2, 4), [33, 17]))
    first.add(parts[0])
    first.sample()
    second.set_state(first.get_state())
    for buffer in (first, second):
        buffer.add(parts[1])
        buffer.add(parts[2])
    for _ in range(4):
        for (_, a), (_, b) in zip(tree_leaves(first.sample()), tree_leaves(second.sample()), strict=True):
            assert torch.equal(a, b)
    assert first.statistics() == second.statistics()


def test_bad_input_is_one_line():
    with pytest.raises(ConfigError, match="chunk_length of an episode buffer must be 1 or more, got 0"):
        EpisodeBuffer(10, 4, chunk_length=0)
    with pytest.raises(ConfigError, match="top_share"):
        EpisodeBuffer(10, 4, top_share=1.5)
    with pytest.raises(ConfigError, match="device, disk, host"):
        EpisodeBuffer(10, 4, storage="cloud")
    buffer = EpisodeBuffer(4, 4)
    with pytest.raises(LabError, match="before it had accepted an episode"):
        buffer.sample()
    with pytest.raises(LabError, match=r"5 steps \(6 rows\) is longer than capacity=4"):
        buffer.add(episode_of([1.0] * 5))
    with pytest.raises(ConfigError, match="less than one episode: 10 steps, 11 rows"):
        EpisodeBuffer(10, 4, spec=EnvSpec("e", Box((2,)), Discrete(5), max_episode_steps=10))
    with pytest.raises(LabError, match="an episode has 20 steps and goes on, a buffer takes up to 9"):
        EpisodeBuffer(10, 4).add(stream(20, 1, 3, end_share=0.0))
    with pytest.raises(LabError, match=r"add it to environment.info_keys"):
        EpisodeBuffer(10, 4, require_info="is_good").add(episode_of([1.0]))


def test_footprint_counts_each_picture_once_and_what_is_open():
    spec = EnvSpec("p", Box((3, 64, 64), torch.uint8), Discrete(4), max_episode_steps=50)
    rows, beside = EpisodeBuffer(1000, 4, num_envs=8, spec=spec).footprint()
    pixels = 3 * 64 * 64
    assert pixels * 1000 < rows.num_bytes < (pixels + 64) * 1000
    assert pixels * 8 * 50 < beside.num_bytes < (pixels + 64) * 8 * 50 + 8 * 1000  # 8 copies, up to 50 steps each
