"""The scheduler against a naive simulation, also across a save and restore at every point."""

import json
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_lab.core import CheckpointError, Counters, HookInfo, LabError
from rl_lab.orchestration.phase_scheduler import PhaseScheduler
from rl_lab.orchestration.phases import parse_phases

HOOKS = {"update_a": HookInfo(True, "train"), "update_b": HookInfo(True, "train")}
NUM_ENVS = 3


def phases_of(*phases):
    return parse_phases(phases, HOOKS, ["replay"])


def naive(phases, total):
    """Every call of a run, one vector step of `collect` each, written as the loops a person would write."""
    log, steps, updates = [], 0, 0
    for phase in phases:
        if phase.type == "online" and steps >= total:
            continue
        begin_steps, begin_updates, cycles, granted = steps, updates, 0, 0
        seen = {}
        for index, call in enumerate(phase.hooks):
            if call.every_steps:
                seen[index] = steps // call.every_steps
            if call.every_updates:
                seen[index] = updates // call.every_updates
        while True:
            index = 0
            while index < len(phase.hooks):
                call = phase.hooks[index]
                if phase.train_ratio is not None and call.is_update:
                    group = [c for c in phase.hooks if c.is_update]
                    due = int(Fraction(str(phase.train_ratio)) * (steps - begin_steps)) - granted
                    granted += due
                    for _ in range(due):
                        for member in group:
                            log += [member.name] * member.times
                            updates += member.times
                    index += len(group)
                    continue
                index += 1
                if call.every_steps or call.every_updates:
                    mark = steps // call.every_steps if call.every_steps else updates // call.every_updates
                    if mark <= seen[index - 1]:
                        continue
                    seen[index - 1] = mark
                log += [call.name] * call.times
                if call.name == "collect":
                    steps += call.times * NUM_ENVS
                elif call.is_update:
                    updates += call.times
            cycles += 1
            done = {"steps": steps - begin_steps, "updates": updates - begin_updates, "cycles": cycles}[phase.unit]
            if done >= phase.duration or (phase.type == "online" and steps >= total):
                break
    return log, steps, updates


def drive(phases, total, *, chunk=None, restore=False):
    scheduler, log = PhaseScheduler(phases, total), []
    while (action := scheduler.next_action()) is not None:
        repeats = min(action.repeats, chunk or action.repeats)
        log += [action.hook] * repeats
        is_update = action.hook.startswith("update")
        scheduler.advance(
            action, repeats=repeats, steps=repeats * NUM_ENVS if action.hook == "collect" else 0, updates=int(is_update)
        )
        if restore:
            saved = json.loads(json.dumps([scheduler.get_state(), scheduler.counters.get_state()]))
            scheduler = PhaseScheduler(phases, total, Counters(**saved[1]))
            scheduler.set_state(saved[0])
    return log, scheduler.counters.env_steps, scheduler.counters.updates


def clocks():
    return st.one_of(st.just({}), st.fixed_dictionaries({"every_steps": st.integers(1, 40)}))


@st.composite
def random_phase(draw, index):
    kind = draw(st.sampled_from(["online", "ratio", "offline", "eval_only"]))
    times = st.integers(1, 4)
    evaluate = [{"evaluate": draw(clocks()) or 1}] if draw(st.booleans()) else []
    phase = {"name": f"phase{index}", "buffer": "replay"}
    if kind == "eval_only":
        return phase | {"workflow_hooks": ["evaluate"], "duration_cycles": draw(st.integers(1, 3))}
    updates = [{"update_a": draw(times)}] + ([{"update_b": draw(times)}] if draw(st.booleans()) else [])
    if kind == "offline":
        unit = draw(st.sampled_from(["duration_updates", "duration_cycles"]))
        return phase | {"workflow_hooks": updates + evaluate, unit: draw(st.integers(1, 12))}
    hooks = [{"collect": draw(times)}, *updates, *evaluate]
    if kind == "ratio":
        phase["train_ratio"] = draw(st.sampled_from([0.1, 0.25, 1 / 3, 0.7, 1, 2.5]))
    elif draw(st.booleans()):
        hooks.append({"update_b": {"every_updates": draw(st.integers(1, 7)), "times": draw(times)}})
    unit = draw(st.sampled_from(["duration_steps", "duration_updates", "duration_cycles"]))
    return phase | {"workflow_hooks": hooks, unit: draw(st.integers(1, 40))}


