from collections import Counter

import numpy as np
import pytest
import torch

from rl_lab.buffers.hindsight import HindsightBuffer, Relabel
from rl_lab.core import Box, ConfigError, EnvSpec, LabError, tree_leaves, tree_map
from rl_lab.ops.goal_rewards import SparseDistance
from tests.buffers.streams import pieces
from tests.buffers.test_replay import strip_keys

torch.set_num_threads(1)


def goal_stream(seed, lanes, steps, end_share=0.2):
    """Return a trajectory whose every achieved goal is a number of its own, and the episode of each step."""
    rng = np.random.default_rng(seed)
    ends = rng.random((steps, lanes))
    terminated, truncated = ends < end_share / 2, (ends >= end_share / 2) & (ends < end_share)
    is_first = np.concatenate([np.ones((1, lanes), dtype=bool), (terminated | truncated)[:-1]])
    episodes = is_first.cumsum(0)
    numbers = np.arange(steps)[:, None] * 1000.0 + np.arange(lanes) * 100.0
    before, after = numbers - 1000.0 + 0.5 * is_first, numbers  # the first observation of an episode is nobody's last
    wanted = np.broadcast_to(rng.integers(-9, 0, (1, lanes)) - 0.25, numbers.shape)

    def observation(achieved):
        parts = {"observation": achieved * 2, "achieved_goal": achieved, "desired_goal": wanted}
        return {key: torch.tensor(value, dtype=torch.float32)[..., None] for key, value in parts.items()}

    trajectory = {
        "observations": observation(before),
        "actions": torch.tensor(rng.integers(0, 4, (steps, lanes))),
        "rewards": torch.full((steps, lanes), -7.0),
        "terminated": torch.tensor(terminated),
        "truncated": torch.tensor(truncated),
        "final_observations": observation(after),
        "is_first": torch.tensor(is_first),
    }
    return trajectory, episodes


def naive_goals(strategy, episodes, step, lane, oldest, newest):
    """Return the achieved goals that a step may be given: a loop over all stored steps."""
    stored = [(t, n) for t in range(oldest, newest + 1) for n in range(episodes.shape[1])]
    own = [t for t, n in stored if n == lane and episodes[t, n] == episodes[step, lane]]
    chosen = {
        "random": stored,
        "episode": [(t, lane) for t in own],
        "future": [(t, lane) for t in own if t >= step],
        "final": [(max(own), lane)],
    }[strategy]
    return {t * 1000.0 + n * 100.0 for t, n in chosen}


def sparse(achieved, desired):
    return SparseDistance(0.1)(achieved, desired)


@pytest.mark.parametrize("strategy", ["future", "final", "episode", "random"])
@pytest.mark.parametrize(("length", "lanes", "seed"), [(40, 1, 0), (23, 3, 1), (7, 2, 2)])
def test_goals_are_those_a_plain_loop_allows(strategy, length, lanes, seed):
    steps = 60
    trajectory, episodes = goal_stream(seed, lanes, steps, end_share=0.15)
    buffer = HindsightBuffer(length * lanes, 5, sparse, relabel=Relabel(strategy, 1.0), num_envs=lanes, seed=seed)
    written, seen = 0, {}
    for piece in pieces(np.random.default_rng(seed), trajectory):
        buffer.add(piece)
        written += len(piece["rewards"])
        oldest = max(0, written - length)
        for _ in range(12 if written < steps else 300):
            if not buffer.is_ready():
                continue
            batch = buffer.sample()
            for row, index in enumerate(batch["indices"].tolist()):
                place, lane = divmod(index, lanes)
                step = written - 1 - (written - 1 - place) % length
                goal = batch["observations"]["desired_goal"][row].item()
                allowed = naive_goals(strategy, episodes, step, lane, oldest, written - 1)
                assert goal in allowed
                assert batch["next_observations"]["desired_goal"][row].item() == goal
                achieved = batch["next_observations"]["achieved_goal"][row].item()
                assert achieved == step * 1000.0 + lane * 100.0
                assert batch["rewards"][row].item() == (0.0 if achieved == goal else -1.0)
                if written == steps:
                    seen.setdefault((step, lane), Counter())[goal] += 1
    assert len(seen) == length * lanes
    if strategy != "random":
        for (step, lane), goals in seen.items():  # every goal that is allowed does come, none much more often
            allowed = naive_goals(strategy, episodes, step, lane, steps - length, steps - 1)
            if goals.total() >= 12 * len(allowed):
                assert goals.keys() == allowed
                assert max(goals.values()) < 4 * goals.total() / len(allowed)


def test_a_segment_of_an_episode_knows_no_goals_beyond_its_cut():
    trajectory, _ = goal_stream(0, 1, 30, end_share=0.0)
    buffer = HindsightBuffer(100, 50, sparse, relabel=Relabel("episode", 1.0))
    segments = [(0, 15), (16, 29)]  # step 15 was not stored
    for begin, end in segments:
        buffer.add(tree_map(lambda leaf, b=begin, e=end: leaf[b:e], trajectory))
    with pytest.raises(LabError, match="it needs 50"):
        buffer.sample()
    buffer = HindsightBuffer(100, 20, sparse, relabel=Relabel("episode", 1.0))
    for begin, end in segments:
        buffer.add(tree_map(lambda leaf, b=begin, e=end: leaf[b:e], trajectory))
    for _ in range(20):
        batch = buffer.sample()
        steps, goals = (
            batch[key][name].flatten() / 1000
            for key, name in (
                ("next_observations", "achieved_goal"),
                ("observations", "desired_goal"),
            )
        )
        assert torch.equal(steps < 15, goals < 15)


