"""Steps of actors as one column: what passes when, and what a restart leaves behind."""

import pytest
import torch

from rl_lab.distributed.transport.interface import Received
from rl_lab.orchestration.streams import ActorStreams


def step(number, *, first=False, done=False, phase=0):
    flags = {"is_first": first, "terminated": done, "truncated": False}
    flags = {key: torch.tensor([flag]) for key, flag in flags.items()}
    return {"observations": torch.tensor([float(number)]), **flags, "phase": torch.tensor([phase])}


def sent(streams, actor, seq, number, run="r", **flags):
    streams.add(Received(actor, run, seq, step(number, **flags)))


def passed(streams):
    """Return all rows that are let through: number, begins an episode, ends it, was cut."""
    rows = []
    while streams.next() is not None:
        row = streams.take().step
        assert "phase" not in row
        flags = (bool(row[key]) for key in ("is_first", "terminated", "truncated"))
        rows.append((int(row["observations"]), *flags))
    return rows


def test_steps_of_one_actor_pass_as_soon_as_it_is_known_what_follows():
    streams = ActorStreams(whole_episodes=False)
    sent(streams, "a", 0, 10, first=True)
    assert passed(streams) == []
    sent(streams, "a", 1, 11)
    assert passed(streams) == [(10, True, False, False)]
    sent(streams, "a", 2, 12, done=True)
    assert passed(streams) == [(11, False, False, False), (12, False, True, False)]
    assert streams.num_cut == 0
    assert streams.taken == {"a/r": 3}


def test_an_actor_that_begins_anew_has_cut_its_episode_and_nothing_is_lost():
    streams = ActorStreams(whole_episodes=False)
    for seq, (number, first) in enumerate([(10, True), (11, False), (20, True), (21, False)]):
        sent(streams, "a", seq, number, first=first)
    rows = passed(streams)
    assert rows == [(10, True, False, False), (11, False, False, True), (20, True, False, False)]
    assert streams.num_cut == 1


def test_a_second_actor_or_run_cuts_where_one_was_expected():
    streams = ActorStreams(whole_episodes=False)
    sent(streams, "a", 0, 10, first=True)
    sent(streams, "b", 0, 20, first=True)
    sent(streams, "a", 1, 11)
    sent(streams, "a", 0, 30, run="s")  # the robot lost its spool within an episode
    rows = passed(streams)
    assert rows == [(10, True, False, True), (20, True, False, True), (11, True, False, True)]


def test_episodes_of_several_actors_do_not_mix():
    streams = ActorStreams(whole_episodes=True)
    for seq in range(3):
        sent(streams, "a", seq, 10 + seq, first=seq == 0)
        sent(streams, "b", seq, 20 + seq, first=seq == 0, done=seq == 2)
    assert [row[0] for row in passed(streams)] == [20, 21, 22]
    sent(streams, "a", 3, 13, done=True)
    assert passed(streams) == [
        (10, True, False, False), (11, False, False, False), (12, False, False, False), (13, False, True, False)
    ]  # fmt: skip


def test_a_run_that_was_lost_ends_with_the_next_one_of_the_same_actor():
    streams = ActorStreams(whole_episodes=True)
    sent(streams, "a", 0, 10, first=True)
    sent(streams, "ab", 0, 20, first=True)
    sent(streams, "a", 0, 30, run="s", first=True)
    assert passed(streams) == [(10, True, False, True)]


@pytest.mark.parametrize("whole_episodes", [False, True])
def test_nothing_depends_on_where_the_state_is_taken(whole_episodes):
    numbers = torch.Generator().manual_seed(1)
    entries, seqs, running = [], {"a": 0, "b": 0}, {"a": False, "b": False}
    for number in range(200):
        actor = "ab"[int(torch.randint(2, (), generator=numbers))]
        done, restart = (bool(torch.rand((), generator=numbers) < share) for share in (0.1, 0.05))
        entries.append((actor, seqs[actor], number, {"first": restart or not running[actor], "done": done}))
        seqs[actor], running[actor] = seqs[actor] + 1, not done

    straight, cut = ActorStreams(whole_episodes=whole_episodes), ActorStreams(whole_episodes=whole_episodes)
    found = []
    for number, (actor, seq, payload, flags) in enumerate(entries):
        sent(straight, actor, seq, payload, **flags)
        sent(cut, actor, seq, payload, **flags)
        if number % 17 == 0:
            state, cut = cut.get_state(), ActorStreams(whole_episodes=whole_episodes)
            cut.set_state(state)
        if number % 5 == 0:
            found += passed(cut)
    found += passed(cut)
    assert found == passed(straight)
    assert cut.num_cut == straight.num_cut > 0
    ended = True
    for row in found:  # episodes follow one another
        assert row[1] == ended
        ended = row[2] or row[3]
    if not whole_episodes:
        assert len(found) >= len(entries) - 1
