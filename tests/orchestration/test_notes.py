"""Who and when beside a step on its way: what comes out is what went in, whatever a peer sends."""

import json
import math

import pytest
import torch

from rl_lab.core.buffer import Witness
from rl_lab.core.errors import LabError
from rl_lab.core.operator import operator_id
from rl_lab.distributed.transport.interface import Received
from rl_lab.distributed.transport.schema import Schema
from rl_lab.orchestration.interventions import Interventions
from rl_lab.orchestration.notes import Note, packed_note, unpacked_note
from rl_lab.orchestration.streams import ActorStreams

WHEN = 1_794_842_945.554  # of 2026-11-16T15:29:05.554Z
LONG = "名" * 64  # the longest name that people may have takes 192 bytes


def sent(operator, seen):
    step = {"infos": {"operator": torch.tensor([float(operator)])}}
    return {**step, **packed_note(step, seen)}


@pytest.mark.parametrize("name", ["anna", "Jörg Müller", LONG])
def test_names_and_times_come_back_from_bytes(name):
    step = sent(operator_id(name), Witness((WHEN,), name))
    schema = Schema(sent(0, None))  # what the learner expects is made without anybody there
    assert unpacked_note("right", schema.decode(schema.encode(step))) == Note("right", name, name, WHEN)


def test_one_who_watches_does_not_act():
    assert unpacked_note("a", sent(0, Witness((WHEN,), "anna"))) == Note("a", "anna", "", WHEN)
    assert unpacked_note("a", sent(0, Witness((WHEN,)))) == Note("a", "", "", WHEN)


def test_without_an_operator_there_is_only_a_time():
    assert packed_note({}, Witness((WHEN,))).keys() == {"taken_at"}
    assert unpacked_note("a", packed_note({"infos": {"x": 1}}, Witness((WHEN,)))) == Note("a", "", "", WHEN)
    assert unpacked_note("a", {"rewards": torch.zeros(1)}) is None


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0, 1e300])
def test_what_a_peer_makes_up_does_no_harm(seconds):
    step = sent(7, Witness((WHEN,), "anna"))
    step["taken_at"][0] = seconds
    step["watcher"][0, :3] = torch.tensor([255, 10, 0])  # no UTF-8, a new line, a zero
    note = unpacked_note("a", step)
    assert note == Note("a", "\ufffd??a", "\ufffd??a", 0.0)
    events = []
    Interventions(lambda kind, **fields: events.append((kind, fields)), lambda _: None).hear("a", note.acting, 3, 0.0)
    assert json.loads(json.dumps(events))[0][1]["utc"] == "1970-01-01T00:00:00.000+00:00"


def test_notes_wait_with_their_steps_and_are_part_of_the_state():
    streams = ActorStreams(whole_episodes=False)
    for seq in range(3):
        flags = {"terminated": False, "truncated": False, "is_first": seq == 0}
        step = sent(operator_id("anna") if seq == 1 else 0, Witness((WHEN + seq,), "anna"))
        step |= {key: torch.tensor([flag]) for key, flag in flags.items()} | {"phase": torch.tensor([0])}
        streams.add(Received("right", "run", seq, step))
    again = ActorStreams(whole_episodes=False)
    again.set_state(streams.get_state())
    rows = [again.take(), again.take()]
    assert [row.note for row in rows] == [Note("right", "anna", "", WHEN), Note("right", "anna", "anna", WHEN + 1)]
    assert all(row.step.keys() == {"infos", "terminated", "truncated", "is_first"} for row in rows)


def test_the_journal_follows_each_actor_and_goes_on_after_a_resume():
    events, names = [], {}
    journal = Interventions(lambda kind, **fields: events.append((kind, *fields.values())), names.update)
    journal.hear("left", "anna", 4, WHEN)
    journal.hear("right", "", 5, WHEN)
    journal.hear("left", "anna", 6, WHEN + 1)
    state = json.loads(json.dumps(journal.get_state()))
    journal = Interventions(lambda kind, **fields: events.append((kind, *fields.values())), names.update)
    journal.set_state(state)
    journal.hear("right", "ben", 7, WHEN + 2)
    journal.hear("left", "ben", 8, WHEN + 3)
    journal.hear("left", "", 9, WHEN + 4)
    assert events == [
        ("takeover", "anna", "left", 4, "2026-11-16T15:29:05.554+00:00"),
        ("takeover", "ben", "right", 7, "2026-11-16T15:29:07.554+00:00"),
        ("hand_back", "anna", "left", 8, "2026-11-16T15:29:08.554+00:00"),
        ("takeover", "ben", "left", 8, "2026-11-16T15:29:08.554+00:00"),
        ("hand_back", "ben", "left", 9, "2026-11-16T15:29:09.554+00:00"),
    ]
    assert names == {str(operator_id(name)): name for name in ("anna", "ben")}


def test_names_that_cannot_be_told_apart(monkeypatch):
    """Beside the robot one is refused; what has been sent is learned from, and said to have two names."""
    monkeypatch.setattr("rl_lab.orchestration.interventions.operator_id", len)
    said, names = [], {}
    journal = Interventions(lambda kind, **fields: said.append((kind, fields.get("message"))), names.update)
    journal.hear("left", "anna", 0, WHEN)
    journal.hear("left", "beat", 1, WHEN)
    line = "operators 'anna' and 'beat' have the same number: rename one of them"
    assert said == [("takeover", None), ("operator", line), ("hand_back", None), ("takeover", None)]
    assert names == {"4": "anna"}
    with pytest.raises(LabError, match=line):
        journal.id_of("beat")
    with pytest.raises(LabError, match=r"operator 'xxxxxxxxxxxxxxxxxxxx'...: a name has 256 bytes at most"):
        journal.id_of("x" * 257)