def test_a_share_is_relabelled_and_the_rest_is_left_alone():
    trajectory, _ = goal_stream(3, 2, 50)
    buffer = HindsightBuffer(100, 100, sparse, relabel=Relabel(probability=0.25), num_envs=2, gamma=0.5, seed=4)
    buffer.add(trajectory)
    relabelled = 0
    for _ in range(50):
        batch = buffer.sample()
        is_kept = batch["observations"]["desired_goal"].flatten() < 0
        relabelled += int((~is_kept).sum())
        assert (batch["rewards"][is_kept] == -7.0).all()
        assert (batch["rewards"][~is_kept] >= -1.0).all()
        assert torch.equal(batch["discounts"], 0.5 * ~batch["terminated"])
    assert abs(relabelled / 5000 - 0.25) < 4 * (0.25 * 0.75 / 5000) ** 0.5


def test_reached_goals_end_the_episode_when_that_is_asked_for():
    trajectory, _ = goal_stream(3, 2, 50, end_share=0.5)
    options = {"relabel": Relabel("future", 0.5, terminal_reward=0.0), "num_envs": 2, "gamma": 0.5}
    buffer = HindsightBuffer(100, 100, sparse, **options)
    buffer.add(trajectory)
    flags = {name: trajectory[name].flatten() for name in ("terminated", "truncated")}
    for _ in range(5):
        batch = buffer.sample()
        is_kept = batch["observations"]["desired_goal"].flatten() < 0
        stored = {name: flag[batch["indices"]] for name, flag in flags.items()}
        assert torch.equal(batch["terminated"], torch.where(is_kept, stored["terminated"], batch["rewards"] == 0.0))
        assert torch.equal(batch["truncated"], stored["truncated"] & ~batch["terminated"])
        assert torch.equal(batch["discounts"], 0.5 * ~batch["terminated"])


@pytest.mark.parametrize("strategy", ["future", "final", "episode", "random"])
def test_state_goes_on_exactly_and_cuts_change_nothing(strategy):
    trajectory, _ = goal_stream(8, 2, 90, end_share=0.05)  # some episodes are longer than the ring
    first, second = (tree_map(lambda leaf, s=part: leaf[s], trajectory) for part in (slice(0, 70), slice(70, 90)))
    whole, cut, again = (
        HindsightBuffer(40, 16, sparse, relabel=Relabel(strategy), num_envs=2, seed=seed) for seed in (1, 1, 9)
    )
    whole.add(first)
    for piece in pieces(np.random.default_rng(1), first):
        cut.add(piece)
    again.set_state(whole.get_state())
    for _ in range(2):
        samples = [list(tree_leaves(buffer.sample())) for buffer in (whole, cut, again)]
        for other in samples[1:]:
            assert all(torch.equal(a, b) for (_, a), (_, b) in zip(samples[0], other, strict=True))
        for buffer in (whole, cut, again):
            buffer.add(second)
    states = [list(tree_leaves(strip_keys(buffer.get_state()))) for buffer in (whole, cut, again)]
    for other in states[1:]:
        assert all(torch.equal(a, b) for (_, a), (_, b) in zip(states[0], other, strict=True))


def test_wrong_use_is_named():
    with pytest.raises(ConfigError, match=r"unknown relabel\.strategy 'later'"):
        Relabel("later")
    with pytest.raises(ConfigError, match=r"relabel\.probability must be between 0 and 1, not 2"):
        Relabel(probability=2)
    with pytest.raises(ConfigError, match="the environment has Box"):
        HindsightBuffer(10, 2, sparse, spec=EnvSpec("x", Box((3,)), Box((1,))))
    picture = {"achieved_goal": Box((3, 8, 8), torch.uint8), "desired_goal": Box((3, 8, 8), torch.uint8)}
    with pytest.raises(ConfigError, match="'achieved_goal' of a hindsight buffer must be a box of numbers"):
        HindsightBuffer(10, 2, sparse, spec=EnvSpec("x", picture, Box((1,))))
    trajectory, _ = goal_stream(0, 1, 4)
    buffer = HindsightBuffer(10, 2, lambda achieved, desired: achieved)
    with pytest.raises(LabError, match=r"needs observations with \['achieved_goal', 'desired_goal'\], got \['x'\]"):
        buffer.add(trajectory | {"observations": {"x": trajectory["rewards"]}})
    buffer.add(trajectory)
    with pytest.raises(LabError, match=r"returned \[2, 1\] for \[2, 1\] goals, it must return \[2\]"):
        buffer.sample()
    assert [taken.num_bytes for taken in buffer.footprint()] == [buffer._transitions.num_bytes, 2 * 8 * 10]


def test_an_empty_state_forgets_the_episodes():
    """Numbers of runs that are gone would bound the goals of new ones."""

    def fresh():
        spec = EnvSpec("e", {key: Box((1,)) for key in ("observation", "achieved_goal", "desired_goal")}, Box((1,)))
        return HindsightBuffer(40, 16, sparse, relabel=Relabel("episode"), num_envs=2, spec=spec, seed=4)

    empty = fresh().get_state()
    used, new = fresh(), fresh()
    used.add(goal_stream(1, 2, 30)[0])
    used.set_state(empty)
    assert used.size == 0
    trajectory, _ = goal_stream(2, 2, 10)
    for buffer in (used, new):
        buffer.add(trajectory)
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(*map(runs_of, (used, new)), strict=True))
    torch.testing.assert_close(used.sample(), new.sample(), rtol=0, atol=0)


def runs_of(buffer):
    return sorted((name, value) for name, value in vars(buffer._runs).items() if isinstance(value, torch.Tensor))
