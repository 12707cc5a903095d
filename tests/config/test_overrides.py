import pytest

from rl_lab.config.overrides import addable, expand_seeds, spelled_out
from rl_lab.core import UsageError


def test_seeds_become_runs():
    assert expand_seeds(["a=1", "experiment.seed=1,2,3"]) == [
        ["a=1", "experiment.seed=1"],
        ["a=1", "experiment.seed=2"],
        ["a=1", "experiment.seed=3"],
    ]
    assert expand_seeds(["a=1"], "7,8") == [["a=1", "experiment.seed=7"], ["a=1", "experiment.seed=8"]]
    assert expand_seeds([], "range(1,4)") == [[f"experiment.seed={seed}"] for seed in (1, 2, 3)]
    assert expand_seeds(["a=[1,2]"]) == [["a=[1,2]"]]


def test_other_keys_take_no_comma_list():
    with pytest.raises(UsageError, match=r"^algorithm.lr=1,2: only experiment.seed takes a comma list"):
        expand_seeds(["algorithm.lr=1,2"])


@pytest.mark.parametrize("text", ["a b", "x=[1,", "=3", "--flag"])
def test_unreadable_overrides_are_one_line(text):
    with pytest.raises(UsageError) as error:
        expand_seeds([text])
    assert "\n" not in str(error.value)
    assert repr(text) in str(error.value)


def test_an_experiment_without_its_group_is_recognised():
    with pytest.raises(UsageError, match=r"; did you mean \+experiment=ppo_cartpole\?$"):
        expand_seeds(["ppo_cartpole"])


def test_a_group_wants_the_name_of_an_option():
    with pytest.raises(UsageError, match="^budget=3: budget is a config group"):
        addable(["budget=3"], ["budget"])


def test_keys_may_be_added_and_groups_stay():
    given = ["a.b=1", "+c=2", "budget=tiny", "+experiment=x", "~d", "++e=3", "budget.caps={}"]
    expected = ["++a.b=1", "++c=2", "budget=tiny", "+experiment=x", "~d", "++e=3", "++budget.caps={}"]
    assert addable(given, ["budget", "experiment"]) == expected


def test_seeds_are_given_one_way():
    with pytest.raises(UsageError, match=r"--seed 3,4 and experiment.seed are both given"):
        expand_seeds(["experiment.seed=1,2"], "3,4")


def test_short_forms():
    given = ["debug=true", "devices=2", "+devices=3", "experiment.devices=4", "environment.devices=5", "device=cpu"]
    assert spelled_out(given) == [
        "experiment.debug=true",
        "experiment.devices=2",
        "+experiment.devices=3",
        *given[3:],
    ]
