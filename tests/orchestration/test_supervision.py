"""An operator beside a policy: whose action is taken, who is told, what is recorded."""

import json
import secrets
import time
from datetime import UTC, datetime

import pytest
import torch

from rl_lab.core import HookCall, Phase, tree_cat
from rl_lab.core.operator import Operator, Orders, operator_id
from rl_lab.environments.counting import Counting
from rl_lab.orchestration.collector import Collector
from rl_lab.orchestration.interventions import journal_of
from rl_lab.orchestration.supervision import Supervision
from rl_lab.tracking.run_directory import RunDirectory
from rl_lab.tracking.tracker import Tracker
from tests.orchestration.parts import no_timer
from tests.orchestration.test_teacher import STUDENT, Always

NUM_ENVS = 3


def verdict_on(final_obs):
    return torch.where(final_obs.flatten(1).sum(-1) % 2 == 0, 1.0, -1.0)


class Every(Operator):
    """Acts at every third step, after a pause before each, and calls the end of every other count a success."""

    name = "anna"

    def __init__(self):
        self.asked = self.watched = self.judged = 0

    def is_ready(self):
        self.asked += 1
        return self.asked % 2 == 0  # the second answer counts

    def watch(self, obs, proposed, carry, *, is_first):
        assert (proposed == STUDENT).all()
        self.watched += 1
        is_acting = torch.full((NUM_ENVS,), self.watched % 3 == 0)
        return Orders(torch.ones_like(proposed), is_acting), carry

    def judge(self, final_obs, rewards):
        assert len(rewards) == len(final_obs)
        self.judged += len(final_obs)
        return verdict_on(final_obs)


class Live(Every):
    is_live = True


def journal_in(path):
    tracker = Tracker(RunDirectory.create(path, "watched", 1, path / secrets.token_hex(4)))
    tracker.open(100)
    return journal_of(tracker), tracker


def collected(operator, steps, journal, *, num_steps_at_once=100, overlap=None):
    student = Always(STUDENT)
    policy = Supervision(student, operator, journal)
    phase = Phase("p", "online", (HookCall("collect"),), "steps", 100, "b", progress=0.0, options={})
    collector = Collector(Counting(NUM_ENVS), 0, no_timer, overlap=overlap)
    results, done = [], 0
    while done < steps:
        wanted = min(num_steps_at_once - done % num_steps_at_once, steps - done)
        policy.during(phase, done * NUM_ENVS)
        result = collector.collect(policy, wanted, env_steps=done * NUM_ENVS, should_stop=lambda: False)
        if result.trajectory is not None:
            results.append(policy.recorded(result))
        done += result.vector_steps
    return results, student


def joined(results):
    """Return the trajectories of several results as one, along time."""
    return tree_cat([result.trajectory for result in results])


@pytest.fixture
def journal(tmp_path):
    journal, tracker = journal_in(tmp_path)
    yield journal
    tracker.close()


def events(tracker, *kinds):
    rows = [json.loads(line) for line in tracker.run.events_file.read_text().splitlines()]
    return [row for row in rows if row["kind"] in kinds]


def test_the_operator_is_waited_for_overrules_and_is_flagged(journal):
    results, _ = collected(Every(), 12, journal)
    rows = joined(results)
    acts = rows["infos"]["is_intervention"][:, 0].tolist()
    assert acts == [0.0, 0.0, 1.0] * 4
    assert rows["infos"]["operator"][:, 0].tolist() == [0.0, 0.0, float(operator_id("anna"))] * 4
    assert "operator_time" not in rows["infos"]  # of those who are no persons: their runs repeat to the bit
    assert rows["actions"][:, 0].tolist() == [0, 0, 1] * 4
    assert rows["taken_before"][:, 0].tolist() == [-1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0]  # the policy is told
    shares = [result.metrics["interventions"] for result in results]
    assert sum(float(share.total) for share in shares) / sum(share.weight for share in shares) == 1 / 3


def test_an_id_is_exact_and_the_same_everywhere():
    assert operator_id("anna") == 1 + 559726263 % (2**24 - 1)  # crc32 of "anna"
    assert int(torch.tensor(operator_id("anna"), dtype=torch.float32)) == operator_id("anna")


