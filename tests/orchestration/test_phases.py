"""Every way to write a phase wrongly gets one line that names it."""

import pytest

from rl_lab.core import ConfigError, HookCall, HookInfo
from rl_lab.orchestration.phases import DurationError, parse_phases

HOOKS = {
    "update_model": HookInfo(True, "train"),
    "refresh": HookInfo(False, "train"),
    "judge_model": HookInfo(True, "eval", is_update=False),
}


def parse(phase, buffers=("replay",)):
    return parse_phases([{"name": "p", **phase}], HOOKS, buffers)[0]


def test_a_phase_as_in_the_documentation():
    phase = parse(
        {
            "buffer": "replay",
            "duration_steps": 1e6,
            "workflow_hooks": ["collect", {"update_model": 4}, {"evaluate": {"every_steps": 10_000}}],
            "free": [1, 2],
        }
    )
    assert phase.hooks == (
        HookCall("collect"),
        HookCall("update_model", 4, is_update=True),
        HookCall("evaluate", 1, 10_000),
    )
    assert (phase.type, phase.unit, phase.duration, phase.buffer) == ("online", "steps", 1_000_000, "replay")
    assert phase["free"] == [1, 2]
    assert phase.get("absent", 7) == 7
    with pytest.raises(KeyError, match="unknown key of phase 'p' 'absent'"):
        phase["absent"]


@pytest.mark.parametrize(
    ("phase_type", "hooks"),
    [
        ("online", ["collect", "update_model", "refresh"]),
        ("offline", ["update_model", "refresh"]),
        ("eval_only", ["evaluate"]),
    ],
)
def test_default_hooks_by_type(phase_type, hooks):
    phase = parse({"type": phase_type, "cycles": 1})
    assert [call.name for call in phase.hooks] == hooks
    assert phase.type == phase_type


def test_the_only_buffer_is_the_default_and_evaluation_needs_none():
    assert parse({"cycles": 1, "hooks": ["collect"]}).buffer == "replay"
    assert parse({"cycles": 1, "hooks": ["evaluate"]}, buffers=()).buffer is None
    assert parse({"cycles": 1, "hooks": ["refresh"]}, buffers=("a", "b")).buffer is None


def test_a_hook_that_only_looks_is_no_update():
    judge = {"judge_model": {"every_steps": 10}}
    phase = parse({"steps": 5, "hooks": ["collect", judge, "update_model", judge], "train_ratio": 0.5})
    assert [call.is_update for call in phase.hooks] == [False, False, True, False]
    alone = parse({"cycles": 1, "hooks": ["judge_model"]})
    assert (alone.type, alone.buffer) == ("eval_only", "replay")
    with pytest.raises(ConfigError, match="must say which buffer it uses"):
        parse({"cycles": 1, "hooks": ["judge_model"]}, buffers=("a", "b"))
    with pytest.raises(ConfigError, match="never ends"):
        parse({"updates": 1, "hooks": ["judge_model"]})


