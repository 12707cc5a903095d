"""Actions from the learner: chunks, prefetch, deadlines, and a learner whose random stream does not notice."""

import threading
import time
from contextlib import contextmanager

import pytest
import torch

from rl_lab.core import Workflow
from rl_lab.core.operator import NotReady
from rl_lab.distributed.transport.interface import TransportError
from rl_lab.distributed.transport.open import TransportConfig, open_receiver, open_sender
from rl_lab.orchestration.serving import Inference, ServedPolicy

OBS, ACTION = torch.zeros(1, 2), torch.zeros(1, 1)


class Counting(Workflow):
    """Its action is 100 times what it sees plus how far it is in its plan, and a draw it does not use."""

    def initialize(self, context):
        pass

    def initial_carry(self, num_envs):
        return torch.zeros(num_envs)

    def act(self, obs, carry, *, is_first, explore, step):
        torch.rand(())
        count = torch.where(is_first, 0.0, carry)
        return (100.0 * obs[:, :1] + count[:, None]), {}, count + 1.0


@contextmanager
def ends(tmp_path, *, chunk=1, prefetch=0, deadline_s=20.0, serve=True):
    block = {"kind": "host", "address": str(tmp_path / "s"), "directory": str(tmp_path / "learner")}
    with open_receiver(TransportConfig.read(block), {"x": OBS}) as receiver:
        inference = Inference(
            Counting(), receiver, OBS, ACTION, chunk=chunk, seed=1, device=torch.device("cpu")
        ) if serve else None  # fmt: skip
        with open_sender(TransportConfig.read(block | {"directory": str(tmp_path / "actor")}), {"x": OBS}) as sender:
            policy = ServedPolicy(OBS, ACTION, chunk=chunk, prefetch=prefetch, deadline_s=deadline_s, imitates=False)
            policy.connect(sender)
            eventually(lambda: sender.status().is_connected)
            yield policy, inference


def eventually(look):
    deadline = time.monotonic() + 30
    while not (found := look()) and time.monotonic() < deadline:
        time.sleep(0.002)
    return found


@contextmanager
def answering(inference):
    """Somebody who answers, in a thread."""
    over = threading.Event()

    def work():
        while not over.is_set():
            inference.answer(0)
            time.sleep(0.001)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def acted(policy, place, *, first=False):
    obs = torch.tensor([[float(place), 0.0]])
    actions, extras, _ = policy.act(obs, None, is_first=torch.tensor([first]), explore=True, step=0)
    assert extras == {}
    return int(actions)


def test_each_action_is_asked_for_and_each_question_begins_a_new_plan(tmp_path):
    with ends(tmp_path) as (policy, inference), answering(inference):
        assert [acted(policy, place, first=place == 0) for place in (0, 1, 2)] == [0, 100, 200]
        assert acted(policy, 5, first=True) == 500
        assert policy.num_missed == 0


def test_a_chunk_is_done_before_the_next_is_asked_for(tmp_path):
    with ends(tmp_path, chunk=3) as (policy, inference), answering(inference):
        found = [acted(policy, place, first=place == 0) for place in range(7)]
        assert found == [0, 1, 2, 300, 301, 302, 600]


def test_what_was_asked_for_early_leaves_out_the_steps_that_have_passed(tmp_path):
    with ends(tmp_path, chunk=4, prefetch=2) as (policy, inference), answering(inference):
        found = [acted(policy, place, first=place == 0) for place in range(8)]
        # The second chunk was asked for at place 2 and is for places 2 to 5: its first two actions are left out.
        assert found == [0, 1, 2, 3, 202, 203, 402, 403]


def test_somebody_who_acts_ends_the_chunk(tmp_path):
    with ends(tmp_path, chunk=3) as (policy, inference), answering(inference):
        assert acted(policy, 0, first=True) == 0
        policy.took(None, torch.tensor([[0.0]]))
        assert acted(policy, 1) == 1  # as proposed: the chunk goes on
        policy.took(None, torch.tensor([[-7.0]]))
        assert acted(policy, 2) == 200  # the learner's plan does not go on where the actor left it


