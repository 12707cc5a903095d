from itertools import pairwise

import numpy as np
import pytest
import torch

from rl_lab.buffers.datasets.format import EpisodeWriter
from rl_lab.buffers.datasets.recorder import EpisodeRecorder, write_episodes
from rl_lab.core import ConfigError, tree_map


class Shelf(EpisodeWriter):
    """Keeps episodes in memory."""

    def __init__(self):
        self.episodes = []

    def save(self, episode):
        self.episodes.append(episode)
        return len(self.episodes) - 1


def stream(steps, lanes, seed, begun=True):
    """Return a trajectory in which lane n counts 1000 n + t; after an end the count jumps by 100."""
    rng = np.random.default_rng(seed)
    counts = 1000.0 * np.arange(lanes)
    first = np.full(lanes, begun)
    rows = []
    for _ in range(steps):
        end = rng.random(lanes)
        terminated, truncated = end < 0.1, (end >= 0.1) & (end < 0.2)
        row = {
            "observations": {"count": counts.copy(), "two": np.stack([counts, -counts], 1)},
            "actions": counts + 0.5,
            "rewards": counts / 7,
            "terminated": terminated,
            "truncated": truncated,
            "final_observations": {"count": counts + 1, "two": np.stack([counts + 1, -counts - 1], 1)},
            "is_first": first,
            "infos": {"is_intervention": (counts % 3 == 0).astype(np.float32)},
            "log_probs": -counts,
        }
        rows.append(tree_map(torch.from_numpy, row))
        first = terminated | truncated
        counts = np.where(first, counts + 100, counts + 1)
    return tree_map(lambda *leaves: torch.stack(leaves), *rows)


def cut(trajectory, places):
    edges = [0, *places, len(trajectory["rewards"])]
    return [tree_map(lambda x, a=a, b=b: x[a:b], trajectory) for a, b in pairwise(edges) if b > a]


def naive(trajectory):
    """Return (counts, terminated) of every whole episode in the order of their ends: step by step, lane by lane."""
    found = []
    steps, lanes = trajectory["rewards"].shape
    running = {}
    for t in range(steps):
        for n in range(lanes):
            if trajectory["is_first"][t, n]:
                running[n] = []
            if n in running:
                running[n].append(float(trajectory["observations"]["count"][t, n]))
                if trajectory["terminated"][t, n] or trajectory["truncated"][t, n]:
                    found.append((running.pop(n), bool(trajectory["terminated"][t, n])))
    return found


@pytest.mark.parametrize("begun", [True, False])
def test_every_whole_episode_is_saved_wherever_the_stream_is_cut(begun):
    trajectory = stream(120, 3, seed=1, begun=begun)
    wanted = naive(trajectory)
    assert len(wanted) > 30
    for places in ([], [1, 2, 3, 50], range(1, 120)):
        shelf = Shelf()
        assert write_episodes(cut(trajectory, places), shelf, extras=("log_probs",), task="count") == len(wanted)
        for episode, (counts, terminated) in zip(shelf.episodes, wanted, strict=True):
            assert episode.observations["count"].tolist() == counts
            assert episode.final_observation["count"] == counts[-1] + 1
            assert episode.final_observation["two"].tolist() == [counts[-1] + 1, -counts[-1] - 1]
            assert (episode.actions - 0.5).tolist() == counts
            np.testing.assert_allclose(episode.rewards * 7, counts)
            assert (episode.terminated, episode.truncated) == (terminated, not terminated)
            assert episode.infos["is_intervention"].tolist() == [float(c % 3 == 0) for c in counts]
            assert episode.infos["log_probs"].tolist() == [-c for c in counts]
            assert episode.task == "count"


def test_what_is_kept_belongs_to_the_recorder():
    trajectory = stream(4, 1, seed=5)
    trajectory["terminated"][:], trajectory["truncated"][:] = False, False
    trajectory["is_first"][1:] = False
    shelf = Shelf()
    recorder = EpisodeRecorder(shelf)
    assert recorder.add(trajectory) == 0
    before = trajectory["observations"]["count"].flatten().tolist()
    trajectory["observations"]["count"].zero_()  # the collector's memory is its own
    last = stream(1, 1, seed=6, begun=False)
    last["terminated"][:], last["truncated"][:] = True, False
    last["observations"] = tree_map(lambda leaf: leaf[-1:].clone(), trajectory["final_observations"])
    assert recorder.add(last) == 1
    assert shelf.episodes[0].observations["count"].tolist() == [*before, before[-1] + 1]


def test_steps_that_are_missing_are_not_bridged():
    """A collector that loses steps, as after a restart, has no episode that goes over the gap."""
    trajectory = stream(30, 2, seed=3)
    for name in ("terminated", "truncated", "is_first"):
        trajectory[name][:] = False
    trajectory["is_first"][0], trajectory["terminated"][29] = True, True
    counts = torch.arange(30.0, dtype=torch.float64)[:, None] + torch.tensor([0.0, 1000.0])
    trajectory["observations"]["count"], trajectory["final_observations"]["count"] = counts, counts + 1
    for tree, first in ((trajectory["observations"], counts), (trajectory["final_observations"], counts + 1)):
        tree["two"] = torch.stack([first, -first], -1)
    before, after = (tree_map(lambda x, part=part: x[part], trajectory) for part in (slice(0, 12), slice(15, 30)))
    shelf = Shelf()
    recorder = EpisodeRecorder(shelf)
    assert recorder.add(before) == 0
    assert recorder.add(after) == 2  # what came before the gap; what came after it has no beginning
    for lane, episode in enumerate(shelf.episodes):
        assert episode.observations["count"].tolist() == [1000.0 * lane + step for step in range(12)]
        assert episode.final_observation["count"] == 1000.0 * lane + 12
        assert (episode.terminated, episode.truncated) == (False, True)


def test_an_extra_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match="unknown extra to record 'log_prob'; did you mean 'log_probs'"):
        EpisodeRecorder(Shelf(), extras=("log_prob",)).add(stream(2, 1, seed=0))
