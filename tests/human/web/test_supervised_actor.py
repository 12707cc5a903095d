"""A person at the page of an actor: learner and actor agree on what is sent, and nobody is asked before a step."""

import torch

from rl_lab.cli.running import new_job, opened
from rl_lab.config.actors import assemble_actor, build_actor
from rl_lab.config.allow_list import AllowList
from rl_lab.config.build import assemble, watched
from rl_lab.config.remote import example_step
from rl_lab.config.targets import Targets
from rl_lab.config.validate import read_phases
from rl_lab.core.operator import Bystander
from rl_lab.human.web.operator import WebOperator
from rl_lab.orchestration.interventions import Interventions
from rl_lab.orchestration.notes import unpacked_note
from tests.human.bench import LONG_S
from tests.human.web.test_page import Client
from tests.human.web.test_supervised_run import FAST, Person, wait_for
from tests.workflows.teaching import TINY, composed

torch.set_num_threads(1)


def test_learner_and_actor_expect_the_same_steps(tmp_path):
    config = composed("supervised_insertion", tmp_path, *TINY, *FAST, "transport.kind=host")
    learner, actor = (assemble(config, Targets(AllowList()), is_actor=is_actor) for is_actor in (False, True))
    assert isinstance(learner.operator, Bystander)
    assert isinstance(actor.operator, WebOperator)
    actor.operator.desk.pause("nobody is at the robot yet")
    told = []
    journal = Interventions(lambda kind, **_: told.append(kind), told.append)
    phases = read_phases(learner.config, learner.targets)
    ours, theirs = (
        example_step(parts.env.spec, parts.config, phases, parts.workflow, watched(parts, journal))
        for parts in (learner, actor)
    )
    assert ours["infos"].keys() == theirs["infos"].keys()
    assert {"is_intervention", "operator", "operator_time", "verdict"} <= ours["infos"].keys()
    assert (actor.operator.episode_step, set(told)) == (0, {"operator"})  # where its page is
    actor.operator.close()
    for parts in (learner, actor):
        parts.env.close()


PRACTICE = (
    "training.teacher=null",
    "training.phases=[{name: practise, buffer: demonstrations, duration_steps: 64, workflow_hooks: [{collect: 8}]}]",
)


def test_a_person_takes_over_and_jogs_beside_a_learner_that_never_answers(tmp_path):
    served = ("transport.kind=host", "transport.inference=learner", f"transport.deadline_s={LONG_S}")
    config = composed("supervised_insertion", tmp_path, *TINY, *FAST, *PRACTICE, *served)
    targets = Targets(AllowList())
    job = new_job(config, targets, tmp_path / "run", quiet=True)
    with opened(job, quiet=True) as learner:  # it listens, and does nothing else
        parts = assemble_actor(config, targets)
        actor, operator, policy = build_actor(parts, job.run.path), parts.operator, parts.workflow
        anna = Client(operator)
        anna.join("anna")

        def waited_for(*deeds):
            """Let the actor wait for its policy until a person does something; no step is taken before."""

            def act():
                wait_for(lambda: policy._waiting is not None)
                for deed, options in deeds:
                    anna.do(deed, **options)

            person = Person(act)
            assert not actor.step()
            person.done()

        waited_for(("take_over", {}))
        anna.do("jog", motion={"z": 1})
        assert [actor.step() for _ in range(4)] == [True] * 4
        anna.do("jog", motion={"z": 0})
        anna.do("hand_back")
        waited_for(("failure", {}))
        assert actor.step()  # the word ends the episode
        anna.connection.close()
        assert (actor.num_steps, policy.num_missed) == (5, 0)
        steps = []
        while len(steps) < 5:
            steps += learner.remote.receiver.receive(5 - len(steps), LONG_S)
        actor.close()
        parts.env.close()
    rows = [got.step for got in steps]
    assert [row["actions"][0].tolist() for row in rows] == [[0.0, 0.0, 1.0]] * 4 + [[0.0, 0.0, 0.0]]
    assert [float(row["infos"]["is_intervention"]) for row in rows] == [1.0] * 5
    assert [unpacked_note("actor", row).acting for row in rows] == ["anna"] * 5
    assert [float(row["infos"]["verdict"]) for row in rows] == [0.0] * 4 + [-1.0]
    heights = [float(row["observations"][0, 2]) for row in rows]
    assert heights == sorted(heights)
    assert heights[-1] > heights[0]
