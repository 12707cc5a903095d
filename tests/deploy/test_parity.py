import numpy as np
import pytest
import torch

from rl_lab.core import Box, Discrete, EnvSpec, Workflow
from rl_lab.deploy.function import PolicyFunction
from rl_lab.deploy.parity import Calls, Parity, compare, record, steadiest
from tests.deploy.building import build


class Choice(Workflow):
    """Chooses the larger of two numbers."""

    def initialize(self, context):
        raise AssertionError

    def act(self, obs, carry, *, is_first, explore, step):
        return obs.argmax(-1), {}, carry


FUNCTION = PolicyFunction(Choice(), EnvSpec("e", Box((2,)), Discrete(2)))


def calls(*pairs):
    inputs = np.array(pairs, np.float32)[:, None]
    outputs = inputs.argmax(-1).astype(np.int32)
    rest = {"is_first": np.ones((len(pairs), 1), np.float32)}
    return Calls({"observation": inputs, **rest}, {"action": outputs})


def test_a_wrong_choice_is_an_error_unless_both_were_equal_to_the_last_digits():
    recorded = calls((1.0, 2.0), (1.0, 1.0 + 1e-7), (3.0, 1.0))
    wrong = recorded.outputs["action"].copy()
    wrong[1] = 0
    assert compare(FUNCTION, recorded, {"action": wrong}) == Parity(0.0, 1)
    assert compare(None, recorded, {"action": wrong}) == Parity(1.0, 0)
    wrong[2] = 1
    found = compare(FUNCTION, recorded, {"action": wrong})
    assert found == Parity(1.0, 1)
    assert not found.is_good


def test_a_wrong_number_beside_another_choice_is_an_error():
    recorded = calls((1.0, 2.0), (1.0, 1.0 + 1e-7))
    answer = {"action": recorded.outputs["action"].copy()}
    answer["action"][1] = 2  # the policy may choose 0 or 1 there
    assert compare(FUNCTION, recorded, answer) == Parity(1.0, 0)


@pytest.mark.parametrize(("wanted", "found", "difference"), [(0.5, 0.5 + 1e-6, 1e-6), (100.0, 100.1, 1e-3)])
def test_differences_are_relative_beyond_one(wanted, found, difference):
    recorded = Calls({}, {"action": np.full((4, 1, 2), wanted)})
    answer = {"action": recorded.outputs["action"].copy()}
    answer["action"][2, 0, 1] = found
    assert compare(None, recorded, answer).max_difference == pytest.approx(difference)


def test_no_number_is_no_parity():
    recorded = Calls({}, {"action": np.zeros((4, 1, 2))})
    assert not compare(None, recorded, {"action": np.full((4, 1, 2), np.nan)}).is_good


def test_calls_are_whole_episodes_and_noise_around_them():
    workflow, spec, env = build("ppo_memory_lstm", "environment.length=5")
    function = PolicyFunction(workflow, spec)
    recorded = record(function, env, 200)
    starts = np.flatnonzero(recorded.inputs["is_first"][:100, 0])
    assert len(starts) > 3
    for index in range(1, 200):  # the state goes from each call to the next
        for name in ("state.0", "state.1"):
            np.testing.assert_array_equal(recorded.inputs[name][index], recorded.outputs[f"next_{name}"][index - 1])
    again = function.call({name: array[150] for name, array in recorded.inputs.items()})
    np.testing.assert_array_equal(again["next_state.0"], recorded.outputs["next_state.0"][150])
    assert len(np.unique(recorded.inputs["observation"][100:], axis=0)) > 80  # some were cut at the bounds
    same = record(function, env, 200)
    assert all(np.array_equal(same.inputs[name], array) for name, array in recorded.inputs.items())
    assert torch.is_grad_enabled()


def test_golden_calls_do_not_hang_on_the_last_digits():
    recorded = calls(*[(1.0, 1.0 + 1e-7), (1.0, 2.0), (2.0, 1.0), (3.0, 3.0)] * 4)
    golden = steadiest(FUNCTION, recorded, 8)
    assert len(golden.inputs["observation"]) == len(golden.outputs["action"]) == 8
    assert {tuple(pair) for pair in golden.inputs["observation"][:, 0].tolist()} == {(1.0, 2.0), (2.0, 1.0)}
