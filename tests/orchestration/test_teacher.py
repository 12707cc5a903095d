"""A teacher beside a student: who acts, what is recorded, and that nothing depends on where collecting is cut."""

from dataclasses import replace

import pytest
import torch

from rl_lab.buffers.rollout import RolloutBuffer
from rl_lab.core import (
    Box,
    CheckpointError,
    ConfigError,
    Discrete,
    EnvSpec,
    HookCall,
    MultiDiscrete,
    Phase,
    Workflow,
    tree_cat,
)
from rl_lab.environments.counting import LAST_ACTION, STEP, Counting
from rl_lab.orchestration.collector import Collector
from rl_lab.orchestration.teacher import Mixture, Share, Teacher, check_shares, match_specs, read_share, student_spec
from tests.orchestration.parts import Counter, no_timer

NUM_ENVS, CPU = 5, torch.device("cpu")
STUDENT, TEACHER = 0, 1  # what each of them always does


class Always(Workflow):
    """Does one thing, and remembers how often it was asked and what was done in the end."""

    def __init__(self, action, *, imitates=True):
        super().__init__()
        self.action, self.imitates, self.seen = action, imitates, []

    def initialize(self, context): ...

    def initial_carry(self, num_envs):
        return {"count": torch.zeros(num_envs), "taken": torch.full((num_envs,), -1)}

    def act(self, obs, carry, *, is_first, explore, step):
        self.seen.append((obs, explore, step))
        count = torch.where(is_first, 0.0, carry["count"]) + 1
        before = {} if self.action == TEACHER else {"taken_before": carry["taken"]}
        return torch.full((len(count),), self.action), before, {"count": count, "taken": carry["taken"]}

    def took(self, carry, actions):
        return carry | {"taken": actions}


def make_teacher(workflow=None, **options):
    options = {"source": "runs/t", "sha256": "a", "step": 777, "explore": False, "reads": {"": ""}} | options
    return Teacher(workflow=workflow or Always(TEACHER), **options)


def make_phase(share, *, progress=0.0, unit="steps", duration=100, **options):
    options = options if share is None else {"teacher_share": share, **options}
    return Phase("p", "online", (HookCall("collect"),), unit, duration, "b", progress=progress, options=options)


def collect(mixture, collector, steps, env_steps=0, phase=None):
    policy = mixture.during(phase or make_phase(0.5), env_steps)
    return mixture.recorded(collector.collect(policy, steps, env_steps=env_steps, should_stop=lambda: False))


def new_collector():
    return Collector(Counting(NUM_ENVS), 0, no_timer)


@pytest.mark.parametrize(("share", "expected"), [(1.0, TEACHER), (0, STUDENT)])
def test_who_acts_and_that_imitation_learns_what_the_teacher_would_have_done(share, expected):
    result = collect(Mixture(Always(STUDENT), make_teacher(), CPU), new_collector(), 30, phase=make_phase(share))
    rows = result.trajectory
    assert (rows["final_observations"][..., LAST_ACTION] == expected).all()
    assert (rows["actions"] == TEACHER).all()
    assert "teacher_actions" not in rows
    assert result.metrics["teacher_share"] == (30 * NUM_ENVS * expected, 30 * NUM_ENVS)


def test_who_does_not_imitate_is_told_what_was_done_and_the_label_beside_it():
    torch.manual_seed(0)
    student = Always(STUDENT, imitates=False)
    rows = collect(Mixture(student, make_teacher(), CPU), new_collector(), 60).trajectory
    assert torch.equal(rows["final_observations"][..., LAST_ACTION], rows["actions"].float())
    assert (rows["teacher_actions"] == TEACHER).all()
    assert 0.3 < float(rows["actions"].float().mean()) < 0.7


def test_both_are_told_what_was_done():
    torch.manual_seed(0)
    rows = collect(Mixture(Always(STUDENT, imitates=False), make_teacher(), CPU), new_collector(), 40).trajectory
    assert torch.equal(rows["taken_before"][1:], rows["actions"][:-1])
    mixture = Mixture(Always(STUDENT), make_teacher(), CPU).during(make_phase(0.5), 0)
    first = torch.ones(NUM_ENVS, dtype=torch.bool)
    taken, _, carry = mixture.act(
        torch.zeros(NUM_ENVS, 4), mixture.initial_carry(NUM_ENVS), is_first=first, explore=True, step=0
    )
    for one in ("student", "teacher"):
        assert torch.equal(carry[one]["taken"], taken)
        assert (carry[one]["count"] == 1).all()