def test_verdicts_stand_where_episodes_end(journal):
    operator = Every()
    rows = joined(collected(operator, 40, journal)[0])
    ended = rows["terminated"] | rows["truncated"]
    verdicts = rows["infos"]["verdict"]
    assert ended.any()
    assert (verdicts[~ended] == 0.0).all()
    assert torch.equal(verdicts[ended], verdict_on(rows["final_observations"][ended]))
    assert operator.judged == ended.sum()  # nobody is asked about an episode that goes on


def test_nothing_depends_on_where_collecting_is_cut(tmp_path):
    (journal, tracker), (other, second) = journal_in(tmp_path), journal_in(tmp_path)
    whole, pieces = (
        joined(collected(Every(), 12, to, num_steps_at_once=n)[0]) for to, n in ((journal, 100), (other, 5))
    )
    for key in ("actions", "observations"):
        assert torch.equal(pieces[key], whole[key])
    tracker.close(), second.close()
    ours, theirs = (
        [(row["kind"], row["copy"], row["step"]) for row in events(each, "takeover", "hand_back")]
        for each in (tracker, second)
    )
    assert ours == theirs
    assert ours[:6] == [  # the third vector step begins at env step 6 and the fourth at 9
        *(("takeover", copy, 6) for copy in range(NUM_ENVS)),
        *(("hand_back", copy, 9) for copy in range(NUM_ENVS)),
    ]


def test_who_and_when_are_written_down(tmp_path):
    journal, tracker = journal_in(tmp_path)
    before = time.time()
    rows = joined(collected(Live(), 12, journal)[0])
    after = time.time()
    tracker.close()
    assert tracker.run.read_manifest()["operators"] == {str(operator_id("anna")): "anna"}
    stamps = rows["infos"]["operator_time"]
    assert stamps.dtype == torch.float32
    late = (stamps.double() - before % 86_400 + 0.01) % 86_400  # also over midnight; float32 rounds by 0.004 s
    assert (late <= after - before + 0.02).all()
    for row in events(tracker, "takeover", "hand_back"):
        assert row["operator"] == "anna"
        when = datetime.fromisoformat(row["utc"])
        assert when.tzinfo == UTC
        assert before - 0.001 <= when.timestamp() <= after


def test_a_pause_ends_collecting_and_what_was_done_stays(journal):
    """Nothing was decided, drawn or done then: the same step comes when the operator is asked again."""

    class Leaving(Every):
        def is_ready(self):
            self.asked += 1
            return self.asked <= 2

    operator, student = Leaving(), Always(STUDENT)
    policy = Supervision(student, operator, journal)
    collector = Collector(Counting(NUM_ENVS), 0, no_timer)
    before = torch.get_rng_state()
    result = collector.collect(policy, 10, env_steps=0, should_stop=lambda: False)
    assert (result.vector_steps, operator.watched, operator.asked) == (2, 2, 3)
    again = collector.collect(policy, 8, env_steps=2, should_stop=lambda: False)
    assert (again.vector_steps, again.steps, again.trajectory, operator.watched) == (0, 0, None, 2)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_step_ahead_is_kept_when_the_operator_wants_to_wait(tmp_path):
    (journal, tracker), (other, second) = journal_in(tmp_path), journal_in(tmp_path)
    plain = joined(collected(Every(), 9, journal)[0])
    ahead = joined(collected(Every(), 9, other, overlap="strict")[0])
    assert torch.equal(ahead["observations"], plain["observations"])
    assert torch.equal(ahead["actions"], plain["actions"])
    tracker.close(), second.close()


def test_a_resume_knows_who_was_acting(tmp_path):
    journal, tracker = journal_in(tmp_path)
    number = journal.id_of("anna")
    ids = torch.tensor([[0.0], [float(number)]])
    journal.record(ids, 0, None)
    again, second = journal_in(tmp_path)
    again.set_state(json.loads(json.dumps(journal.get_state())))
    again.record(ids[1:], 2, None)
    again.record(ids[:1], 3, None)
    tracker.close(), second.close()
    assert [(row["kind"], row["step"]) for row in events(tracker, "takeover", "hand_back")] == [("takeover", 1)]
    assert [(row["kind"], row["step"]) for row in events(second, "takeover", "hand_back")] == [("hand_back", 3)]