@st.composite
def random_runs(draw):
    phases = [draw(random_phase(index)) for index in range(draw(st.integers(1, 4)))]
    return phases_of(*phases), draw(st.integers(1, 120)), draw(st.sampled_from([None, 1, 2]))


@settings(max_examples=300, deadline=None)
@given(random_runs())
def test_every_hook_runs_as_often_as_a_naive_simulation_says(run):
    phases, total, chunk = run
    expected = naive(phases, total)
    assert drive(phases, total, chunk=chunk) == expected
    assert drive(phases, total, chunk=chunk, restore=True) == expected


def test_collect_may_be_cut_into_chunks_without_moving_the_cycle():
    phases = phases_of({"name": "p", "duration_steps": 24, "hooks": [{"collect": 4}, "update_a"]})
    assert drive(phases, 1000, chunk=3)[0] == ["collect"] * 4 + ["update_a"] + ["collect"] * 4 + ["update_a"]


def test_a_phase_ends_only_at_the_end_of_a_cycle():
    phases = phases_of({"name": "p", "duration_steps": 1, "hooks": [{"collect": 2}, {"update_a": 3}]})
    assert drive(phases, 1)[0] == ["collect", "collect", "update_a", "update_a", "update_a"]


def test_reaching_the_total_ends_collecting_but_not_what_follows():
    phases = phases_of(
        {"name": "collecting", "duration_steps": 300, "hooks": ["collect"]},
        {"name": "more", "duration_steps": 300, "hooks": ["collect"]},
        {"name": "learning", "duration_updates": 2, "hooks": ["update_a"]},
        {"name": "judging", "type": "eval_only", "duration_cycles": 1},
    )
    assert drive(phases, 6)[0] == ["collect", "collect", "update_a", "update_a", "evaluate"]


def test_skipped_updates_are_not_counted_and_a_phase_without_any_raises():
    phases = phases_of({"name": "p", "duration_cycles": 2, "hooks": ["collect", "update_a"]})
    scheduler = PhaseScheduler(phases, 100)
    for _ in range(3):
        action = scheduler.next_action()
        scheduler.advance(action, steps=1 if action.hook == "collect" else 0, skipped=int(action.hook == "update_a"))
    assert scheduler.counters.updates == 0
    with pytest.raises(LabError, match="phase 'p' ended without one update: buffer 'replay' was never ready"):
        scheduler.advance(scheduler.next_action(), skipped=1)


def test_credit_of_skipped_updates_does_not_burst():
    phases = phases_of({"name": "p", "duration_steps": 60, "train_ratio": 0.5, "hooks": ["collect", "update_a"]})
    scheduler, per_cycle, done = PhaseScheduler(phases, 1000), [], 0
    while (action := scheduler.next_action()) is not None:
        if action.hook == "collect":
            per_cycle.append(done)
            done = 0
            scheduler.advance(action, steps=4)
        else:
            ready = scheduler.counters.env_steps > 40
            done += ready
            scheduler.advance(action, updates=int(ready), skipped=int(not ready))
    assert max(per_cycle) == 2


def test_progress_runs_from_zero_to_one_and_free_keys_are_readable():
    phases = phases_of({"name": "p", "duration_steps": 12, "hooks": ["collect"], "noise": 0.3})
    scheduler = PhaseScheduler(phases, 1000)
    seen = []
    while (action := scheduler.next_action()) is not None:
        seen.append(scheduler.current_phase().progress)
        scheduler.advance(action, steps=NUM_ENVS)
    assert seen == [0.0, 0.25, 0.5, 0.75]
    assert scheduler.current_phase().progress == 1.0
    assert scheduler.current_phase()["noise"] == 0.3