def test_a_late_answer_is_counted_nothing_is_done_and_the_answer_is_used_then(tmp_path):
    with ends(tmp_path, deadline_s=0.01) as (policy, inference):
        for count in (1, 2):
            with pytest.raises(NotReady):
                acted(policy, 3, first=True)
            assert policy.num_missed == count
        waiting = inference._receiver._service.questions._waiting
        eventually(lambda: waiting)
        assert len(waiting) == 1  # the step is the same: it is not asked for anew
        inference.answer(0)
        assert eventually(lambda: policy._waiting.done())
        assert acted(policy, 3, first=True) == 300
        with pytest.raises(NotReady):
            acted(policy, 4, first=True)  # another episode is another question


def test_an_operator_who_acts_is_not_waited_for_and_nothing_is_asked(tmp_path):
    with ends(tmp_path, deadline_s=60.0) as (policy, inference):  # nobody answers
        policy.beside(is_led=True, is_wanted=lambda: False)
        assert [acted(policy, place, first=place == 0) for place in range(3)] == [0, 0, 0]
        assert policy._waiting is None
        policy.beside(is_led=False, is_wanted=lambda: False)
        with answering(inference):
            assert acted(policy, 3) == 300  # it looks anew when it gets the robot back
        assert policy.num_missed == 0


def test_an_operator_who_wants_to_act_ends_the_wait(tmp_path):
    with ends(tmp_path, deadline_s=60.0) as (policy, inference):
        looks = []
        policy.beside(is_led=False, is_wanted=lambda: looks.append(1) or len(looks) == 3)
        with pytest.raises(NotReady):
            acted(policy, 3, first=True)
        assert (len(looks), policy.num_missed) == (3, 0)
        inference_has_it = inference._receiver._service.questions._waiting
        assert eventually(lambda: inference_has_it)
        inference.answer(0)
        assert acted(policy, 3, first=True) == 300  # the question was still wanted


def test_a_learner_that_is_gone_pauses_and_no_more(tmp_path):
    block = {"kind": "host", "address": str(tmp_path / "s"), "directory": str(tmp_path / "actor")}
    with open_sender(TransportConfig.read(block), {"x": OBS}) as sender:
        policy = ServedPolicy(OBS, ACTION, chunk=1, prefetch=0, deadline_s=0.01, imitates=False)
        policy.connect(sender)
        for count in (1, 2):
            with pytest.raises(NotReady):
                acted(policy, 0, first=count == 1)
            assert policy.num_missed == count


def test_the_streams_of_the_learner_stay_as_they_were(tmp_path):
    with ends(tmp_path, deadline_s=0.01) as (policy, inference):
        with pytest.raises(NotReady):
            acted(policy, 1, first=True)
        eventually(lambda: inference._receiver._service.questions._waiting)
        torch.manual_seed(3)
        inference.answer(0)
        drawn = torch.rand(4)
        torch.manual_seed(3)
        assert torch.equal(drawn, torch.rand(4))


def test_nobody_acts_where_that_is_not_configured_and_another_size_is_refused(tmp_path, caplog):
    with ends(tmp_path, serve=False, deadline_s=5.0) as (policy, _):
        with pytest.raises(NotReady):
            acted(policy, 0, first=True)
        assert "this learner does not act for actors" in caplog.text
    (tmp_path / "other").mkdir()
    with ends(tmp_path / "other", deadline_s=5.0) as (policy, inference), answering(inference):
        policy._questions = policy._answers
        with pytest.raises(TransportError, match="arrays instead of"):
            acted(policy, 0, first=True)
        answer = policy._sender.ask(b"123", 5.0)
        assert eventually(answer.done)
        assert answer.payload() is None
        assert "a question has 3 bytes instead of 9" in caplog.text