def test_the_teacher_acts_as_it_was_trained_and_the_student_explores():
    student, workflow = Always(STUDENT), Always(TEACHER)
    collect(Mixture(student, make_teacher(workflow), CPU), new_collector(), 3)
    assert [(explore, step) for _, explore, step in workflow.seen] == [(False, 777)] * 3
    assert [(explore, step) for _, explore, step in student.seen] == [(True, NUM_ENVS * i) for i in range(3)]


def test_by_episode_nobody_takes_over_on_the_way():
    torch.manual_seed(3)
    mixture = Mixture(Always(STUDENT, imitates=False), make_teacher(), CPU, per_episode=True)
    rows = collect(mixture, new_collector(), 200, phase=make_phase(0.5)).trajectory
    changes = rows["actions"][1:] != rows["actions"][:-1]
    assert changes.any()
    assert rows["is_first"][1:][changes].all()


def test_the_schedule_is_a_line_over_the_phase():
    torch.manual_seed(0)
    student, num_steps = Always(STUDENT, imitates=False), 400
    collector = Collector(Counting(50), 0, no_timer)
    phase = make_phase([0.8, 0.2], duration=50 * num_steps)
    rows = collect(Mixture(student, make_teacher(), CPU), collector, num_steps, phase=phase).trajectory
    shares = rows["actions"].float().mean(1).view(4, -1).mean(1)  # of the quarters of the phase
    torch.testing.assert_close(shares, torch.tensor([0.725, 0.575, 0.425, 0.275]), atol=0.03, rtol=0)
    assert Share(0.8, 0.2).at(1.7) == pytest.approx(0.2)  # the last cycle may go beyond the end


@pytest.mark.parametrize("unit", ["steps", "cycles"])
def test_cuts_and_restores_change_nothing(unit):
    def run(sizes):
        torch.manual_seed(1)
        collector, done, parts = new_collector(), 0, []
        for size in sizes:
            progress = done / 150 if unit == "steps" else 0.25  # cycles do not move while steps are collected
            phase = make_phase([1.0, 0.0], progress=progress, unit=unit, duration=150 if unit == "steps" else 4)
            mixture = Mixture(Counter(), make_teacher(Counter()), CPU, per_episode=unit == "cycles")
            parts.append(collect(mixture, collector, size, env_steps=1000 + done, phase=phase).trajectory)
            done += size * NUM_ENVS
            successor = new_collector()
            successor.set_state(collector.get_state())
            collector = successor
        return tree_cat(parts)

    whole, joined = run([30]), run([1, 7, 2, 20])
    assert whole.keys() == joined.keys()
    for key in whole:
        assert torch.equal(whole[key], joined[key]), key
    is_teacher = whole["actions"] == whole["teacher_actions"]
    assert is_teacher.any()
    assert not is_teacher.all()


def test_the_teacher_reads_its_own_part_and_what_is_privileged_is_not_recorded():
    class Parts(Counting):
        """Shows the count to everyone and the whole only to who may see it."""

        def __init__(self):
            super().__init__(NUM_ENVS)
            whole = self.spec.observation
            self.spec = replace(self.spec, observation={"whole": whole, "count": Box((1,))})

        def _observe(self, state):
            whole = super()._observe(state)
            return {"whole": whole, "count": whole[..., STEP : STEP + 1]}

    student, workflow, env = Always(STUDENT), Always(TEACHER), Parts()
    mixture = Mixture(student, make_teacher(workflow, reads={"": "whole"}), CPU, privileged=["whole"])
    rows = collect(mixture, Collector(env, 0, no_timer), 10).trajectory
    assert workflow.seen[3][0].shape == (NUM_ENVS, 4)
    for key in ("observations", "final_observations"):
        assert list(rows[key]) == ["count"]
    assert list(student_spec(env.spec, ["whole"]).observation) == ["count"]
    assert student_spec(env.spec, []) is env.spec


def test_a_run_goes_on_only_beside_the_same_teacher():
    mixture = Mixture(Always(STUDENT), make_teacher(), CPU)
    mixture.check_state(mixture.get_state())
    with pytest.raises(CheckpointError, match=r"made beside runs/old, and runs/t has other weights"):
        mixture.check_state({"source": "runs/old", "sha256": "b"})


# What does not fit.


@pytest.mark.parametrize("share", [1.5, -0.1, "half", True, [0.5], [0.5, 2], [0.1, 0.2, 0.3], None])
def test_a_share_outside_of_0_to_1_is_one_line(share):
    phase = make_phase(None, teacher_share=share)
    with pytest.raises(
        ConfigError, match=r"^teacher_share of phase 'p' must be a number from 0 to 1 or \[begin, end\]"
    ):
        read_share(phase)