def test_a_finished_run_goes_on_when_its_durations_grow():
    def build(duration, total):
        return phases_of({"name": "p", "duration_steps": duration, "hooks": ["collect", "update_a"]}), total

    short, long = build(6, 100), build(15, 100)
    first = PhaseScheduler(*short)
    log = []

    def play(scheduler):
        while (action := scheduler.next_action()) is not None:
            log.append(action.hook)
            scheduler.advance(
                action, steps=NUM_ENVS * (action.hook == "collect"), updates=int(action.hook != "collect")
            )

    play(first)
    second = PhaseScheduler(*long, Counters(**first.counters.get_state()))
    second.set_state(first.get_state())
    play(second)
    assert (log, second.counters.env_steps, second.counters.updates) == naive(*long)
    assert second.counters.cycles == 5


def test_telling_of_another_action_or_restoring_other_phases_is_refused():
    phases = phases_of({"name": "p", "duration_steps": 12, "hooks": ["collect", "update_a"]})
    scheduler = PhaseScheduler(phases, 100)
    with pytest.raises(ValueError, match="expected 'collect'"):
        scheduler.advance(scheduler.next_action()._replace(hook="update_a"))
    other = PhaseScheduler(phases_of({"name": "q", "duration_cycles": 1, "hooks": ["update_a"]}), 100)
    with pytest.raises(CheckpointError, match=r"\['q'\].*\['p'\]"):
        scheduler.set_state(other.get_state())


def test_only_the_phase_that_a_run_ended_with_can_be_made_longer():
    def build(steps):
        return phases_of(
            {"name": "train", "duration_steps": steps, "hooks": ["collect"]},
            {"name": "judge", "type": "eval_only", "cycles": 1},
        )

    first = PhaseScheduler(build(6), 100)
    while (action := first.next_action()) is not None:
        first.advance(action, steps=NUM_ENVS * (action.hook == "collect"))
    longer = PhaseScheduler(build(12), 100, Counters(**first.counters.get_state()))
    with pytest.raises(
        CheckpointError, match="the run has ended with phase 'judge'; only its duration can be made longer"
    ):
        longer.set_state(first.get_state())
    same = PhaseScheduler(build(6), 100, Counters(**first.counters.get_state()))
    same.set_state(first.get_state())
    assert same.is_finished()


def play_until(scheduler, log):
    while (action := scheduler.next_action()) is not None:
        log.append(action.hook)
        is_update = action.hook.startswith("update")
        scheduler.advance(
            action,
            repeats=action.repeats,
            steps=action.repeats * NUM_ENVS if action.hook == "collect" else 0,
            updates=int(is_update),
        )
    return log


@pytest.mark.parametrize("ratio", [{}, {"train_ratio": 0.5}])
@pytest.mark.parametrize("first", [[], [{"evaluate": {"every_steps": 9}}]])
def test_a_pause_is_at_the_end_of_the_cycle_that_reaches_it_also_when_it_is_asked_for_again(first, ratio):
    hooks = [*first, {"collect": 2}, "update_a", {"evaluate": {"every_steps": 12}}]

    def build(state=None, counters=None, pause_at=None):
        phase = {"name": "p", "buffer": "replay", "duration_steps": 60, "workflow_hooks": hooks, **ratio}
        scheduler = PhaseScheduler(phases_of(phase), 60, Counters())
        if state is not None:
            scheduler.counters.set_state(counters)
            scheduler.set_state(state)
        scheduler.pause_at = pause_at
        return scheduler

    whole, log, scheduler = play_until(build(), []), [], build()
    for pause_at in (1, 12, 13, 13, 36, None):  # the cycles end at 6, 12, 18 and so on
        scheduler = build(scheduler.get_state(), scheduler.counters.get_state(), pause_at)
        play_until(scheduler, log)
        if pause_at is not None:
            assert scheduler.is_paused
            assert scheduler.counters.env_steps == -(-pause_at // 6) * 6
            assert scheduler.counters.cycles == scheduler.counters.env_steps // 6
            if scheduler.counters.env_steps % 12 == 0:
                assert log[-1] == "evaluate"  # what the pause is for is there
    assert log == whole
    assert scheduler.is_finished()
    assert not scheduler.is_paused