@pytest.mark.parametrize(
    ("phase", "message"),
    [
        ({"name": "", "cycles": 1}, r"phases\[0\].name is missing"),
        ({"hooks": ["collect"]}, "needs exactly one of duration_steps, duration_updates, duration_cycles .found: none"),
        ({"hooks": ["collect"], "steps": 1, "cycles": 1}, "found: duration_steps, duration_cycles"),
        ({"hooks": ["collect"], "steps": 1, "duration_steps": 1}, "gives 'duration_steps' twice"),
        ({"hooks": ["collect"], "steps": 0}, "duration_steps of phase 'p' must be a whole number >= 1, not 0"),
        ({"hooks": ["collect"], "steps": "many"}, "must be a whole number >= 1, not 'many'"),
        ({"hooks": ["collect"], "steps": True}, "must be a whole number >= 1, not True"),
        ({"hooks": ["collect"], "duratoin_steps": 5}, r"unknown key of training.phases\[0\] 'duratoin_steps'"),
        ({"hooks": ["collcet"], "steps": 5}, "unknown hook of phase 'p' 'collcet'; did you mean 'collect'"),
        ({"hooks": [{"collect": 1, "evaluate": 1}], "steps": 5}, "a hook entry is"),
        ({"hooks": [{"evaluate": {"each": 5}}], "cycles": 5}, "unknown option of hook evaluate of phase 'p' 'each'"),
        ({"hooks": [{"collect": {"every_steps": 5}}], "cycles": 5}, "takes no clock"),
        ({"hooks": [{"evaluate": {"every_steps": 5, "every_updates": 5}}], "cycles": 5}, "takes one clock"),
        ({"hooks": [{"collect": -3}], "cycles": 5}, "times of hook collect of phase 'p' must be"),
        ({"cycles": 5}, "lists no workflow_hooks .choices: collect, evaluate, update_model, refresh"),
        ({"type": "onlin", "cycles": 5}, "unknown type of phase 'p' 'onlin'; did you mean 'online'"),
        (
            {"type": "offline", "hooks": ["collect"], "cycles": 5},
            "is declared 'offline' but its hooks .collect. make it 'online'",
        ),
        (
            {"hooks": ["collect"], "buffer": "replya", "cycles": 5},
            "unknown buffer of phase 'p' 'replya'; did you mean 'replay'",
        ),
        ({"hooks": ["update_model"], "steps": 5}, "never ends: duration_steps without the hook `collect`"),
        ({"hooks": ["collect"], "updates": 5}, "never ends: duration_updates without a hook that always updates"),
        (
            {"hooks": [{"refresh": {"every_updates": 2}}, "evaluate"], "updates": 5},
            "can never update: every update hook waits",
        ),
        ({"hooks": [{"refresh": {"every_steps": 2}}, "evaluate"], "updates": 5}, "never ends: duration_updates"),
        ({"hooks": ["update_model"], "cycles": 5, "train_ratio": 1}, "train_ratio of phase 'p' needs `collect`"),
        ({"hooks": ["update_model", "collect"], "cycles": 5, "train_ratio": 1}, "needs `collect` and then"),
        (
            {"hooks": ["collect", "update_model", "evaluate", "refresh"], "cycles": 5, "train_ratio": 1},
            "one after another",
        ),
        ({"hooks": ["collect", "update_model"], "cycles": 5, "train_ratio": 0}, "must be a number > 0, not 0"),
        (
            {"hooks": ["collect", {"refresh": {"every_steps": 2}}], "cycles": 5, "train_ratio": 1},
            "paces its updates both",
        ),
    ],
)
def test_mistakes_are_named(phase, message):
    with pytest.raises(ConfigError, match=message) as caught:
        parse(phase)
    assert "\n" not in str(caught.value)


def test_an_ambiguous_buffer_an_empty_list_and_a_repeated_name_are_named():
    with pytest.raises(ConfigError, match=r"must say which buffer it uses .choices: a, b"):
        parse({"hooks": ["collect"], "cycles": 1}, buffers=("b", "a"))
    with pytest.raises(ConfigError, match=r"training.phases is empty"):
        parse_phases([], HOOKS, ["replay"])
    with pytest.raises(ConfigError, match="2 phases named 'p'"):
        parse_phases([{"name": "p", "type": "eval_only", "cycles": 1}] * 2, HOOKS, [])


def test_only_a_duration_below_one_is_an_error_of_its_own():
    for value in (0, -3, 0.5):
        with pytest.raises(
            DurationError, match=f"duration_steps of phase 'p' must be a whole number >= 1, not {value}"
        ):
            parse({"steps": value, "hooks": ["collect"]})
    for phase in ({"steps": "many", "hooks": ["collect"]}, {"steps": 5, "hooks": [{"collect": 0}]}):
        with pytest.raises(ConfigError) as error:
            parse(phase)
        assert not isinstance(error.value, DurationError)