def test_phases_say_who_acts_where_somebody_does():
    student, buffers = Always(STUDENT), {"b": RolloutBuffer()}
    offline = replace(make_phase(0.5), type="offline")
    check_shares([make_phase(0.5), replace(offline, options={})], student, buffers, has_teacher=True)
    for phases, has_teacher, message in (
        ([make_phase(None)], True, r"^phase 'p' collects beside a teacher and needs teacher_share"),
        ([make_phase(0.5)], False, r"^teacher_share of phase 'p': the phase has no teacher \(training\.teacher\)$"),
        ([offline], True, r"^teacher_share of phase 'p': the phase collects nothing$"),
    ):
        with pytest.raises(ConfigError, match=message):
            check_shares(phases, student, buffers, has_teacher=has_teacher)


def test_who_learns_from_rollouts_of_its_own_lets_nobody_else_act():
    buffers, student = {"b": RolloutBuffer()}, Always(STUDENT, imitates=False)
    check_shares([make_phase(0)], student, buffers, has_teacher=True)
    with pytest.raises(ConfigError, match=r"Always learns from rollouts of its own, where no teacher may act \(0\)$"):
        check_shares([make_phase([0.1, 0])], student, buffers, has_teacher=True)


TASK = EnvSpec("task", {"state": Box((4,)), "seen": Box((2,), torch.uint8)}, Box((2,), low=-1.0, high=1.0))


@pytest.mark.parametrize(
    ("observation", "keys", "reads"),
    [
        (Box((4,), low=-9.0, high=9.0), "state", {"": "state"}),  # bounds are no matter of reading
        ({"seen": Box((2,), torch.uint8)}, None, {"seen": "seen"}),
        ({"x": Box((4,)), "seen": Box((2,), torch.uint8)}, {"x": "state"}, {"x": "state", "seen": "seen"}),
    ],
)
def test_where_a_teacher_finds_what_it_reads(observation, keys, reads):
    assert match_specs(EnvSpec("t", observation, TASK.action), TASK, keys, "run") == reads


@pytest.mark.parametrize(
    ("spec", "keys", "message"),
    [
        (
            EnvSpec("CartPole-v1", Box((4,)), Discrete(2)),
            "state",
            "training.teacher: run acts by one of 2 choices in 'CartPole-v1', but 'task' takes [2] numbers in [-1, 1]",
        ),
        (
            EnvSpec("t", Box((4,)), {"a": MultiDiscrete((2, 3)), "b": Box((1,), low=0.0, high=1.0)}),
            "state",
            "training.teacher: run acts by {a: choices of [2, 3], b: [1] numbers in [0, 1]} in 't', but 'task' takes",
        ),
        (
            EnvSpec("t", Box((4,)), TASK.action),
            None,
            "training.teacher: run reads [4] numbers in [-inf, inf], but 'task' has state, seen: say where by "
            "training.teacher.observation_keys",
        ),
        (
            EnvSpec("t", {"seen": Box((3,), torch.uint8)}, TASK.action),
            None,
            "training.teacher: run reads 'seen', [3] numbers in [-inf, inf], but that of 'task' is [2] numbers",
        ),
        (
            EnvSpec("t", {"seen": Box((2,), torch.uint8)}, TASK.action),
            {"sene": "state"},
            "unknown observation of the teacher in training.teacher.observation_keys 'sene'; did you mean 'seen'? "
            "(choices: seen)",
        ),
        (
            EnvSpec("t", Box((4,)), TASK.action),
            {"x": "state"},
            "training.teacher.observation_keys: run reads one array, give one name instead",
        ),
    ],
)
def test_a_teacher_of_another_task_is_one_line_that_names_both(spec, keys, message):
    with pytest.raises(ConfigError) as caught:
        match_specs(spec, TASK, keys, "run")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("spec", "privileged", "message"),
    [
        (EnvSpec("t", Box((4,)), Discrete(2)), ["a"], "the observation of 't' is one array; the wrapper observation_p"),
        (TASK, ["stat"], "unknown key in training.teacher.privileged 'stat'; did you mean 'state'"),
        (TASK, ["state", "seen"], "nothing is left that the student could see"),
    ],
)
def test_wrong_privileges_are_one_line(spec, privileged, message):
    with pytest.raises(ConfigError) as caught:
        student_spec(spec, privileged)
    assert message in str(caught.value)
